"""Run the steps of a stage on this rank: weights are gathered, tensors moved, operators run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor

from planner.torch.apply.redistribution import MeshRanks, Move
from planner.torch.apply.saving import GatheredAgain, run_again_later
from planner.torch.apply.staging import StageSteps
from planner.torch.apply.steps import Leaf, RankStep, Ref
from planner.torch.apply.weights import Weight

if TYPE_CHECKING:
    from torch import Tensor


class Leaves:
    """The blocks of weights that a rank trains in one step, and their gradients.

    Parameters
    ----------
    ranks
        The ranks of the stage.
    weights, parameters
        Weights by name, and what this rank keeps of each.
    """

    def __init__(
        self,
        ranks: MeshRanks,
        weights: Mapping[str, Weight],
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        self.ranks, self.weights, self.parameters = ranks, weights, parameters
        self.kept: dict[Leaf, Tensor] = {}
        self.gathered: dict[str, Tensor] = {}
        self.again = GatheredAgain(ranks)

    def local(self, name: str) -> Tensor:
        """What this rank keeps of a weight, in the dims of the module."""
        parameter: Any = self.parameters[name]
        held: Tensor = parameter.to_local().detach()
        return held.reshape(self.weights[name].stored.local_shape(self.ranks.sizes))

    def begin(self, leaves: tuple[Leaf, ...]) -> None:
        """A new step: no gradients yet, and weights may have changed."""
        self.gathered.clear()
        self.kept.clear()
        self.again.begin()
        for leaf in leaves:
            weight = self.weights[leaf.name]
            x = self.local(leaf.name)
            if weight.stored != leaf.layout and "gradients" not in weight.sharded:
                x = self._gather(leaf)
            self.kept[leaf] = x.requires_grad_(self.parameters[leaf.name].requires_grad)

    def _gather(self, leaf: Leaf) -> Tensor:
        """A whole block of a weight."""
        if leaf.name not in self.gathered:
            weight = self.weights[leaf.name]
            move = Move(weight.stored, leaf.layout, frozenset(), weight.owner, cause="weight")
            self.gathered[leaf.name] = self.ranks.redistribute(self.local(leaf.name), move)
        return self.gathered[leaf.name].detach()

    def use(self, leaf: Leaf) -> Tensor:
        """A weight as an operator reads it."""
        x, weight = self.kept[leaf], self.weights[leaf.name]
        if weight.stored == leaf.layout or "gradients" not in weight.sharded:
            return x
        move = Move(weight.stored, leaf.layout, leaf.sums, weight.owner, cause="weight")
        if "weights" in weight.sharded:
            whole = self.ranks.moved(x, move)
            self.again.add(x, move, whole)
            return whole
        found: Tensor = _Gathered.apply(x, self._gather(leaf), self.ranks, move)
        return found

    def as_parameter(self, name: str, local: Tensor) -> Tensor:
        """A tensor of this rank's block of a weight, as the parameter is one."""
        parameter: Any = self.parameters[name]
        return DTensor.from_local(
            local.reshape(parameter.to_local().shape),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def gradients(self, bucket: float) -> dict[str, Tensor]:
        """Gradients of this rank's blocks of all weights, summed over ranks.

        Parameters
        ----------
        bucket
            Bytes that are summed at once, where ranks keep all that they sum. [B]
        """
        found: dict[str, Tensor] = {}
        waiting: dict[frozenset[int], list[tuple[str, Tensor]]] = {}
        # in the order in which the backward pass made them
        for leaf, x in reversed(self.kept.items()):
            if x.grad is None:
                continue
            weight = self.weights[leaf.name]
            if weight.stored != leaf.layout and "gradients" in weight.sharded:
                self._add(found, leaf.name, x.grad)  # it was summed as it was made
            elif weight.stored == leaf.layout and leaf.sums:
                rows = waiting.setdefault(leaf.sums, [])
                rows.append((leaf.name, x.grad))
                if sum(one.nbytes for _, one in rows) >= bucket:
                    self._sum(found, waiting.pop(leaf.sums), leaf.sums)
            else:
                source = leaf.layout.summed_over(leaf.sums)
                move = Move(source, weight.stored, frozenset(), weight.owner, cause="weight")
                gradient = self.ranks.redistribute(x.grad, move, backward=True)
                self._add(found, leaf.name, gradient)
        for sums, rows in waiting.items():
            self._sum(found, rows, sums)
        return found

    def _sum(
        self, found: dict[str, Tensor], rows: list[tuple[str, Tensor]], sums: frozenset[int]
    ) -> None:
        """Sum a bucket of gradients.

        Parameters
        ----------
        found
            Where sums are put.
        rows, sums
            The gradients, and the axes that they are summed over.
        """
        summed = self.ranks.all_reduce([one for _, one in rows], sums)
        for (name, _), gradient in zip(rows, summed, strict=True):
            layout = self.weights[name].used
            move = Move(layout, layout, sums, self.weights[name].owner, cause="weight")
            numbers = 2 * gradient.numel() * self.ranks.share(sums)
            self.ranks.log(move, numbers, "all_reduce", True)
            self._add(found, name, gradient)

    @staticmethod
    def _add(found: dict[str, Tensor], name: str, gradient: Tensor) -> None:
        before = found.get(name)
        found[name] = gradient if before is None else before + gradient


class _Gathered(Function):
    """A weight that is gathered already; each gradient of it is summed and cut at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gathered: Tensor, ranks: MeshRanks, move: Move) -> Tensor:
        ctx.given = (ranks, move)
        return gathered.view_as(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ranks, move = ctx.given
        return ranks.redistribute(gradients[0], move.gradient, backward=True), None, None, None


class StageModule(nn.Module):
    """One stage: from what enters it to what leaves it.

    Parameters
    ----------
    stage
        What it runs.
    leaves, ranks
        Its weights, and the ranks that it runs on.
    constants
        Buffers and written out tensors by their keys.
    gathers_again
        Whether inputs that layers gather are gathered again for the backward pass.
    """

    def __init__(
        self,
        stage: StageSteps,
        leaves: Leaves,
        ranks: MeshRanks,
        constants: Mapping[object, Tensor],
        gathers_again: bool,
    ) -> None:
        super().__init__()
        self.stage, self.ranks = stage, ranks
        self.leaves, self.constants = leaves, constants
        self.gathers_again = gathers_again
        last: dict[object, int] = {}
        reader: dict[object, object] = {}
        for number, run in enumerate(stage.runs):
            for step in run:
                reader |= dict.fromkeys((step.key, *step.reads), step.key)
                last |= dict.fromkeys(step.reads, number)
        last |= dict.fromkeys(stage.leaving, len(stage.runs))
        self.last = last
        # by the step that reads them last, if any does
        self.read_last: dict[object, list[object]] = {}
        for key, step_key in reader.items():
            if key not in stage.leaving and key not in constants:
                self.read_last.setdefault(step_key, []).append(key)
        self.watcher: Callable[[object, Any], None] | None = None

    def named_parameters(
        self, *args: object, **options: object
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Blocks of weights that are trained: what splits a backward pass in two asks for them."""
        for number, leaf in enumerate(self.stage.leaves):
            if leaf in self.leaves.kept:
                block: Any = self.leaves.kept[leaf]
                yield f"{number}", block

    def forward(self, *entering: Tensor, **inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """What leaves the stage.

        Parameters
        ----------
        entering
            What comes of the stage before.
        inputs
            The inputs of the module, by the names of their nodes.
        """
        values: dict[object, Any] = dict(zip(self.stage.entering, entering, strict=False))
        values |= self.constants
        for key in self._placeholders:
            if key.name in inputs:
                values[key] = inputs[key.name]
        for number, (run, again) in enumerate(zip(self.stage.runs, self.stage.again, strict=True)):
            if again and torch.is_grad_enabled():
                self._again(number, run, values)
            else:
                with self.leaves.again.hooks():
                    self._run(run, values)
        # what is sent lies in one piece
        found = tuple(values[key].contiguous() for key in self.stage.leaving)
        return found[0] if len(found) == 1 else found

    @property
    def _placeholders(self) -> list[Any]:
        keys = [key for step in self.stage.steps for key in step.reads]
        keys += list(self.stage.leaving)
        return [key for key in dict.fromkeys(keys) if getattr(key, "op", "") == "placeholder"]

    def _run(self, run: tuple[RankStep, ...], values: dict[object, Any]) -> None:
        for step in run:
            if "leaf" in step.given:
                values[step.key] = self.leaves.use(step.given["leaf"])
            elif step.move is not None:
                x = values[step.given["x"].key]
                values[step.key] = self.ranks.moved(x, step.move)
                if self.gathers_again and step.move.is_gathering:
                    self.leaves.again.add(x, step.move, values[step.key])
            else:
                assert step.run is not None, "all other steps call something"
                values[step.key] = step.run(**_with_results(step.given, values))
            if self.watcher is not None:
                self.watcher(step.key, values[step.key])
            for key in self.read_last.get(step.key, ()):
                values.pop(key, None)

    def _again(self, number: int, run: tuple[RankStep, ...], values: dict[object, Any]) -> None:
        """As `_run`, of which nothing is kept but what it reads and what others read of it."""
        own = {step.key for step in run}
        reads = list(dict.fromkeys(key for step in run for key in step.reads if key not in own))
        made = [key for key in own if self.last.get(key, -1) > number]
        made.sort(key=[step.key for step in run].index)

        def body(*given: Tensor) -> tuple[Any, ...]:
            local = dict(zip(reads, given, strict=True))
            self._run(run, local)
            return tuple(local[key] for key in made)

        found = run_again_later(body, *(values[key] for key in reads))
        for step in run:
            for key in self.read_last.get(step.key, ()):
                values.pop(key, None)
        values |= dict(zip(made, found, strict=True))


def _with_results(given: Any, values: Mapping[object, Any]) -> Any:
    """Arguments with what was computed."""
    if isinstance(given, Ref):
        return values[given.key]
    if isinstance(given, Mapping):
        return {key: _with_results(one, values) for key, one in given.items()}
    if isinstance(given, list | tuple):
        return [_with_results(one, values) for one in given]
    return given

"""Apply a plan to a transformer, or to any module whose layers are split in equal blocks.

The operators of the traced module run on local blocks; what moves between ranks moves where the
plan says so, by DTensor. Weights are DTensors under their own names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from costmodels.errors import InputError
from planner.plan import Plan
from planner.torch.apply.building import build_ranks, constants_of, tied_groups
from planner.torch.apply.module import PlannedModule, Received
from planner.torch.apply.pipeline import Pipeline
from planner.torch.apply.redistribution import Move
from planner.torch.apply.running import Leaves, StageModule
from planner.torch.apply.tracing import Traced, node_of
from planner.torch.apply.views import ViewLayout, normal
from planner.torch.apply.weights import full_tensor, kept_parameter, placement

if TYPE_CHECKING:
    from torch import Tensor


def apply_transformer(
    plan: Plan,
    model: nn.Module,
    *,
    inputs: object = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> PlannedTransformer:
    """The module as the plan trains it.

    Parameters
    ----------
    plan, model, inputs, loss
        As of `planner.torch.apply.apply`.

    Raises
    ------
    InputError
        When the plan is for another module, or one of its layers cannot be run as it is split.
    """
    return PlannedTransformer(plan, model, inputs, loss)


class PlannedTransformer(PlannedModule):
    """A module whose operators run on the blocks of a plan.

    Parameters
    ----------
    plan, model, inputs, loss
        As of `planner.torch.apply.apply`.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        inputs: object,
        loss: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> None:
        super().__init__()
        self.plan = plan
        # names with underscores, so that those of the module's own parts are free
        self._log: list[Received] = []
        self._built = build_ranks(plan, model, inputs, loss, self._put_down)
        built = self._built
        originals = dict(model.named_parameters(remove_duplicate=False))
        kept: dict[str, nn.Parameter] = {}
        for name in built.weights:
            if set(built.users(name)) & set(built.own):
                parameter = kept_parameter(built.weights[name], originals[name], built.ranks.mesh)
                kept[name] = parameter.requires_grad_(originals[name].requires_grad)
                _register_parameter(self, name, kept[name])
        self._leaves = Leaves(built.ranks, built.weights, kept)
        constants = constants_of(built.program, model)
        # not as submodules: their weights are those above
        self._stages = {
            number: StageModule(
                built.stages[number],
                self._leaves,
                built.ranks,
                constants,
                plan.strategy.gather_again,
            )
            for number in built.own
        }
        self._tied = tied_groups(built, plan)
        self._pipeline = (
            Pipeline(plan, built.program, self._stages, built.stages, built.mesh)
            if built.is_pipeline
            else None
        )

    def _put_down(self, move: Move, numbers: float, collective: str, backward: bool) -> None:
        """Keep a record of what was received."""
        cause = "gradient" if move.cause == "weight" and backward else move.cause
        self._log.append(
            Received(
                layer=move.layer,
                cause=cause,
                backward=backward,
                collective=collective,
                numbers=numbers,
            )
        )

    def local_batch(self, tensor: Tensor, slot: int | str = 0) -> Tensor:
        """The part of a tensor of the whole batch that this rank reads, by micro-batches."""
        built, program = self._built, self._built.program
        if slot == "target":
            layout = _target_layout(built.loss.layout, tensor)
        else:
            nodes = program.traced.inputs
            number = slot if isinstance(slot, int) else [n.name for n in nodes].index(slot)
            layout = program.input_layouts[number]
        count = self.plan.schedule.micro_batches
        place = program.place
        parts = [place.block(one, layout) for one in tensor.chunk(count)]
        return torch.cat(parts)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The rank's block of the output, as its loss reads it, of one micro-batch."""
        if self._pipeline is not None:
            raise InputError(
                "a plan with stages runs forward and backward together; call step instead"
            )
        self._leaves.begin(self._built.stages[0].leaves)
        return self._output(inputs)

    def _output(self, inputs: tuple[Tensor, ...]) -> Tensor:
        (stage,) = self._stages.values()
        nodes = self._built.program.traced.inputs
        found: Tensor = stage(**{n.name: one for n, one in zip(nodes, inputs, strict=True)})
        return found

    def step(self, *inputs: Tensor, target: Tensor | None = None) -> Tensor:
        """The forward and the backward pass of one step; the mean loss of the whole batch."""
        built = self._built
        count = self.plan.schedule.micro_batches
        if target is None:
            raise InputError("a step must have a target but has none; give target=...")
        self._leaves.begin(tuple(one for n in built.own for one in built.stages[n].leaves))
        if self._pipeline is None:
            rows = zip(*(one.chunk(count) for one in (*inputs, target)), strict=True)
            losses = []
            for *given, wanted in rows:
                summand = built.loss.summand(self._output(tuple(given)), wanted) / count
                summand.backward()
                losses.append(summand.detach())
            total = built.loss.total(torch.stack(losses).sum())
        else:
            total = self._pipeline.step(inputs, target, built.loss)
        self._set_gradients()
        return total

    def _set_gradients(self) -> None:
        """Give every weight its gradient, summed over all ranks that have a part of it."""
        found = self._leaves.gradients(self.plan.training.bucket_bytes)
        for name, group in self._tied.items():
            parameter = self._leaves.parameters.get(name)
            if parameter is None or not parameter.requires_grad:
                continue
            gradient = found.get(name)
            if gradient is None:
                gradient = torch.zeros_like(self._leaves.local(name))
            gradient = gradient.contiguous()
            dist.all_reduce(gradient, group=group.now)
            found[name] = gradient
        for name, gradient in found.items():
            parameter = self._leaves.parameters[name]
            spread = self._leaves.as_parameter(name, gradient)
            parameter.grad = spread if parameter.grad is None else parameter.grad + spread

    def full_parameters(self) -> dict[str, Tensor]:
        """All parameters as one process would have them, by the names of the original module."""
        return self._full(lambda one: one)

    def full_gradients(self) -> dict[str, Tensor]:
        """Their gradients after a step, likewise."""
        return self._full(lambda one: one.grad)

    def _full(self, pick: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
        built = self._built
        found: dict[str, Tensor] = {}
        for name in sorted(built.weights):
            parameter = self._leaves.parameters.get(name)
            picked = None if parameter is None else pick(parameter)
            if picked is not None:
                found[name] = full_tensor(picked, built.program.traced, name)
        if built.is_pipeline:
            gathered: list[dict[str, Tensor]] = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(gathered, found)
            found = {name: one for rows in reversed(gathered) for name, one in rows.items()}
        return dict(sorted(found.items()))

    def watch(self, told: Callable[[str, str, str], None]) -> None:
        """Compare the shapes of all blocks with the plan's, from now on.

        Parameters
        ----------
        told
            Is told of every block: what it is, its shape, and that which the plan says.
        """
        built = self._built
        layouts, traced_module = built.program.layouts, built.program.traced
        sizes = built.ranks.sizes

        def seen(key: object, value: object) -> None:
            if key in layouts and isinstance(value, torch.Tensor):
                node = node_of(key)
                layer = traced_module.layer_of(node) or str(node)
                said = layouts[key].local_shape(sizes)
                told(layer, str(list(value.shape)), str(list(said)))

        for stage in self._stages.values():
            stage.watcher = seen
        sharding = self.plan.sharding
        assert sharding is not None, "plans that are applied say where tensors lie"
        for name in self._leaves.parameters:
            weight = built.weights[name]
            placed = placement(sharding, weight.owner, name)
            if placed is not None and weight.stored == weight.used:
                # of products whose weight has its inputs first, the dims are turned
                said, held = sorted(placed.local_shape), sorted(weight.used.local_shape(sizes))
                if placed.dims[0] != "number" and len(said) == len(held):
                    told(name, str(held), str(said))

    @property
    def traced(self) -> Traced:
        """The operators that it runs."""
        return self._built.program.traced

    @property
    def num_features(self) -> int:
        """Features of the output. [items]"""
        return self._built.result.layout.shape[-1]

    def messages(self) -> list[Received]:
        """What this rank sent and received since it was asked last."""
        found, self._log = self._log, []
        self._built.ranks.log = self._put_down
        return found


def _target_layout(output: ViewLayout, target: Tensor) -> ViewLayout:
    """How the target lies: as the positions of the output."""
    dims = output.dims if target.dim() == len(output.dims) else output.dims[:-1]
    return ViewLayout(tuple(normal(parts) for parts in dims))


def _register_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter under a name with dots, as that of a module inside of modules."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        found = module._modules[part]
        assert found is not None, "it was made above"
        module = found
    module.register_parameter(last, parameter)

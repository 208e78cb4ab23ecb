"""Weights that come where they are read: cut ones from all ranks, offloaded ones from the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

from msgspec import Struct, field

from costmodels.simulation.buckets import Group, unit_of
from costmodels.simulation.execution import Queue
from costmodels.simulation.host_links import HostLinks
from costmodels.simulation.offload import host_copy
from costmodels.simulation.operations import Key, Local, Operation, Ref, message_operation
from costmodels.simulation.schedules import WEIGHT
from costmodels.simulation.stage_program import StageProgram
from costmodels.step.training import Training
from costmodels.strategy import MemoryConfig

_COMPUTES = ("forward", "recompute", "backward", "backward of weight")


class Shards(Struct, frozen=True, kw_only=True, dict=True):
    """What a rank has of the weights of a stage.

    Parameters
    ----------
    program, training
        The stage, and how the step runs.
    memory
        What of each layer is cut over the ranks that hold the same.
    known
        Ranks that the tensors of a layer are cut over. [items]
    """

    program: StageProgram
    training: Training
    memory: Callable[[str], MemoryConfig]
    known: dict[str, dict[str, int]] = field(default_factory=dict)

    def cuts(self, name: str, what: str = "weights") -> int:
        """Ranks that one of a layer's tensors is cut over. [items]"""
        if name not in self.known:
            config, ranks = self.memory(name), math.prod(self.group(name))
            rows = {"weights": config.weights, "gradients": config.gradients, "state": config.state}
            self.known[name] = {each: ranks if cut else 1 for each, cut in rows.items()}
        return self.known[name][what]

    def group(self, name: str) -> Group:
        """Members of the groups that a layer's tensors are cut over: inner ones first. [items]"""
        group, size = self.program.pieces[name].gradient_group, self.memory(name).shard_size
        if size is None:
            return group
        row = []
        for members in group:
            row.append(math.gcd(members, size))
            size //= row[-1]
        return tuple(row)

    def is_cut(self, name: str) -> bool:
        """Whether a layer has a weight of which each rank keeps a part only."""
        return self.program.pieces[name].numbers > 0.0 and self.cuts(name) > 1

    @cached_property
    def moved(self) -> frozenset[str]:
        """The layers whose weight does not lie whole where it is read."""
        names = [layer.name for layer in self.program.layers]
        return frozenset(n for n in names if self.is_cut(n) or self.in_host(n) is not None)

    def in_host(self, name: str) -> str | None:
        """The layer whose weight a layer reads, where that waits in the host."""
        if "weights" not in self.program.view.strategy.offload:
            return None
        holder = self.program.view.holders.get(name, name)
        return holder if self.program.pieces[holder].weights else None


class WeightArrivals:
    """What brings weights in a pass, wherever the computation comes to another unit of layers.

    Attributes
    ----------
    operations
        What brings them, in the order of the pass.
    unit_ends
        Of each such operation the last one that reads what it brings.
    """

    def __init__(self, shards: Shards, phase: str) -> None:
        self.shards, self.phase = shards, phase
        self.operations: list[Operation] = []
        self.unit_ends: dict[Key, Key] = {}
        self._read: dict[Key, tuple[Operation, ...]] = {}
        if not shards.moved:
            return
        rows = [op for op in shards.program.phases[phase] if op.kind in _COMPUTES]
        units: dict[str, dict[str, None]] = {}
        for operation in rows:
            if operation.name in shards.moved:
                units.setdefault(unit_of(operation.name), {})[operation.name] = None
        brought: list[Operation] = []
        # a part that is gathered is read in the whole
        gathered = {unit: self._all_cut(names) for unit, names in units.items()}
        last = ""
        for operation in rows:
            unit = unit_of(operation.name)
            if unit not in units:
                continue
            if unit != last:
                last, brought = unit, self._brought(unit, units[unit])
                self.operations += brought
            whole = brought[-1:] if gathered[unit] else brought
            self._read[operation.key] = tuple(whole)
            self.unit_ends |= {op.key: operation.key for op in brought}

    def _all_cut(self, names: Iterable[str]) -> bool:
        held = {name: self.shards.in_host(name) for name in names}
        return all(self.shards.is_cut(holder or name) for name, holder in held.items())

    def _brought(self, unit: str, names: Iterable[str]) -> list[Operation]:
        """What brings the weights of the layers of a unit."""
        shards, phase = self.shards, self.phase
        rows: list[Operation] = []
        program, place = shards.program, len(self.operations)
        pieces, links = program.pieces, program.stage_links
        cut = [name for name in names if shards.is_cut(name)]
        held = dict.fromkeys(shards.in_host(name) for name in names)
        waiting = [name for name in held if name is not None]
        # passes of weights alone read none, but where they are gathered
        if waiting and (cut or phase != WEIGHT):
            size = sum(pieces[name].weights / shards.cuts(name) for name in waiting)
            numbers = sum(pieces[name].numbers / shards.cuts(name) for name in waiting)
            sent = numbers * shards.training.held.weights
            key: Key = ("weights from host", unit, place)
            arrived: Local = ("weights from host " + phase, unit, place)
            made = ((arrived, "weights", size),)
            rows.append(host_copy(key, HostLinks(links), sent, (), to_host=False, makes=made))
        if cut:
            size = sum(pieces[name].numbers for name in cut) * shards.training.activation_size
            group = shards.group(max(cut, key=lambda n: pieces[n].numbers))
            rows.append(
                message_operation(
                    ("gather", unit, place),
                    "all_gather",
                    program.weight_links.collective("all_gather", group, size),
                    [(program.number, phase, op.key) for op in rows],
                    num_bytes=size * (1.0 - 1.0 / math.prod(group)),
                    queue=Queue.PARAMETER,
                    makes=((("weights " + phase, unit, place), "weights", size),),
                    uses=tuple(op.makes[0][0] for op in rows),
                )
            )
        return rows

    @cached_property
    def launched(self) -> Sequence[Operation]:
        """The operations of the pass as they are launched: weights come when they are due."""
        operations: Sequence[Operation] = self.shards.program.phases[self.phase]
        if not self.operations:
            return operations
        due = {operation.makes[0][0]: operation for operation in self.operations}
        rows: list[Operation] = []
        for operation in operations:
            read = self._read.get(operation.key, ())
            waits: list[Ref] = [(self.shards.program.number, self.phase, op.key) for op in read]
            uses = (*operation.uses, *(op.makes[0][0] for op in read))
            rows += _launched(operation._replace(after=(*operation.after, *waits), uses=uses), due)
        return rows


def _launched(operation: Operation, due: dict[Local, Operation]) -> Iterator[Operation]:
    """An operation behind those that bring what it uses, which are no longer due then."""
    for key in operation.uses:
        if key in due:
            yield from _launched(due.pop(key), due)
    yield operation

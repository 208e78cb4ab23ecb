"""What waits in the memory of the host: activations, weights, the optimizer's state.

Activations that a backward pass reads are copied away when their unit of layers (a block) has made
them, and copied back before the backward pass of a unit that reads them (Rajbhandari et al. 2021,
ZeRO-Infinity, section 5.2.2; Isaev et al. 2023, Calculon). Weights are copied to the device before
a unit computes and dropped after it (ZeRO-Infinity, section 6). The optimizer's state does not
leave the host: gradients are copied there as they are summed up, its processors update, and the
updated weights come back (Ren et al. 2021, ZeRO-Offload, section 4). There are two buffers: copies
back are two units ahead at most, and a forward pass waits where two units are still to leave, of it
or of passes before. Copies run beside computation, in queues of their own in either direction;
whether they hide there is what the simulation decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from costmodels.simulation.buckets import unit_of
from costmodels.simulation.execution import Queue
from costmodels.simulation.host_links import HostLinks
from costmodels.simulation.messages import IN, OUT
from costmodels.simulation.operations import Key, Local, Operation, Ref, message_operation
from costmodels.simulation.schedules import BACKWARD, FORWARD, WEIGHT, StagePass
from costmodels.simulation.stage_program import StageProgram
from costmodels.simulation.tensors import ACTIVATIONS

# Units whose tensors are on the device, or on their way there: one is read, the next one comes.
BUFFERS = 2


def host_copy(
    key: Key,
    links: HostLinks,
    num_bytes: float,
    after: Iterable[Ref],
    *,
    to_host: bool,
    makes: tuple[tuple[Local, str, float], ...] = (),
    uses: tuple[Local, ...] = (),
) -> Operation:
    """A copy between device and host as an operation.

    Parameters
    ----------
    key, after, makes, uses
        As of `Operation`.
    links
        Links of the stage to its hosts.
    num_bytes
        What each device copies. [B]
    to_host
        Whether to the host, or from it.
    """
    message = links.copy(num_bytes, OUT if to_host else IN)
    return message_operation(
        key,
        "to host" if to_host else "from host",
        message,
        after,
        num_bytes=num_bytes,
        queue=Queue.TO_HOST if to_host else Queue.FROM_HOST,
        makes=makes,
        uses=uses,
    )


class _Activations:
    """Which tensors of a stage its backward pass reads, and which units make and read them.

    Parameters
    ----------
    program
        The stage.
    """

    def __init__(self, program: StageProgram) -> None:
        self.number = program.number
        self.sizes: dict[Local, float] = {}
        self.maker: dict[Local, tuple[str, int]] = {}  # its unit, and its place in the pass
        self.ends: dict[str, int] = {}  # place of the last computation of a unit, forward
        for place, op in enumerate(program.phases[FORWARD]):
            if op.queue == Queue.COMPUTE:
                self.ends[unit_of(op.name)] = place
            for key, holder, size in op.makes:
                if holder == ACTIVATIONS and size:
                    self.sizes[key] = size
                    self.maker[key] = (unit_of(op.name), place)
        # what each unit of a pass is the first to read, in their order
        self.read: dict[tuple[str, str], list[Local]] = {}
        seen: set[Local] = set()
        for phase in (BACKWARD, WEIGHT):
            for op in program.phases[phase]:
                found = [k for k in (*op.takes, *op.uses) if k in self.sizes and k not in seen]
                seen.update(found)
                if found:
                    rows = self.read.setdefault((phase, unit_of(op.name)), [])
                    rows.extend(dict.fromkeys(found))
        self.computed = [op for op in program.phases[BACKWARD] if op.queue == Queue.COMPUTE]
        self.first: dict[str, int] = {}  # of each unit its first computation, backward
        for place, op in enumerate(self.computed):
            self.first.setdefault(unit_of(op.name), place)

    def gate(self, unit: str) -> tuple[Ref, ...]:
        """After what the tensors of a unit may come back: when the unit before it begins."""
        units = list(self.first)
        before = units.index(unit) - BUFFERS + 1 if unit in self.first else len(units) - 1
        place = self.first[units[before]] - 1 if before > 0 else -1
        if place < 0:
            return self.computed[0].after
        return ((self.number, BACKWARD, self.computed[place].key),)


def _fetched(key: Local) -> Local:
    return (f"{key[0]} from host", key[1], key[2])


class Away(NamedTuple):
    """What of the activations of a stage waits in the host.

    Parameters
    ----------
    size
        Of each micro-batch and device. [B]
    copies
        By the first computation of each unit of its forward pass, the copy of what the unit makes,
        None where nothing of that leaves, or later than units that follow begin.
    """

    size: float
    copies: Mapping[Key, Key | None]


def offload_activations(program: StageProgram, *, follows: bool) -> Away:
    """Copy what the backward pass of a stage reads to the host and back.

    Parameters
    ----------
    program
        The stage, whose operations change.
    follows
        Whether the backward pass of a micro-batch follows its forward pass at once: what its first
        units read then stays, in the buffers that it would come back to.

    Returns
    -------
        What waits there.
    """
    found, links, phases = _Activations(program), HostLinks(program.stage_links), program.phases
    stay = list(found.first)[:BUFFERS] if follows else []
    moved = {place: keys for place, keys in found.read.items() if place[1] not in stay}
    by_maker: dict[str, list[Local]] = {}
    for key in (key for keys in moved.values() for key in keys):
        by_maker.setdefault(found.maker[key][0], []).append(key)
    away: dict[int, list[Operation]] = {}
    for unit, keys in by_maker.items():
        place = max([found.ends.get(unit, 0), *(found.maker[key][1] for key in keys)])
        away.setdefault(place, []).append(
            host_copy(
                ("to host", unit, program.number),
                links,
                sum(found.sizes[key] for key in keys),
                [(program.number, FORWARD, phases[FORWARD][place].key)],
                to_host=True,
                uses=tuple(sorted(keys)),
            )
        )
    back: dict[tuple[str, str], Operation] = {}
    for (phase, unit), keys in moved.items():
        makers = dict.fromkeys(found.maker[key][0] for key in keys)
        sent: list[Ref] = [
            (program.number, FORWARD, ("to host", maker, program.number)) for maker in makers
        ]
        back[phase, unit] = host_copy(
            ("from host", unit, program.number),
            links,
            sum(found.sizes[key] for key in keys),
            (*sent, *found.gate(unit)),
            to_host=False,
            makes=tuple((_fetched(key), ACTIVATIONS, found.sizes[key]) for key in keys),
        )
    phases[FORWARD], copies = _sending(phases[FORWARD], away)
    for phase in (BACKWARD, WEIGHT):
        phases[phase] = _reading(phase, phases[phase], back, program.number)
    return Away(sum(found.sizes[key] for keys in moved.values() for key in keys), copies)


def _sending(
    operations: Sequence[Operation], away: Mapping[int, Sequence[Operation]]
) -> tuple[list[Operation], dict[Key, Key | None]]:
    """A forward pass with its copies, and these by the first computation of each unit.

    Parameters
    ----------
    operations
        The pass.
    away
        The copies by the place of the operation that they come after.
    """
    rows: list[Operation] = []
    begun: dict[str, Key] = {}
    copies: dict[Key, Key | None] = {}
    for place, op in enumerate(operations):
        if op.queue == Queue.COMPUTE and unit_of(op.name) not in begun:
            begun[unit_of(op.name)] = op.key
            copies[op.key] = None
        rows.append(op)
        for copy in away.get(place, ()):
            rows.append(copy)
            # what a stage receives for others is made by no computation of its own, and what others
            # have gathered leaves when units have begun that would wait for it
            if copy.name in begun and copy.name in list(begun)[-BUFFERS:]:
                copies[begun[copy.name]] = copy.key
    return rows, copies


def _reading(
    phase: str,
    operations: Sequence[Operation],
    back: Mapping[tuple[str, str], Operation],
    stage: int,
) -> list[Operation]:
    """A pass that reads what came back from the host, with the copies that bring it.

    Parameters
    ----------
    phase, operations
        The pass.
    back
        The copies by pass and unit.
    stage
        Number of the stage.
    """
    brought: dict[Local, Ref] = {}
    for (when, _), copy in back.items():
        brought |= {key: (stage, when, copy.key) for key, _, _ in copy.makes}
    rows: list[Operation] = []
    begun: set[str] = set()
    for op in operations:
        unit = unit_of(op.name)
        refs = [brought[k] for k in map(_fetched, (*op.takes, *op.uses)) if k in brought]
        if (phase, unit) in back and unit not in begun and refs:
            rows.append(back[phase, unit])
            begun.add(unit)
        rows.append(
            op._replace(
                after=tuple(dict.fromkeys((*op.after, *refs))),
                takes=tuple(_fetched(k) if _fetched(k) in brought else k for k in op.takes),
                uses=tuple(_fetched(k) if _fetched(k) in brought else k for k in op.uses),
                # what computes again does not receive again what it reads: that came back
                makes=tuple(row for row in op.makes if _fetched(row[0]) not in brought),
            )
        )
    return rows


def most_away(each: Mapping[int, float], order: Sequence[StagePass]) -> float:
    """The most that waits in the host for the micro-batches under way. [B]

    Parameters
    ----------
    each
        What a micro-batch of each stage has there. [B]
    order
        The passes, in their order.
    """
    now = most = 0.0
    for run in order:
        if run.phase == FORWARD:
            now += each[run.stage]
            most = max(most, now)
        elif run.phase == BACKWARD:
            now -= each[run.stage]
    return most

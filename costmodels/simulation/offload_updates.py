"""The optimizer's update where its state, or the weights, wait in the memory of the host.

It goes unit by unit of layers. State in the host: the processors of the host update as fast as its
memory lets them, from gradients that were copied there; what they have updated comes back while
they go on with the next unit. All gradients are waited for, since the update needs their norm.
Weights in the host and state on the device: weights come for their update, unless the optimizer has
a copy of its own, and go back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costmodels.compute.work import TRAFFIC
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.execution import Queue
from costmodels.simulation.host_links import HostLinks
from costmodels.simulation.offload import BUFFERS, host_copy
from costmodels.simulation.operations import Key, Operation, Ref, message_operation
from costmodels.simulation.weights import WeightWork


def _units(work: WeightWork) -> dict[str, list[str]]:
    """The layers with weights of each unit, in the order in which gradients come."""
    units: dict[str, list[str]] = {}
    for layer in reversed(work.program.layers):
        if work.pieces[layer.name].parameters:
            units.setdefault(unit_of(layer.name), []).append(layer.name)
    return units


def gradients_to_host(work: WeightWork) -> list[Operation]:
    """Copies of gradients to the host, each as soon as they are summed up."""
    if "optimizer" not in work.offloaded:
        return []
    links, number = HostLinks(work.program.stage_links), work.program.number
    rows = []
    for unit, names in _units(work).items():
        size = sum(work.pieces[name].gradients / work.cuts(name, "state") for name in names)
        after = [ref for name in names for ref in work.summed_up(name)]
        key: Key = ("gradients to host", unit, number)
        rows.append(host_copy(key, links, size, after, to_host=True))
    return rows


def host_updates(work: WeightWork, waits: Sequence[Ref]) -> Iterator[Operation]:
    """The update of a stage whose optimizer's state waits in the host.

    Parameters
    ----------
    work, waits
        The stage, and the copies of all gradients of its device.
    """
    links, number = HostLinks(work.program.stage_links), work.program.number
    training = work.training
    _, _, traffic = TRAFFIC[f"{training.optimizer}_update", "forward"]
    for unit, names in _units(work).items():
        parameters = sum(work.pieces[n].parameters / work.cuts(n, "state") for n in names)
        update: Key = ("update", unit, number)
        yield message_operation(
            update,
            "update",
            links.compute(traffic * parameters),
            waits,
            num_bytes=0.0,
            queue=Queue.HOST,
        )
        if "weights" not in work.offloaded:
            yield host_copy(
                ("updated from host", unit, number),
                links,
                parameters * training.held.weights,
                [(number, "update", update)],
                to_host=False,
            )


def updates_of_fetched(work: WeightWork, waits: Sequence[Ref]) -> Iterator[Operation]:
    """The update, on the device, of a stage whose weights wait in the host.

    Parameters
    ----------
    work, waits
        The stage, and the sums of all gradients of its device.
    """
    links, number, held = (
        HostLinks(work.program.stage_links),
        work.program.number,
        work.training.held,
    )
    gone: list[Ref] = []
    for unit, names in _units(work).items():
        size = sum(work.pieces[n].parameters / work.cuts(n, "weights") for n in names)
        size *= held.weights
        weights = ("updated", unit, number)
        made = ((weights, "weights", size),)
        # two units are on the device at once
        after = [*waits, *(gone[-BUFFERS:-1] if len(gone) >= BUFFERS else ())]
        update: Key = ("update", unit, number)
        if not held.master:
            key: Key = ("weights from host", unit, number)
            yield host_copy(key, links, size, after, to_host=False, makes=made)
            after = [(number, "update", key)]
        yield Operation(
            key=update,
            kind="update",
            queue=Queue.COMPUTE,
            after=tuple(dict.fromkeys(after)),
            seconds=sum(work.pieces[n].update / work.cuts(n, "state") for n in names),
            makes=made if held.master else (),
            scratch=sum(
                work.pieces[n].parameters * held.update / work.cuts(n, "state") for n in names
            ),
        )
        back: Key = ("updated to host", unit, number)
        yield host_copy(
            back, links, size, [(number, "update", update)], to_host=True, uses=(weights,)
        )
        gone.append((number, "update", back))

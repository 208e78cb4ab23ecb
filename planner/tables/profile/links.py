"""Measures collectives between the processes of a job, size by size, and the overlap.

Every process runs this; the first one writes. Groups are those that plans make: some neighbours in
every host, one device of every host, and all devices. All groups of a kind communicate at once, as
they do in training, and a collective takes as long as it does for the last of its members. Sizes
are those of the whole buffer of a device, as nccl-tests counts them.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from costmodels.cluster.curve import CURVED
from planner.tables.profile.place import MeasuredPlace
from planner.tables.profile.store import MeasuredProfile, Sweep

SMALLEST: Final = 2**8
LARGEST: Final = 2**26
FACTOR: Final = 2
BATCHES: Final = 7
# Of one size of one collective: fewer batches where it takes longer, but at least three.
PATIENCE_SECONDS: Final = 0.5
_BATCH_SECONDS: Final = 10e-3
_OVERLAP_BYTES: Final = 2**24
_OVERLAP_ROUNDS: Final = 5
_ELEMENT: Final = 4
Tell = Callable[[str], None]


class JobRanks(Struct, frozen=True, kw_only=True):
    """The processes of a job.

    Parameters
    ----------
    rank, world, local
        This one, all of them, and those of a host. [items]
    place
        The device that each has.
    clock
        Tells the time: the wall clock, or the time that this process computes. [s]
    """

    rank: int
    world: int
    local: int
    place: MeasuredPlace
    clock: Callable[[], float] = time.perf_counter

    @property
    def hosts(self) -> int:
        """Hosts of the job. [items]"""
        return self.world // self.local

    def kinds(self) -> Iterator[tuple[int, int]]:
        """Hosts and GPUs of the groups that are measured."""
        for size in range(2, self.local + 1):
            if self.local % size == 0:
                yield 1, size
        if self.hosts > 1:
            yield self.hosts, self.hosts
            if self.local > 1:
                yield self.hosts, self.world

    def groups(self, hosts: int, gpus: int) -> list[list[int]]:
        """The ranks of every group of a kind.

        Parameters
        ----------
        hosts, gpus
            The kind. [items]
        """
        each = gpus // hosts
        if hosts == 1:
            return [list(range(n, n + each)) for n in range(0, self.world, each)]
        return [
            [host * self.local + n + i for host in range(hosts) for i in range(each)]
            for n in range(0, self.local, each)
        ]


def sweep_links(
    ranks: JobRanks, profile: MeasuredProfile | None, tell: Tell, most: int = LARGEST
) -> None:
    """Measure what is missing of a profile, in every process of the job.

    Parameters
    ----------
    ranks
        The job; its processes can talk to each other already.
    profile
        Takes what is measured and is saved; only in the first process.
    tell
        Told how far it is.
    most
        Largest message. [B]
    """
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore", category=FutureWarning)
    known: list[Any] = [list(profile.sweeps) if profile else [], profile and profile.overlap]
    dist.broadcast_object_list(known, 0)
    done = {tuple(sweep) for sweep in known[0]}
    for hosts, gpus in ranks.kinds():
        group = _own_group(dist, ranks, hosts, gpus)
        for collective in CURVED:
            sweep = (collective, hosts, gpus)
            if sweep in done or (collective == "send_recv" and gpus != 2):
                continue
            tell(f"{collective} of {gpus} devices on {hosts} hosts")
            rows = _swept_sizes(torch, dist, ranks, group, sweep, most)
            if profile is not None:
                profile.sweeps[sweep] = rows
                profile.save()
    if known[1] is None:
        tell("computation beside an all-reduce")
        slower = _slowed(torch, dist, ranks, min(_OVERLAP_BYTES, most))
        if profile is not None:
            profile.overlap = round(slower, 4)
            profile.save()


def _own_group(dist: ModuleType, ranks: JobRanks, hosts: int, gpus: int) -> Any:
    """The group that this rank is in; all ranks make all groups."""
    own = None
    for members in ranks.groups(hosts, gpus):
        group = dist.new_group(members)
        if ranks.rank in members:
            own = group
    assert own is not None, "every rank is in a group of each kind"
    return own


def _swept_sizes(
    torch: ModuleType, dist: ModuleType, ranks: JobRanks, group: Any, sweep: Sweep, most: int
) -> list[tuple[float, float, float]]:
    """Bytes, seconds and spread of every size.

    Parameters
    ----------
    torch, dist
        The modules.
    ranks, group, sweep
        The job, the group of this rank, and what is measured.
    most
        Largest message. [B]
    """
    collective, _, gpus = sweep
    rows, size = [], SMALLEST
    while size <= most:
        elements = max(size // _ELEMENT // gpus, 1) * gpus
        call = _call(torch, dist, ranks, group, collective, elements, gpus)
        seconds, spread = _timed_together(torch, dist, ranks, call)
        rows.append((float(elements * _ELEMENT), float(f"{seconds:.4e}"), round(spread, 3)))
        size *= FACTOR
    return rows


def _call(
    torch: ModuleType,
    dist: ModuleType,
    ranks: JobRanks,
    group: Any,
    collective: str,
    elements: int,
    gpus: int,
) -> Callable[[], object]:
    """One collective.

    Parameters
    ----------
    torch, dist
        The modules.
    ranks, group
        The job, and the group of this rank.
    collective
        Which one.
    elements, gpus
        Numbers of the whole buffer, and members of the group. [items]
    """
    device = ranks.place.device
    whole = torch.ones(elements, device=device)
    part = torch.ones(elements // gpus, device=device)
    other = torch.empty_like(whole)
    if collective == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if collective == "all_gather":
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        return lambda: gather(whole, part, group=group)
    if collective == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        return lambda: scatter(part, whole, group=group)
    if collective == "all_to_all":
        return lambda: dist.all_to_all_single(other, whole, group=group)
    members = dist.get_process_group_ranks(group)
    partner = members[1 - members.index(ranks.rank)]

    def exchange() -> None:
        messages = [
            dist.P2POp(dist.isend, whole, partner, group),
            dist.P2POp(dist.irecv, other, partner, group),
        ]
        for message in dist.batch_isend_irecv(messages):
            message.wait()

    return exchange


def _timed_together(
    torch: ModuleType, dist: ModuleType, ranks: JobRanks, call: Callable[[], object]
) -> tuple[float, float]:
    """Median seconds of a call over some batches, and their spread; the same in every rank.

    Parameters
    ----------
    torch, dist, ranks
        The modules, and the job.
    call
        What is timed; all ranks call it at once.
    """

    def batch(calls: int) -> float:
        _wait_for_device(torch, ranks)
        dist.barrier()
        start = ranks.clock()
        for _ in range(calls):
            call()
        _wait_for_device(torch, ranks)
        return _slowest(torch, dist, ranks, (ranks.clock() - start) / calls)

    batch(2)
    once = max(batch(1), 1e-7)
    calls = max(1, min(100, round(_BATCH_SECONDS / once)))
    count = max(3, min(BATCHES, round(PATIENCE_SECONDS / (once * calls))))
    times = [batch(calls) for _ in range(count)]
    middle = max(statistics.median(times), 1e-9)
    return middle, (max(times) - min(times)) / middle


def _wait_for_device(torch: ModuleType, ranks: JobRanks) -> None:
    if ranks.place.device == "cuda":
        torch.cuda.synchronize()


def _slowest(torch: ModuleType, dist: ModuleType, ranks: JobRanks, seconds: float) -> float:
    """The longest of a time over all ranks: all of them go on with the same number."""
    longest = torch.tensor([seconds], dtype=torch.float64, device=ranks.place.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest[0])


def _slowed(torch: ModuleType, dist: ModuleType, ranks: JobRanks, size: int) -> float:
    """How much longer computation takes while all devices sum up gradients, as a part of it.

    Parameters
    ----------
    torch, dist, ranks
        The modules, and the job.
    size
        Of the gradients. [B]
    """
    device = ranks.place.device
    gradients = torch.ones(size // _ELEMENT, device=device)
    matrix = torch.randn(256, 256, device=device)

    def compute() -> None:
        torch.matmul(matrix, matrix)

    dist.all_reduce(gradients)
    travel, _ = _timed_together(torch, dist, ranks, lambda: dist.all_reduce(gradients))
    once, _ = _timed_together(torch, dist, ranks, compute)
    # half as long as the gradients travel, so that they do for all of it
    calls = max(1, round(0.5 * travel / once))
    ratios = []
    for _ in range(_OVERLAP_ROUNDS):
        times = []
        for beside in (False, True):
            dist.barrier()
            moving = dist.all_reduce(gradients, async_op=True) if beside else None
            start = time.perf_counter()
            for _ in range(calls):
                compute()
            if device == "cuda":
                torch.cuda.current_stream().synchronize()
            times.append(time.perf_counter() - start)
            if moving is not None:
                moving.wait()
            _wait_for_device(torch, ranks)
        ratios.append(_slowest(torch, dist, ranks, times[1] / max(times[0], 1e-9)))
    return max(statistics.median(ratios) - 1.0, 0.0)

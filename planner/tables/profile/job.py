"""The processes that `planner profile --links` measures between: torchrun's, or some of its own."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from costmodels.errors import InputError
from planner.tables.profile.links import LARGEST, JobRanks, Tell, sweep_links
from planner.tables.profile.place import Place, find_place
from planner.tables.profile.store import MeasuredProfile, open_profile

_TIMEOUT = timedelta(minutes=5)
_MOST_RANKS = 64


def torchrun_ranks(environment: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Rank, ranks, and ranks of a host, as torchrun tells them; None without it."""
    try:
        rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local = int(environment.get("LOCAL_WORLD_SIZE", str(world)))
    except (KeyError, ValueError):
        return None
    return rank, world, local


def check_links(ranks: int | None, *, links: bool, device: str) -> None:
    """Refuse options of links that cannot be used.

    Parameters
    ----------
    ranks
        Processes to start, None for those of torchrun.
    links, device
        Whether links are measured, and between which devices.

    Raises
    ------
    InputError
        When there is nothing to measure between.
    """
    if ranks is not None and not links:
        raise InputError("--ranks are the processes that --links measures between; add --links")
    if not links:
        return
    started = torchrun_ranks(os.environ)
    if ranks is None and started is None:
        raise InputError(
            "--links measures between processes: start it by 'torchrun --nproc-per-node N -m "
            "planner profile --links ...', or give --ranks for processes of this machine"
        )
    if ranks is not None and started is not None:
        raise InputError("--ranks starts processes, but torchrun has done so; leave it out")
    count = ranks if started is None else started[1]
    if count is not None and not 2 <= count <= (_MOST_RANKS if started is None else 10**6):
        raise InputError.rule(
            "the processes to measure between",
            f"be from 2 to {_MOST_RANKS} on one machine",
            count,
            "give others",
        )
    if started is not None and started[1] % max(started[2], 1):
        raise InputError.rule(
            "WORLD_SIZE",
            f"be a multiple of LOCAL_WORLD_SIZE ({started[2]})",
            started[1],
            "start as many processes on every host",
        )
    if device == "cuda" and ranks is not None:
        find_place(device)
        import torch

        if ranks > torch.cuda.device_count():
            raise InputError.rule(
                "the processes to start (--ranks)",
                "be at most the GPUs of this machine, one each",
                ranks,
                f"there are {torch.cuda.device_count()}; give fewer, or --device cpu",
            )


def measure_links(
    output: str,
    *,
    device: str,
    ranks: int | None,
    threads: int | None,
    tell: Tell,
    most: int = LARGEST,
    processor_time: bool = False,
) -> MeasuredProfile | None:
    """Measure the links between processes, and write them.

    Parameters
    ----------
    output
        The file.
    device
        "cpu" (by gloo) or "cuda" (by NCCL).
    ranks
        Processes to start, None under torchrun.
    threads
        Threads of each on a CPU.
    tell
        Told how far it is.
    most
        Largest message. [B]
    processor_time
        Whether what the processes compute is measured instead of the time that passes.

    Returns
    -------
    MeasuredProfile or None
        What is known now; None in all processes of torchrun but the first.

    Raises
    ------
    InputError
        When a file or a device cannot be used, or a process died.
    """
    place = _place_of_rank(device, threads, processor_time)
    started = torchrun_ranks(os.environ)
    if started is not None:
        profile = open_profile(output, place.provenance) if started[0] == 0 else None
        _in_rank(started, "env://", place, profile, tell, most, processor_time)
        return profile
    assert ranks is not None, "checked before"
    open_profile(output, place.provenance)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        _started(ranks, (ranks, meeting, output, device, threads, most, processor_time), tell)
    return open_profile(output, place.provenance)


def _place_of_rank(device: str, threads: int | None, processor_time: bool) -> Place:
    return find_place(device, threads, time.process_time if processor_time else time.perf_counter)


def _started(ranks: int, arguments: tuple[object, ...], tell: Tell) -> None:
    """Start processes and wait for them; where one dies the others end, too."""
    import torch.multiprocessing as processes

    tell(f"measuring between {ranks} processes")
    try:
        processes.spawn(_spawned, arguments, nprocs=ranks, join=True)
    except processes.ProcessException as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(
            f"the links could not be measured, since a process died ({reason}); run it again"
        ) from None


def _spawned(
    rank: int,
    world: int,
    meeting: str,
    output: str,
    device: str,
    threads: int | None,
    most: int,
    processor_time: bool,
) -> None:
    place = _place_of_rank(device, threads, processor_time)
    profile = open_profile(output, place.provenance) if rank == 0 else None
    if device == "cpu" and threads is None:
        import torch

        torch.set_num_threads(1)
    job = (rank, world, world)
    _in_rank(job, meeting, place, profile, lambda text: None, most, processor_time)


def _in_rank(
    job: tuple[int, int, int],
    meeting: str,
    place: Place,
    profile: MeasuredProfile | None,
    tell: Tell,
    most: int,
    processor_time: bool,
) -> None:
    """What every process does.

    Parameters
    ----------
    job
        Rank, ranks, and ranks of a host.
    meeting
        Where the processes find each other.
    place, profile, tell, most, processor_time
        As of `measure_links`.
    """
    import torch
    import torch.distributed as dist

    rank, world, local = job
    if place.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    backend = "nccl" if place.device == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=meeting, rank=rank, world_size=world, timeout=_TIMEOUT
    )
    clock: Callable[[], float] = time.process_time if processor_time else time.perf_counter
    say: Tell = tell if rank == 0 else lambda text: None
    try:
        sweep_links(
            JobRanks(rank=rank, world=world, local=local, place=place, clock=clock),
            profile,
            say,
            most,
        )
        dist.barrier()
    finally:
        dist.destroy_process_group()

"""Several ranks on this machine, each a process; where one of them dies the others end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from costmodels.errors import InputError

_Result = TypeVar("_Result")
# How long a rank waits for another one. [s]
PATIENCE = 600.0


class RankError(Exception):
    """A rank that failed: what it said."""


def on_ranks(function: Callable[..., _Result], ranks: int, *args: object) -> list[_Result]:
    """What a function of a module returns on each of some ranks of one process group.

    Parameters
    ----------
    function
        Called with `args` on every rank, in a process of its own.
    ranks
        How many there are. [items]
    args
        What it is called with; copied to each rank.

    Raises
    ------
    InputError
        What a rank refused.
    RankError
        When a rank failed or died; the others are ended.
    """
    # forked from a process that has imported PyTorch, but has run none of it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["planner.torch.verify.work", "planner.torch.verify.training"])
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        pipes, processes = [], []
        for rank in range(ranks):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(function, rank, ranks, store, theirs, args), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        try:
            return _results(pipes, processes)
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()
                process.join()


def _results(pipes: list[Connection], processes: list[Any]) -> list[Any]:
    """What the ranks send, in order; the first failure ends the wait."""
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        open_ends = [pipe for rank, pipe in enumerate(pipes) if rank not in found]
        for ready in wait(open_ends):
            rank = next(n for n, pipe in enumerate(pipes) if pipe is ready)
            try:
                kind, value = pipes[rank].recv()
            except EOFError:
                processes[rank].join(1)
                raise RankError(
                    f"rank {rank} died ({_how(processes[rank].exitcode)}); the others were ended"
                ) from None
            if kind == "refused":
                raise InputError(value)
            if kind == "failed":
                # one that lost its peer says less than the peer itself
                time.sleep(0.2)
                raise RankError(f"rank {rank} failed, and the others were ended: {value}")
            found[rank] = value
    return [found[rank] for rank in range(len(pipes))]


def _how(code: int | None) -> str:
    if code is None:
        return "without a word"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _rank(
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    store: str,
    pipe: Connection,
    args: tuple[object, ...],
) -> None:
    """One rank: join the others, call the function, and send what it returns."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=PATIENCE),
        )
        value = function(*args)
        pipe.send(("done", value))
        dist.barrier()
        dist.destroy_process_group()
    except InputError as error:
        pipe.send(("refused", str(error)))
        os._exit(1)
    except Exception as error:
        text = traceback.format_exc().strip().splitlines()
        pipe.send(("failed", f"{type(error).__name__}: {error} ({text[-3].strip()})"))
        os._exit(1)

"""What the two ranks do: profile their shapes and links, and run the plans in turn.

Both ranks do the same at the same time, so that each sees the machine as the other leaves it. All
times are of the processor, of all threads of a process: what others do on the machine counts
little, and what gloo's own threads do counts. Shapes are profiled several times, between runs of
the plans: what disturbs a machine for seconds would tell one network's shapes apart from the rest.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks.measure.canary import Canary, is_steady
from benchmarks.measure.questions import RANKS, PlansQuestion, needs_of_plans, this_machine
from planner.tables.profile.links import JobRanks, sweep_links
from planner.tables.profile.place import MeasuredPlace, find_place, warm_up
from planner.tables.profile.run import ProfileRun
from planner.tables.profile.shape import Shape
from planner.tables.profile.store import open_profile
from planner.tables.profile.timing import Timing, batch_by_clock

LARGEST_MESSAGE: Final = 2**25
# Shape, precision and direction.
Timed = tuple[Shape, str, str]
# How often shapes are profiled, each time before a part of the runs. [times]
TURNS: Final = 3
# Of one measurement: tries until the canary is steady.
_TRIES: Final = 4
_WARM_UP: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What the ranks are to do.

    Parameters
    ----------
    questions
        What is run.
    folder
        Where profiles and results go.
    seconds
        How long plans are run in turn. [s]
    memory
        Of the machine. [B]
    """

    questions: tuple[PlansQuestion, ...]
    folder: str
    seconds: float
    memory: float


def agreed(*numbers: float) -> list[float]:
    """Means over the ranks of what each of them found, alike on all."""
    import torch
    import torch.distributed as dist

    together = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(together)
    return [float(one) / dist.get_world_size() for one in together]


def quiet_batch(canary: Canary) -> Callable[[Callable[[], object], int], float]:
    """Times a call by the processor's clock, at the pace that the machine had at first.

    All ranks time the same call at the same moment, as they compute in a step: each takes from the
    caches and the memory of the others. All are told the same time, so that they stay in step.
    Where the canary of any rank was disturbed, the call is timed again.
    """
    batch = partial(batch_by_clock, clock=time.process_time)

    def timed(call: Callable[[], object], calls: int) -> float:
        times = []
        for _ in range(_TRIES):
            agreed(0.0)  # a barrier
            before = canary.pace()
            seconds = batch(call, calls)
            after = canary.pace()
            here = not is_steady(before, after)
            seconds, disturbed = agreed(2.0 * seconds / (before + after), here)
            times.append(seconds)
            if not disturbed:
                return seconds
        # the fastest would be that which the other ranks left alone
        return statistics.median(times)

    return timed


def measure(rank: int, work: RankWork) -> None:
    """All that a rank does; the first one writes `table.json` and `steps.json`."""
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    folder = Path(work.folder)
    place = find_place("cpu", 1, time.process_time)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS
    )
    dist.barrier()
    warm_up(place)
    canary = Canary()
    place = MeasuredPlace(device="cpu", batch=quiet_batch(canary), provenance=place.provenance)
    own, first = (folder / f"table{number}.json" for number in (rank, 0))
    if rank and first.exists():
        own.write_bytes(first.read_bytes())  # what was measured before is so on all ranks
    dist.barrier()
    profile = open_profile(str(own), place.provenance)
    needs = needs_of_plans(list(work.questions), this_machine(work.memory))
    job = JobRanks(rank=rank, world=RANKS, local=RANKS, place=place, clock=time.process_time)
    plans, times = PlanRuns(work, canary), []
    for turn in range(TURNS):
        again = replace(profile, path=str(folder / f"again{rank}.json"), times={})
        found = again if turn else profile
        ProfileRun(needs, found, place).measure(lambda text: None)
        times.append(dict(found.times))
        dist.barrier()
        if turn == 0:
            sweep_links(job, profile if rank == 0 else None, lambda text: None, LARGEST_MESSAGE)
        plans.run(work.seconds / TURNS)
    profile.times.update(medians(times))
    profile.save()
    results = plans.results()
    if rank == 0:
        import json

        (folder / "steps.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def medians(turns: Sequence[Mapping[Timed, Timing]]) -> dict[Timed, Timing]:
    """Each time in the middle of those of several turns, with what they differ by."""
    found = {}
    for key in turns[0]:
        seconds = [turn[key].seconds for turn in turns if key in turn]
        middle = statistics.median(seconds)
        found[key] = Timing(seconds=middle, spread=(max(seconds) - min(seconds)) / middle)
    return found


class PlanRuns:
    """Runs all plans in turn, again and again.

    Parameters
    ----------
    work
        What to do.
    canary
        Tells how fast the machine is.
    """

    def __init__(self, work: RankWork, canary: Canary) -> None:
        from benchmarks.measure.steps import RECEIVED, PlanStep

        self.canary = canary
        self.steps = [(q.name, plan, PlanStep(q, plan)) for q in work.questions for plan in q.plans]
        self.received = []
        for _, _, step in self.steps:
            for _ in range(_WARM_UP):
                RECEIVED.count = 0.0
                step.run()
            self.received.append(RECEIVED.count)
        self.kept: list[list[float]] = [[] for _ in self.steps]
        self.disturbed: list[list[float]] = [[] for _ in self.steps]

    def run(self, seconds: float) -> None:
        """Run them until the time is over. [s]"""
        import torch.distributed as dist

        gc.collect()
        gc.disable()
        end, go_on = time.monotonic() + seconds, True
        while go_on:
            for number, (_, _, step) in enumerate(self.steps):
                dist.barrier()
                before = self.canary.pace()
                start = time.process_time()
                step.run()
                took = time.process_time() - start
                after = self.canary.pace()
                # both ranks' time, whether either was disturbed, and whether there is time left
                rest = (not is_steady(before, after), time.monotonic() >= end)
                took, loud, over = agreed(2.0 * took / (before + after), *rest)
                (self.disturbed if loud else self.kept)[number].append(took)
                go_on = go_on and not over
        gc.enable()

    def results(self) -> list[dict[str, object]]:
        """The median of what was not disturbed, of each plan."""
        rows = zip(self.steps, self.kept, self.disturbed, self.received, strict=True)
        return [
            {
                "question": name,
                "plan": plan,
                "seconds": statistics.median(quiet or loud),
                "runs": len(quiet),
                "rejected": len(loud),
                "received": count,
            }
            for (name, plan, _), quiet, loud, count in rows
        ]

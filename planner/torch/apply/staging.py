"""What each stage of a pipeline runs, and what stages hand on to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from planner.torch.apply.steps import Leaf, Program, RankStep


class StageSteps(Struct, frozen=True, kw_only=True):
    """What one stage runs.

    Parameters
    ----------
    number
        Which stage.
    runs
        Its steps in order, those that are computed again together each in a run of their own.
    again
        Whether each run is computed again.
    entering, leaving
        Results of other stages that come in, and results that go on to the next stage.
    leaves
        Its uses of weights.
    """

    number: int
    runs: tuple[tuple[RankStep, ...], ...]
    again: tuple[bool, ...]
    entering: tuple[object, ...]
    leaving: tuple[object, ...]
    leaves: tuple[Leaf, ...]

    @property
    def steps(self) -> list[RankStep]:
        """All of its steps."""
        return [step for run in self.runs for step in run]


def stage_programs(
    program: Program,
    result: object,
    stages: Sequence[Sequence[str]],
    again: Sequence[Sequence[Sequence[str]]],
) -> list[StageSteps]:
    """What every stage of a plan runs.

    Parameters
    ----------
    program
        What all of them run.
    result
        What the last stage hands on.
    stages
        Layers of each stage.
    again
        Segments of layers that each computes again.
    """
    stage_of = {name: number for number, names in enumerate(stages) for name in names}
    by_key = {step.key: step for step in program.steps}
    homes: dict[object, int] = {}
    for step in program.steps:
        if not _is_shared(step):
            before = [homes[key] for key in step.reads if key in homes]
            # a move is made where its tensor is; what stages hand on lies as it is read
            home = before[0] if step.move is not None and before else stage_of.get(step.layer, 0)
            homes[step.key] = max([home, *before])
    last = len(stages) - 1
    wanted: list[dict[object, None]] = [{} for _ in stages]
    for number in range(len(stages)):
        own = [step for step in program.steps if homes.get(step.key) == number]
        needed = _needed_results(own, by_key)
        if number == last:
            needed |= {result: None}
        wanted[number] = {key: None for key in needed if key in homes}
    found = []
    for number in range(len(stages)):
        own = [step for step in program.steps if homes.get(step.key) == number]
        needed = _needed_results(own, by_key)
        shared = [one for one in program.steps if _is_shared(one) and one.key in needed]
        kept = {step.key for step in (*own, *shared)}
        ordered = [step for step in program.steps if step.key in kept]
        runs, flags = _runs_of_steps(ordered, again[number])
        found.append(
            StageSteps(
                number=number,
                runs=runs,
                again=flags,
                entering=_results_across(number, wanted, homes),
                leaving=(result,) if number == last else _results_across(number + 1, wanted, homes),
                leaves=tuple(step.given["leaf"] for step in ordered if "leaf" in step.given),
            )
        )
    return found


def _is_shared(step: RankStep) -> bool:
    """Whether every stage that needs a result makes it: it does not depend on samples."""
    return "leaf" in step.given or not step.layer


def _needed_results(
    steps: Iterable[RankStep], by_key: dict[object, RankStep]
) -> dict[object, None]:
    """All that some steps read, and what that is made of where every stage makes it."""
    found: dict[object, None] = {}
    left = [key for step in steps for key in step.reads]
    while left:
        key = left.pop()
        if key in found:
            continue
        found[key] = None
        if key in by_key and _is_shared(by_key[key]):
            left += by_key[key].reads
    return found


def _results_across(
    number: int, wanted: Sequence[dict[object, None]], homes: dict[object, int]
) -> tuple[object, ...]:
    """What comes into a stage: what it or a later one reads of those before."""
    found = {
        key: None for later in wanted[number:] for key in later if homes.get(key, number) < number
    }
    order = list(homes)
    return tuple(sorted(found, key=order.index))


def _runs_of_steps(
    steps: Sequence[RankStep], segments: Sequence[Sequence[str]]
) -> tuple[tuple[tuple[RankStep, ...], ...], tuple[bool, ...]]:
    """Steps in runs of those that are computed again together, and those between."""
    segment_of = {name: number for number, names in enumerate(segments) for name in names}
    first = [step for step in steps if not step.layer]
    runs: list[list[RankStep]] = [first] if first else []
    flags = [False] if first else []
    before: int | None = -1
    for step in steps:
        if not step.layer:
            continue
        segment = segment_of.get(step.layer)
        if segment != before or not runs:
            runs.append([])
            flags.append(segment is not None)
        before = segment
        runs[-1].append(step)
    return tuple(map(tuple, runs)), tuple(flags)

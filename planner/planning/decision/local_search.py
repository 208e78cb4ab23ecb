"""Look around an assignment: runs of neighbouring layers split otherwise, judged by estimates.

Runs are taken from *donors*, other assignments such as those of patterns; borders of runs are
moved, and layers that take long are tried under each of their candidates. All moves are judged at
once; what the estimates like best is for the simulation to judge. Where memory binds, moves lead
to what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.planning.decision.finalists import Patterns
from planner.planning.decision.simulator import Choices

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# A network is cut at so many places at most; runs lie between two cuts. [items]
MOST_CUTS = 12
# Cuts that a run spans, besides those that reach to the first or to the last layer. [items]
SPANS = (1, 2, 4)
# Moves made one after the other, each the best of all. [items]
MOST_MOVES = 6
# Moves that gain less than this part of the step are not worth a simulation.
LEAST_GAIN = 1e-3
# Estimates are off by a percent or two: of moves whose estimates are no further from that of the
# base than this part of a step so many are simulated. [items]
CLOSE, MOST_OTHERS = 0.01, 5
# Layers by which the border of two runs that are split unlike is moved at most. [items]
FURTHEST = 8
# Layers that are tried under all of their candidates. [items]
HEAVY_LAYERS = 8
# Values of one table of assignments: larger ones are judged in parts. [items]
LARGEST_TABLE = 2_000_000
# Moves made one after the other until something fits each save as much at least of what was lacking
# at first: with 5 % a small Llama ended 5 % slower, and moves that save less take time. [parts]
LEAST_SAVED = 0.02


# Estimates of the step of assignments. [s]
Estimate = Callable[[Ints], Floats]
# What assignments hold beyond what there is. [B]
Beyond = Callable[[Ints], Floats]


def neighbours(
    estimate: Estimate,
    patterns: Patterns,
    base: Choices,
    donors: Sequence[Choices],
    beyond: Beyond | None = None,
) -> list[Choices]:
    """What moves lead to from an assignment: the best of each step in turn, and others as good.

    Parameters
    ----------
    estimate, patterns
        Judges assignments, and numbers their splits.
    base
        Where to begin.
    donors
        Assignments from which runs are taken.
    beyond
        Tells what does not fit, to which no move leads; by default all fits.
    """
    table = np.array(list(dict.fromkeys(donors)), dtype=np.int64)
    current = np.array(base, dtype=np.int64)
    step = float(estimate(current[None])[0])
    others: list[Choices] = []
    for number in range(MOST_MOVES):
        moves = _moves_from(current, table, patterns)
        if not len(moves):
            break
        steps = _in_parts(estimate, moves)
        if beyond is not None:
            # what is slower matters no more than what does not fit
            near = np.flatnonzero(steps <= step * (1.0 + CLOSE))
            steps[near[_in_parts(beyond, moves[near]) > 0.0]] = np.inf
        if not number:
            others = _closest(moves, steps, step)
        best = int(steps.argmin())
        if steps[best] > step * (1.0 - LEAST_GAIN):
            break
        current, step = moves[best], float(steps[best])
    return [choices for choices in dict.fromkeys([_tuple(current), *others]) if choices != base]


def made_to_fit(
    estimate: Estimate,
    patterns: Patterns,
    base: Choices,
    donors: Sequence[Choices],
    beyond: Beyond,
    passed: set[Choices],
    has_time: Callable[[], bool],
) -> Choices | None:
    """What moves lead to from an assignment that does not fit: something that does.

    Each is the move that costs the least for each byte that it saves of what is lacking.

    Parameters
    ----------
    estimate, patterns, base, donors
        As of `neighbours`.
    beyond
        What assignments lack. [B]
    passed
        What moves led to before, which is not gone on from again; it is added to.
    has_time
        Whether there is time for a move.

    Returns
    -------
    None where no moves lead there in time.
    """
    table = np.array(list(dict.fromkeys(donors)), dtype=np.int64)
    current = np.array(base, dtype=np.int64)
    step, lacking = float(estimate(current[None])[0]), float(beyond(current[None])[0])
    least = LEAST_SAVED * lacking
    while lacking > 0.0 and _tuple(current) not in passed and has_time():
        passed.add(_tuple(current))
        moves = _moves_from(current, table, patterns)
        saved = lacking - np.maximum(_in_parts(beyond, moves), 0.0)
        enough = saved >= min(least, lacking)
        if not enough.any():
            break
        moves, saved = moves[enough], saved[enough]
        steps = _in_parts(estimate, moves)
        best = int(((steps - step) / saved).argmin())
        current, step, lacking = moves[best], float(steps[best]), lacking - float(saved[best])
    return _tuple(current) if lacking <= 0.0 else None


def _moves_from(current: Ints, donors: Ints, patterns: Patterns) -> Ints:
    """All assignments that one move leads to."""
    moves = np.concatenate(
        [
            _run_moves(current, donors),
            _layer_moves(current, patterns),
            np.array(patterns.with_borders_moved(_tuple(current), FURTHEST), dtype=np.int64),
            patterns.with_another_split(_tuple(current)),
            patterns.with_users_moved(_tuple(current)),
        ]
    )
    found: Ints = moves[(moves != current).any(axis=1)]
    return found


def _closest(moves: Ints, steps: Floats, step: float) -> list[Choices]:
    """Some that the estimates do not tell from an assignment with that step, the best first."""
    found: dict[Choices, None] = {}
    for n in np.argsort(steps, kind="stable"):
        if steps[n] > step * (1.0 + CLOSE) or len(found) == MOST_OTHERS:
            break
        found[_tuple(moves[n])] = None
    return list(found)


def _tuple(choices: Ints) -> Choices:
    return tuple(choices.tolist())


def _layer_moves(current: Ints, patterns: Patterns) -> Ints:
    """The assignment with one layer under another candidate, for the layers that take longest.

    With it go the layers behind it that have no weights, or stay.
    """
    times = patterns.layer_times
    taken = [float(seconds[choice]) for seconds, choice in zip(times, current, strict=True)]
    heavy = sorted(range(len(times)), key=lambda i: (-taken[i], i))[:HEAVY_LAYERS]
    rows = []
    for layer in heavy:
        moved = np.repeat(current[None], len(times[layer]), axis=0)
        moved[:, layer] = np.arange(len(times[layer]))
        rows += [moved, patterns.followed(moved, layer)]
    return np.concatenate(rows)


def _run_moves(current: Ints, donors: Ints) -> Ints:
    """The assignment with one run taken from a donor, for all runs and donors."""
    runs = _runs(len(current))
    layers = np.arange(len(current))
    inside = np.array([(layers >= start) & (layers < end) for start, end in runs])
    return np.where(inside[:, None, :], donors[None], current).reshape(-1, len(current))


def _runs(count: int) -> list[tuple[int, int]]:
    """Runs of layers that are moved together: first, and one after the last."""
    number = min(MOST_CUTS, count)
    cuts = sorted({round(i * count / number) for i in range(number + 1)})
    pairs = {(a, b) for span in SPANS for a, b in zip(cuts, cuts[span:], strict=False)}
    pairs |= {(0, cut) for cut in cuts[1:]} | {(cut, count) for cut in cuts[:-1]}
    return sorted(pairs)


def _in_parts(judge: Callable[[Ints], Floats], rows: Ints) -> Floats:
    """What many assignments are judged to take. [s], [B]"""
    size = max(LARGEST_TABLE // rows.shape[1], 1)
    parts = [judge(rows[i : i + size]) for i in range(0, len(rows), size)]
    return np.concatenate(parts) if parts else np.zeros(0)


def simplified(
    estimate: Estimate, patterns: Patterns, base: Choices, allowed: float
) -> list[Choices]:
    """Assignments with ever fewer changes of split, until the estimate rises by the part allowed.

    A run of layers that are split alike gets the split of the run before or after it, where that
    costs least for each change that it saves.

    Parameters
    ----------
    estimate, patterns
        Judges assignments, and numbers their splits.
    base
        Where to begin.
    allowed
        How much longer a step may take, as a part of it.
    """
    found: list[Choices] = []
    current, changes = base, patterns.changes(base)
    limit = (1.0 + allowed) * float(estimate(np.array([base]))[0])
    while changes:
        moves = [
            (move, fewer)
            for move in patterns.merged(current)
            if (fewer := patterns.changes(move)) < changes
        ]
        if not moves:
            break
        steps = estimate(np.array([move for move, _ in moves]))
        rates = [
            (max(step - limit, 0.0), (step - limit) / (changes - fewer), n)
            for n, ((_, fewer), step) in enumerate(zip(moves, steps.tolist(), strict=True))
        ]
        beyond, _, best = min(rates)
        if beyond > 0.0:
            break
        current, changes = moves[best]
        found.append(current)
    return found

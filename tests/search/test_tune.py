"""Tuning tries all of a small space, and part of a large one in a way the seed decides."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from search import ProblemError, tune

SMALL: dict[str, list[Any]] = {"stages": [1, 2, 4], "recompute": [False, True]}
LARGE: dict[str, list[Any]] = {"x": list(range(20)), "y": list(range(20)), "kind": ["a", "b"]}


def _bowl(p: dict[str, Any]) -> float:
    x, y = float(p["x"]), float(p["y"])
    return (x - 13) ** 2 + (y - 4) ** 2 + (5 if p["kind"] == "a" else 0)


def test_a_small_space_is_tried_completely() -> None:
    tuning = tune(lambda p: p["stages"] * (2 - p["recompute"]), SMALL, max_trials=6)
    assert (tuning.method, tuning.complete, len(tuning.trials)) == ("grid", True, 6)
    assert tuning.best is not None
    assert tuning.best.parameters == {"stages": 1, "recompute": True}
    assert [t.value for t in tuning.ranked] == sorted(t.value for t in tuning.trials)


def test_a_large_space_is_sampled_without_repeats_and_by_the_seed() -> None:
    first, again, other = (tune(_bowl, LARGE, max_trials=60, seed=s) for s in (1, 1, 2))
    assert (first.method, first.complete, len(first.trials)) == ("tpe", False, 60)
    assert first == again
    assert [t.parameters for t in first.trials] != [t.parameters for t in other.trials]
    assert len({tuple(t.parameters.values()) for t in first.trials}) == 60
    assert first.best is not None
    # A random draw of 60 out of 800 does worse than this nine times in ten.
    assert first.best.value <= 5


def test_impossible_combinations_are_never_best() -> None:
    def objective(p: dict[str, Any]) -> float:
        return math.nan if p["recompute"] else math.inf if p["stages"] == 1 else p["stages"]

    best = tune(objective, SMALL, max_trials=10).best
    assert best is not None
    assert best.parameters == {"stages": 2, "recompute": False}
    assert tune(lambda p: math.inf, SMALL, max_trials=10).best is None
    assert tune(lambda p: math.nan, LARGE, max_trials=5).best is None


def test_time_and_interrupts_stop_it() -> None:
    def slow(p: dict[str, Any]) -> float:
        time.sleep(0.01)
        return 0.0

    tuning = tune(slow, SMALL, max_trials=6, time_limit=0.0)
    assert (len(tuning.trials), tuning.stopped_by, tuning.complete) == (1, "time limit", False)

    def interrupted(p: dict[str, Any]) -> float:
        if p["stages"] == 2:
            raise KeyboardInterrupt
        return 1.0

    tuning = tune(interrupted, SMALL, max_trials=6)
    assert (len(tuning.trials), tuning.stopped_by) == (2, "interrupt")


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ProblemError, match="stages has none"):
        tune(lambda p: 0.0, {"stages": []}, max_trials=3)
    with pytest.raises(ProblemError, match="at least 1 but is 0"):
        tune(lambda p: 0.0, SMALL, max_trials=0)


def test_it_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    tune(_bowl, LARGE, max_trials=3)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""

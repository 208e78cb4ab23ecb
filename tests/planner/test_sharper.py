"""Sharper bounds are below every plan, of candidates too that the search did not see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from random_plans import random_choices, random_formulation

import planner
from planner.planning.bounds import sharper
from planner.planning.bounds.in_order import ROUNDED
from planner.planning.bounds.sharper import Sharper, TooMuchIsNear
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.space.formulate import Formulation
from search.problem.deadline import Deadline

MIB = 2.0**20
# What is summed in another order differs in the last digits.
ROUNDING = 1e-9
SIZES = (0.25 * MIB, MIB, 25 * MIB, 2.0**40)
# Candidates that the search sees, and those that plans are drawn from.
FEW, MANY = 6, 400


def descended(f: Formulation, rng: np.random.Generator, bucket_bytes: float, tries: int) -> float:
    """The step of a fast assignment, found by random changes of single layers. [s]"""
    simulator = PlanSimulator(f)
    drawn = [random_choices(f, rng) for _ in range(tries)]
    steps = [simulator.simulate(choices, bucket_bytes).seconds for choices in drawn]
    best, seconds = drawn[int(np.argmin(steps))], min(steps)
    for _ in range(tries):
        changed = list(best)
        place = int(rng.integers(len(changed)))
        changed[place] = int(rng.integers(len(f.spaces[f.layers[place].name].candidates)))
        step = simulator.simulate(tuple(changed), bucket_bytes).seconds
        if step < seconds:
            best, seconds = tuple(changed), step
    return seconds


def refuted(seeds: Sequence[int], tries: int) -> tuple[list[tuple[int, float]], int]:
    """Seeds with bounds above a simulated step or a lower bound, as parts, and how many bounds."""
    found, count = [], 0
    for seed in seeds:
        size = SIZES[seed % len(SIZES)]
        seen, every = (
            random_formulation(np.random.default_rng(seed), cap, bucket_bytes=size)
            for cap in (FEW, MANY)
        )
        if seen.shared or not seen.machine.training.gradient_overlap:
            continue
        rng = np.random.default_rng(seed)
        step = descended(every, rng, size, tries)
        sizes = (size / float(rng.choice([1.0, 4.0])), size)
        first = PlanSimulator(seen).runtime.first_bucket
        search = Sharper.of(seen, sizes, first, Deadline(None))
        try:
            bound = search.below(step * 1.02, Deadline(None)).bound
            # what is left out where less is asked for is nothing that is below that
            again = search.below(bound * 1.02, Deadline(None)).bound
        except TooMuchIsNear:
            continue
        count += 1
        highest = max(bound / step, again / (bound * (1.0 + 2.0 * ROUNDED)))
        if highest > 1.0 + ROUNDING:
            found.append((seed, highest))
    return found, count


@pytest.mark.slow
def test_no_plan_is_faster_than_its_bound(monkeypatch):
    monkeypatch.setattr(sharper, "MOST_LABELS", 50_000)
    above, count = refuted(range(10), 30)
    assert above == []
    assert count >= 3


@pytest.mark.slow
def test_no_plan_of_many_networks_is_faster_than_its_bound():
    above, count = refuted(range(1000, 1100), 60)
    assert above == []
    assert count >= 20


@pytest.mark.parametrize("part", [0.01, 0.5])
def test_nothing_is_found_below_what_nothing_takes_less_than(part):
    done = 0
    for seed in range(6):
        seen = random_formulation(np.random.default_rng(seed), FEW, bucket_bytes=MIB)
        if seen.shared or not seen.machine.training.gradient_overlap:
            continue
        first = PlanSimulator(seen).runtime.first_bucket
        search = Sharper.of(seen, (MIB, MIB), first, Deadline(None))
        least = search.below(search.least.bound * part, Deadline(None))
        assert (least.bound, least.splits) == (search.least.bound * part, ())
        done += 1
    assert done


@pytest.mark.slow
def test_an_interrupt_leaves_the_plan_that_was_to_be_sharpened(monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sharper, "below", interrupt)
    plan = planner.optimize("alexnet", gpus=64)
    assert plan.search.stopped_by == "interrupt"
    assert 0.0 < plan.search.lower_bound_s < plan.step_time_s

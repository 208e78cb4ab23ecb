"""Bounds with gradients in their order: below simulated steps, and found by search as stated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from random_plans import BUCKETS, random_choices, random_formulation

import planner
from planner.planning.bounds import sharper
from planner.planning.bounds.in_order import ROUNDED, OrderedSearch
from planner.planning.decision.choice import EQUAL
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.space.formulate import Formulation
from search.problem.deadline import Deadline

# What is summed in another order differs in the last digits.
ROUNDING = 1e-9
FIRST = 2.0**20
# More labels than there are.
MANY = 10**6


def formulations(seeds: Sequence[int], cap: int = 40) -> Iterator[tuple[Formulation, object]]:
    """Random networks on random machines, of those that are searched in that order."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        f = random_formulation(rng, cap)
        if not f.shared and f.machine.training.gradient_overlap:
            yield f, rng


def bound_of(
    f: Formulation, choices: Sequence[int], sizes: tuple[float, float], worst: float
) -> float:
    """What one assignment takes at least, or `worst` if that is less. [s]"""
    kept = [np.array([choice]) for choice in choices]
    return OrderedSearch(f, kept, sizes, FIRST).below(worst, MANY, 1, Deadline(None)).bound


def above_their_steps(seeds: Sequence[int]) -> list[float]:
    """Bounds of random assignments that are above their simulated steps, as parts of these."""
    found = []
    for f, rng in formulations(seeds):
        for _ in range(8):
            choices, bucket = random_choices(f, rng), float(rng.choice(BUCKETS))
            simulator = PlanSimulator(f)
            assert simulator.runtime.first_bucket == FIRST
            step = simulator.simulate(choices, bucket).seconds
            wider = float(rng.choice([1.0, 4.0]))
            # with so little room above the step, what is left out wrongly shows as well
            bound = bound_of(f, choices, (bucket / wider, bucket), step * 1.01)
            if bound > step * (1.0 + ROUNDING):
                found.append(bound / step)
    return found


@pytest.mark.slow
def test_no_simulated_step_is_below_its_bound():
    assert above_their_steps(range(140, 155)) == []


@pytest.mark.slow
def test_no_simulated_step_of_thousands_is_below_its_bound():
    assert above_their_steps(range(1000, 1500)) == []


@pytest.mark.parametrize("seed", [2, 3, 5, 8])
def test_a_search_finds_what_no_assignment_is_below(seed):
    f, rng = next(formulations(range(10 * seed, 10 * seed + 10), cap=8))
    kept = [np.arange(len(f.spaces[layer.name].candidates)) for layer in f.layers]
    sizes, simulator = (2.0**16, 2.0**22), PlanSimulator(f)
    drawn = [random_choices(f, rng) for _ in range(40)]
    worst = 1.05 * min(simulator.simulate(choices, sizes[1]).seconds for choices in drawn)
    found = OrderedSearch(f, kept, sizes, FIRST).below(worst, MANY, 3, Deadline(None))
    for choices in drawn:
        assert found.bound <= bound_of(f, choices, sizes, worst) * (1.0 + ROUNDED)
    own = bound_of(f, found.choices[0], sizes, worst)
    assert own < worst
    assert own == pytest.approx(found.bound, rel=2.0 * ROUNDED)


def test_all_sizes_at_once_are_no_sharper_than_each():
    f, rng = next(formulations(range(20)))
    choices, simulator = random_choices(f, rng), PlanSimulator(f)
    sizes = (2.0**16, 2.0**20, 2.0**24)
    worst = max(simulator.simulate(choices, size).seconds for size in sizes)
    both = bound_of(f, choices, (sizes[0], sizes[-1]), worst)
    for size in sizes:
        assert both <= bound_of(f, choices, (size, size), worst) * (1.0 + ROUNDED)


@pytest.mark.slow
def test_a_plan_that_waits_for_gradients_is_bounded_closely(monkeypatch):
    # enough for what is near the bound, but not for all that is below the first plan
    monkeypatch.setattr(sharper, "MOST_LABELS", 40_000)
    plan = planner.optimize("alexnet", gpus=64)
    assert plan.search.gap < 0.01
    assert plan.search.lower_bound_s <= plan.step_time_s


@pytest.mark.slow
def test_more_candidates_give_no_slower_plan_that_waits_for_gradients():
    few, usual, many = (planner.optimize("alexnet", gpus=256, cap=c) for c in (64, None, 2000))
    assert usual.step_time_s <= few.step_time_s * (1.0 + EQUAL)
    assert many.step_time_s <= usual.step_time_s * (1.0 + EQUAL)
    assert max(plan.search.gap for plan in (few, usual, many)) < 0.02

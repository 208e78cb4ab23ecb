"""No simulated step is below any of its terms, and so none is below a bound that they give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import cluster, graph, machine
from random_plans import random_formulation, random_steps

from costmodels.distribution import Distribution
from planner.planning.bounds.additive_search import AdditiveSearch
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.space.formulate import formulate
from planner.planning.space.profile import PLAIN, SLOWED, gaps_of
from planner.simulation.run import OVERLAP_FACTOR, waiting_time
from search.problem.deadline import Deadline

# What is summed in another order differs in the last digits.
ROUNDING = 1e-9


def below_the_terms(seed: int, plans: int) -> list[float]:
    """The steps that are below one of their terms, as parts of it."""
    found = []
    for f, choices, step in random_steps(seed, plans):
        largest = float(f.terms(choices).max())
        if largest > step * (1.0 + ROUNDING):
            found.append(step / largest)
    return found


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("seed", [11, 12])
def test_no_simulated_step_is_below_a_term(seed):
    assert below_the_terms(seed, 60) == []


@pytest.mark.slow
@settings(max_examples=300)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_simulated_step_of_six_thousand_is_below_a_term(seed):
    """300 networks and machines, 20 assignments of each."""
    assert below_the_terms(seed, 20) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_assignment_met_is_simulated_below_the_bound(seed):
    f = random_formulation(np.random.default_rng(seed), cap=12)
    search = AdditiveSearch(formulation=f, method="auto", seed=0, deadline=Deadline(None))
    maximise_bound(search)
    simulator, bucket = PlanSimulator(f), f.machine.training.bucket_bytes
    assert search.incumbent.bound > 0.0
    for choices in search.seen:
        step = simulator.simulate(choices, bucket).seconds
        assert search.incumbent.bound <= step * (1.0 + ROUNDING)


def test_a_plain_data_parallel_step_is_nearly_its_largest_term():
    where = cluster(8)
    rows = [(f"fc{n}", "linear", {"filters": 4096}) for n in range(12)]
    g = graph({"channel": 4096}, rows, 65536)
    m = machine(where, bucket_bytes=1.0)
    split = {"sample": (8,)}
    f = formulate(g, where, m, cap=10**6, bucket_bytes=1.0)
    choices = tuple(
        next(
            c
            for c in range(len(f.spaces[layer.name].candidates))
            if f.spaces[layer.name].candidates.distribution(c).degrees == split
        )
        for layer in f.layers
    )
    step = PlanSimulator(f).simulate(choices, 1.0).seconds
    terms = f.terms(choices)
    assert terms.max() == pytest.approx(step, rel=0.01)
    # computation waits for the slowest device, and is slowed by the all-reduces beside it
    plain, slowed = terms[PLAIN, 0], terms[SLOWED, 0]
    chosen = [(f.spaces[x.name].costs, c) for x, c in zip(f.layers, choices, strict=True)]
    compute = sum(float(costs.compute[c]) for costs, c in chosen)
    reduced = sum(float(costs.gradient_time[c]) for costs, c in chosen)
    assert plain == pytest.approx(compute * (1.0 + waiting_time(1.0, 8)))
    assert slowed - plain == pytest.approx(OVERLAP_FACTOR * reduced)


@pytest.mark.parametrize("bucket_bytes", [1.0, 2.0**18])
def test_a_first_bucket_may_be_larger_than_the_others(bucket_bytes):
    """Of many small gradients one all-reduce may be made, however small buckets are to be."""
    where = cluster(8)
    rows = [(f"fc{n}", "linear", {"filters": 128}) for n in range(12)]
    g = graph({"channel": 128}, rows, 8)
    f = formulate(g, where, machine(where, bucket_bytes=bucket_bytes), cap=10**6)
    split = Distribution(degrees={"sample": (8,)}, shape=(8,))
    choices = f.choices({layer.name: split for layer in f.layers})
    step = PlanSimulator(f).simulate(choices, bucket_bytes).seconds
    assert float(f.terms(choices).max()) <= step * (1.0 + ROUNDING)


def test_messages_of_branches_may_hide_and_those_of_neighbours_not():
    g = graph(
        {"channel": 8, "width": 16},
        [
            ("first", "conv", {"filters": 8, "kernel": 1}),
            ("left", "conv", {"filters": 8, "kernel": 1}),
            ("right", "conv", {"filters": 8, "kernel": 1}, ("first",)),
            ("both", "add", {}, ("left", "right")),
        ],
        4,
    )
    first, left, right, both = gaps_of(g)
    # nothing reads `left` right away, and what `right` reads was there before
    assert (first.before, first.after, left.before, left.after) == (True, True, True, False)
    assert (right.before, right.after, both.before, both.after) == (False, True, True, False)
    assert (left.back_after, right.back_after, both.back_after) == (True, False, True)
    # the sums of several inputs are of several layers
    assert (right.sums, both.sums) == (False, False)
    assert (left.sums, both.back_before) == (True, True)

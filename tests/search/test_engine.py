"""Bounds hold, tree moves keep their books, and the engine finds what brute force finds."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cores import allowed, cores, optimum, random_core

from search.core.core import Core
from search.core.messages import Messages, priced
from search.core.pricing import Pricing, proven
from search.core.tree_moves import TreeSearch
from search.core.tree_state import MoveRules
from search.engine import wide
from search.engine.wide import RoundSearch, close_gap, search_core
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent

SLACK = 1e-6


def some_prices(core: Core, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 1, core.num_rows) * (rng.random(core.num_rows) < 0.7)


@pytest.mark.slow
@settings(max_examples=150)
@given(cores(), st.integers(0, 99))
def test_prices_and_messages_bound_the_optimum(core: Core, seed: int) -> None:
    prices = some_prices(core, seed)
    messages = Messages(core)
    costs = priced(core.graph.offsets, core.costs, core.holdings, prices)
    best = optimum(core)
    before = -math.inf
    for _ in range(6):
        bound = proven(core, messages.passes(costs), prices)
        assert before - SLACK <= bound <= best + SLACK
        before = bound


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["tree", "chain"]))
def test_messages_are_exact_on_trees(seed: int, shape: str) -> None:
    core = random_core(seed, shape, tightness=None)
    messages = Messages(core)
    bound = messages.passes(core.costs, 2) + core.constant
    best = min(cost for cost, _ in allowed(core))
    assert bound == pytest.approx(best)
    assert core.cost(messages.choices) == pytest.approx(best)


@pytest.mark.slow
@settings(max_examples=150)
@given(cores(), st.integers(0, 99), st.integers(1, 4))
def test_reduced_costs_bound_what_a_candidate_costs(core: Core, seed: int, passes: int) -> None:
    prices = some_prices(core, seed)
    messages = Messages(core)
    costs = priced(core.graph.offsets, core.costs, core.holdings, prices)
    # The bound of a pass holds together with what the next one gathers.
    bound = proven(core, messages.passes(costs, passes), prices)
    messages.passes(costs)
    reduced = messages.reduced
    assert (reduced >= 0).all()
    for cost, x in allowed(core):
        if (core.profile(x) <= core.limit).all():
            taken = core.graph.offsets[:-1] + x
            assert (bound + reduced[taken] <= cost + SLACK).all()


@pytest.mark.slow
@settings(max_examples=80)
@given(cores(), st.integers(0, 2**31), st.floats(0, 3), st.booleans())
def test_tree_moves_keep_their_books(core: Core, seed: int, heat: float, limited: bool) -> None:
    start = np.zeros(core.num_nodes, dtype=np.int64)
    fits = (core.profile(start) <= core.limit).all()
    under = limited and bool(fits)
    rules = MoveRules(4, heat, core.limit if under else math.inf, rise=1.1, decay=0.9)
    search = TreeSearch(core, start, some_prices(core, seed), seed)
    search.run(2e3, rules, keep_best=under)
    assert (search.usage == core.profile(search.choices)).all()
    assert (search.choices >= 0).all()
    assert (search.choices < core.graph.sizes).all()
    if under:
        assert (search.usage <= core.limit).all()
        if math.isfinite(search.best_cost[0]):
            assert core.cost(search.best) == pytest.approx(search.best_cost[0] + core.constant)
            assert (core.profile(search.best) <= core.limit).all()


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_one_move_over_a_whole_tree_is_exact(seed: int) -> None:
    core = random_core(seed, "tree", tightness=None)
    search = TreeSearch(core, np.zeros(core.num_nodes, dtype=np.int64), core.base * 0.0, seed)
    search.run(5e3, MoveRules(10 * core.num_nodes))
    assert core.cost(search.choices) == pytest.approx(min(cost for cost, _ in allowed(core)))


@settings(max_examples=60)
@given(cores())
def test_prices_only_raise_the_bound(core: Core) -> None:
    pricing = Pricing(core)
    best = optimum(core)
    before = -math.inf
    for _ in range(30):
        pricing.step(best)
        assert before <= pricing.bound <= best + SLACK
        assert (pricing.prices >= 0).all()
        before = pricing.bound


@pytest.mark.slow
@settings(max_examples=60)
@given(cores())
def test_rounds_of_dives_never_claim_too_much(core: Core) -> None:
    seen: list[tuple[float, float]] = []
    known: Incumbent[np.ndarray] = Incumbent(watch=lambda c, b: seen.append((c, b)))
    RoundSearch(core=core, known=known, deadline=Deadline(None), seed=1).run()
    best = optimum(core)
    assert known.bound <= best + SLACK
    if known.choices is not None:
        assert core.fits(known.choices)
        assert known.cost == core.cost(known.choices) >= best - SLACK
    costs, bounds = [c for c, _ in seen], [b for _, b in seen]
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)


@settings(max_examples=40)
@given(cores())
def test_the_gap_is_closed_exactly(core: Core) -> None:
    found: Incumbent[np.ndarray] = Incumbent()
    search_core(core, found, deadline=Deadline(None), seed=0)
    best = optimum(core)
    if math.isinf(best):
        assert found.choices is None
        assert found.bound == math.inf
    else:
        assert found.cost == pytest.approx(best)
        assert found.bound == pytest.approx(best)


def medium() -> Core:
    """A core that takes the engine several rounds."""
    return random_core(3, "dag", num_nodes=24, candidates=(5, 8), tightness=0.5)


def test_the_same_work_gives_the_same_answer() -> None:
    core = medium()
    answers = []
    for _ in range(2):
        known: Incumbent[np.ndarray] = Incumbent()
        search = RoundSearch(core=core, known=known, deadline=Deadline(None, 0.2), seed=5)
        search.run()
        assert known.choices is not None
        answers.append((known.choices.tolist(), known.bound, search.dives))
    assert answers[0] == answers[1]


ANSWER = """
import sys; sys.path.insert(0, "tests/search")
from test_engine import medium
from search.engine.wide import RoundSearch
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent
known = Incumbent()
search = RoundSearch(core=medium(), known=known, deadline=Deadline(None, 0.003), seed=5)
search.run()
print(known.choices.tolist(), known.bound, search.dives, "numba" in sys.modules)
"""


@pytest.mark.slow
def test_plain_python_gives_the_same_answer() -> None:
    shown = []
    for hide in ("", "import sys; sys.modules['numba'] = None\n"):
        run = subprocess.run(
            [sys.executable, "-c", hide + ANSWER], capture_output=True, text=True, check=True
        )
        shown.append(run.stdout.rsplit(" ", 1)[0])
    assert shown[0] == shown[1]


def test_a_gap_too_wide_for_cp_sat_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "EXACT_PAIRS", 0)
    search = RoundSearch(core=medium(), known=Incumbent(), deadline=Deadline(None), seed=5)
    search.pricing.step(math.inf)
    assert close_gap(search, 0.5) is None
    assert not search.known.closed

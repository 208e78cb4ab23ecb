"""Mean value analysis against textbooks and exact Markov chains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.throughput import (
    FIRST_COME,
    PROCESSOR_SHARING,
    mean_values,
)


def test_machine_repairman_is_the_textbook_recursion() -> None:
    think, service, queue = 5.0, 1.0, 0.0
    for customers in range(1, 30):
        response = service * (1.0 + queue)
        rate = customers / (think + response)
        queue = rate * response
        found = mean_values([customers], think, [[service]], [PROCESSOR_SHARING])
        assert found.exact
        assert found.cycle_rate[0] == pytest.approx(rate, rel=1e-12)
        assert found.queue[0, 0] == pytest.approx(queue, rel=1e-12)
    # and the closed form by the Erlang loss formula: utilisation is 1 - p(nobody)
    weights = [1.0]
    for n in range(1, 30):
        weights.append(weights[-1] * (29 - n + 1) * service / think)
    assert found.busy[0] == pytest.approx(1.0 - 1.0 / sum(weights), rel=1e-9)


def per_worker(think: list[float], service: list[list[float]], disciplines: list[str]) -> list:
    """Equations 1 and 2 as printed: over all subsets of workers, one task each."""
    num, stations = len(think), range(len(disciplines))
    queue: dict[tuple[int, ...], list[list[float]]] = {}
    busy: dict[tuple[int, ...], list[list[float]]] = {}
    rates: dict[tuple[int, ...], list[float]] = {}
    for state in sorted(itertools.product((0, 1), repeat=num), key=sum):
        queue[state] = [[0.0] * len(disciplines) for _ in range(num)]
        busy[state] = [[0.0] * len(disciplines) for _ in range(num)]
        rates[state] = [0.0] * num
        for k in range(num):
            if not state[k]:
                continue
            less = tuple(n - (j == k) for j, n in enumerate(state))
            response = []
            for s in stations:
                if disciplines[s] == PROCESSOR_SHARING:
                    seen = sum(queue[less][j][s] for j in range(num))
                    response.append(service[k][s] * (1.0 + seen))
                else:
                    rest = sum(
                        service[j][s] * (queue[less][j][s] - 0.5 * busy[less][j][s])
                        for j in range(num)
                    )
                    response.append(service[k][s] + rest)
            rates[state][k] = 1.0 / (think[k] + sum(response))
            queue[state][k] = [rates[state][k] * t for t in response]
            busy[state][k] = [rates[state][k] * t for t in service[k]]
    return rates[(1,) * num]


@pytest.mark.parametrize("network", [PROCESSOR_SHARING, FIRST_COME])
@pytest.mark.parametrize("counts", [(5,), (3, 2), (2, 1, 3)])
def test_classes_are_the_recursion_over_subsets_of_workers(network, counts) -> None:
    rng = np.random.default_rng(sum(counts))
    think, service = rng.uniform(1, 9, len(counts)), rng.uniform(0.2, 2, (len(counts), 3))
    disciplines = [network, PROCESSOR_SHARING, network]
    found = mean_values(counts, think, service, disciplines)
    of = [c for c, n in enumerate(counts) for _ in range(n)]
    single = per_worker([think[c] for c in of], [list(service[c]) for c in of], disciplines)
    for c, n in enumerate(counts):
        assert found.cycle_rate[c] == pytest.approx(n * single[of.index(c)], rel=1e-12)


def markov_rates(think: list[float], service: list[list[float]]) -> np.ndarray:
    """Rounds a second of each of some workers: the balance equations of all their states."""
    stages = 1 + len(service[0])
    states = list(itertools.product(range(stages), repeat=len(think)))
    index = {state: i for i, state in enumerate(states)}
    generator = np.zeros((len(states), len(states)))
    finishes = np.zeros((len(states), len(think)))
    for state, i in index.items():
        for k, stage in enumerate(state):
            if stage == 0:
                rate = 1.0 / think[k]
                finishes[i, k] = rate
            else:
                rate = 1.0 / (service[k][stage - 1] * state.count(stage))
            after = (*state[:k], (stage + 1) % stages, *state[k + 1 :])
            generator[i, index[after]] += rate
            generator[i, i] -= rate
    equations = np.vstack([generator.T, np.ones(len(states))])
    steady = np.linalg.lstsq(equations, np.append(np.zeros(len(states)), 1.0), rcond=None)[0]
    return steady @ finishes


@pytest.mark.parametrize(
    ("counts", "seed"), [((3,), 0), ((1, 1), 1), ((2, 1), 2), ((1, 1, 1), 3), ((4,), 4)]
)
def test_processor_sharing_is_the_exact_markov_chain(counts, seed) -> None:
    rng = np.random.default_rng(seed)
    think, service = rng.uniform(0.5, 5, len(counts)), rng.uniform(0.2, 2, (len(counts), 3))
    of = [c for c, n in enumerate(counts) for _ in range(n)]
    chain = markov_rates([think[c] for c in of], [list(service[c]) for c in of])
    found = mean_values(counts, think, service, [PROCESSOR_SHARING] * 3)
    for c in range(len(counts)):
        total = sum(rate for rate, kind in zip(chain, of, strict=True) if kind == c)
        assert found.cycle_rate[c] == pytest.approx(total, rel=1e-9)


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    network=st.sampled_from([PROCESSOR_SHARING, FIRST_COME]),
    seed=st.integers(0, 1000),
    limit=st.sampled_from([1, 10**6]),
)
@settings(max_examples=60)
def test_littles_law_and_no_station_is_more_than_busy(counts, network, seed, limit) -> None:
    rng = np.random.default_rng(seed)
    think, service = rng.uniform(0.1, 9, len(counts)), rng.uniform(0.01, 3, (1, 3))
    # equal service times, as in the models: then first come, first served has bounded load too
    service = np.repeat(service, len(counts), axis=0)
    found = mean_values(
        counts, think, service, [network, PROCESSOR_SHARING, network], max_populations=limit
    )
    assert found.exact == (limit > 1)
    thinking = found.cycle_rate * think
    assert thinking + found.queue.sum(axis=1) == pytest.approx(np.array(counts, dtype=float))
    # equation 2 overshoots, see the module; the models bound it
    assert found.busy.max() <= (1.0 + 1e-9 if network == PROCESSOR_SHARING else 4 / 3)


def test_the_approximation_is_close_and_says_what_it_is() -> None:
    service = np.array([[0.2, 0.01, 0.2], [0.2, 0.01, 0.2]])
    exact = mean_values([12, 8], [0.3, 0.8], service, [PROCESSOR_SHARING] * 3)
    near = mean_values([12, 8], [0.3, 0.8], service, [PROCESSOR_SHARING] * 3, max_populations=10)
    assert exact.exact
    assert not near.exact
    assert near.cycle_rate == pytest.approx(exact.cycle_rate, rel=0.03)

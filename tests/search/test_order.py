"""Elimination orders."""

from __future__ import annotations

import random

import pytest

from search.elimination.order import plan_elimination


@pytest.mark.parametrize("seed", [0, 17, 112, 165, 203])
def test_an_order_holds_every_node_also_when_the_second_try_is_given_up(seed: int) -> None:
    chance = random.Random(seed)
    count = 60
    sizes = [chance.choice([50, 60, 76]) for _ in range(count)]
    pairs = [(i, i + 1) for i in range(count - 1)]
    pairs += [
        (i, min(count - 1, i + chance.randint(2, 5)))
        for i in range(0, count - 2, chance.randint(2, 4))
    ]
    order = plan_elimination(sizes, pairs, max_elements=2.0**40)
    assert sorted(order.nodes) == list(range(count))

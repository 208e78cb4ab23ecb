"""Sums over units of layers are those of each unit, whatever their sizes and order."""

from __future__ import annotations

import numpy as np
import pytest

from planner.joint.units import Units


@pytest.mark.parametrize("seed", range(5))
def test_sums_of_units_are_those_of_each(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 200, 12)
    order = random.permutation(int(sizes.sum()))
    ends = np.cumsum(sizes)[:-1]
    places = [sorted(part.tolist()) for part in np.split(order, ends)]
    values = random.random(len(order)) * 10.0 ** random.integers(-9, 9, len(order))
    units = Units(places)
    each = [float(values[layers].sum()) for layers in places]
    # to the last bit: what is estimated to be equal stays so
    assert units.sums(values).tolist() == each
    at_firsts = np.zeros(len(values))
    at_firsts[[layers[0] for layers in places]] = each
    assert units.at_firsts(values).tolist() == at_firsts.tolist()


def test_no_units_have_no_sums() -> None:
    assert Units([]).sums(np.ones(3)).tolist() == []

"""Distributions and their enumeration: against every way there is, and against the rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from costmodels.distribution import (
    Candidates,
    Distribution,
    enumerate_candidates,
    factorisations,
    limit_reason,
)
from costmodels.distribution.rows import distinct
from costmodels.errors import InputError
from costmodels.graph import DIMS, Axis, Layer, Tensor


def layer(**dims: int) -> Layer:
    axes = tuple(Axis(name=d, extent=n, dim=d) for d, n in dims.items())
    tensor = Tensor(axes=axes)
    return Layer(
        name="layer",
        kind="activation",
        dims=dims,
        inputs=(tensor,),
        output=tensor,
        splittable=frozenset(dims),
    )


def brute_force(
    extents: dict[str, int], shape: tuple[int, ...], host: int, full: bool
) -> set[tuple[tuple[int, ...], ...]]:
    """Try every degree of every dim at every level: (levels, dims)."""
    dims = [d for d in DIMS if extents.get(d, 1) > 1]
    per_level = []
    for level, size in enumerate(shape):
        rows = []
        for row in itertools.product(range(1, size + 1), repeat=len(dims)):
            if size % math.prod(row):
                continue
            uses = sum(w > 1 for d, w in zip(dims, row, strict=True) if d != "sample")
            if level > host and not full and uses > 1:
                continue
            rows.append(row)
        per_level.append(rows)
    return {
        levels
        for levels in itertools.product(*per_level)
        if all(math.prod(row[i] for row in levels) <= extents[dim] for i, dim in enumerate(dims))
    }


@given(
    extents=st.fixed_dictionaries(
        {"sample": st.integers(1, 9)},
        optional={
            "filter": st.integers(1, 9),
            "channel": st.integers(1, 4),
            "width": st.integers(1, 20),
        },
    ),
    shape=st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3).map(tuple),
    host=st.integers(0, 2),
    full=st.booleans(),
    evenly=st.booleans(),
)
def test_enumeration_is_complete_and_within_limits(extents, shape, host, full, evenly):
    host = min(host, len(shape) - 1)
    asked = structs.replace(layer(**extents), evenly=evenly)
    found = enumerate_candidates(asked, shape, host, full=full)
    rows = [tuple(map(tuple, row)) for row in found.degrees.tolist()]
    if not found.dims:
        assert len(rows) == 1
        return
    assert len(set(rows)) == len(rows)
    within = brute_force(extents, shape, host, full)
    if evenly:
        within = {
            levels
            for levels in within
            if all(
                extents[dim] % math.prod(row[i] for row in levels) == 0
                for i, dim in enumerate(found.dims)
            )
        }
    assert set(rows) == within


def test_only_splittable_dims_of_more_than_one_position_are_split():
    tensor = layer(sample=1, filter=8, width=8)
    fixed = Layer(
        name="fixed",
        kind="activation",
        dims=tensor.dims,
        inputs=tensor.inputs,
        output=tensor.output,
        splittable=frozenset({"sample", "width"}),
    )
    assert enumerate_candidates(fixed, (4,), 0).dims == ("width",)


@given(size=st.integers(1, 48), count=st.integers(1, 4))
def test_factorisations_are_all_of_them(size, count):
    wanted = (
        {
            row
            for row in itertools.product(range(1, size + 1), repeat=count)
            if math.prod(row) == size
        }
        if size**count < 20_000
        else None
    )
    found = factorisations(size, count, count)
    assert len(set(found)) == len(found)
    assert all(math.prod(row) == size for row in found)
    if wanted is not None:
        assert set(found) == wanted


@given(extent=st.integers(1, 200), degree=st.integers(1, 50))
def test_the_largest_block_is_what_the_rule_of_blocks_gives(extent, degree):
    rows = np.array([[[degree]]], dtype=np.int64)
    found = Candidates(dims=("width",), degrees=rows, shape=(degree,)).local("width", extent)
    edges = [i * extent // degree for i in range(degree + 1)]
    assert found.tolist() == [max(b - a for a, b in itertools.pairwise(edges))]


def test_arrays_and_distributions_agree():
    candidates = enumerate_candidates(layer(sample=8, filter=6, width=5), (4, 2), 0)
    for index in range(len(candidates)):
        one = candidates.distribution(index)
        assert candidates.find(one) == index
        for dim in candidates.dims:
            assert one.degree(dim) == candidates.degree(dim)[index]
        assert one.replication == candidates.replication[index].prod()
        kept = candidates.take(np.array([index]))
        assert kept.distribution(0) == one
    absent = Distribution(degrees={"sample": (2, 2), "head": (2, 1)}, shape=(4, 2))
    assert candidates.find(absent) is None


def test_one_way_is_no_split():
    wordy = Distribution(degrees={"sample": (4, 2), "head": (1, 1)}, shape=(4, 2))
    assert wordy == Distribution(degrees={"sample": (4, 2)}, shape=(4, 2))
    assert wordy.degree("head") == 1


def test_a_group_is_what_its_dims_split_together():
    rows = np.array([[[2, 2, 1], [1, 3, 2]]], dtype=np.int64)
    candidates = Candidates(dims=("sample", "filter", "width"), degrees=rows, shape=(4, 6))
    assert candidates.group({"sample", "filter"}).tolist() == [[4, 3]]
    assert candidates.group({"width"}).tolist() == [[1, 2]]
    assert candidates.group(()).tolist() == [[1, 1]]
    assert candidates.replication.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("degrees", "shape", "text"),
    [
        ({"sample": (3,)}, (4,), "divide level 0 of 4"),
        ({"sample": (2,), "width": (4,)}, (4,), "divide level 0 of 4"),
        ({"sample": (2, 3)}, (4, 4), "divide level 1 of 4"),
        ({"batch": (2,)}, (4,), "'batch'"),
        ({"sample": (2,)}, (4, 4), "each of the 2 levels"),
        ({"sample": (2, 2, 2)}, (4, 4), "each of the 2 levels"),
        ({"sample": (0, 1)}, (4, 4), "at least 1 way"),
    ],
)
def test_what_is_no_distribution_is_refused_with_a_sentence(degrees, shape, text):
    with pytest.raises(InputError, match=text) as error:
        Distribution(degrees=degrees, shape=shape)
    assert "\n" not in str(error.value)


def test_written_in_one_line_and_by_level():
    one = Distribution(degrees={"height": (4, 1), "sample": (1, 16)}, shape=(4, 32))
    assert str(one) == "sample 16 x height 4 x replicated 2"
    assert one.describe(("host", "network")) == "host: height 4 | network: sample 16 x replicated 2"
    alone = Distribution(degrees={}, shape=(1, 1))
    assert str(alone) == alone.describe(("host", "network")) == "one device"
    eleven = Distribution(degrees={"sample": (11,)}, shape=(11,))
    assert eleven.describe(("host",)) == "host: sample 11"


def test_limits_name_the_layer_the_dim_and_the_numbers():
    some = layer(sample=4, width=7)
    fits = Distribution(degrees={"sample": (4, 1), "width": (1, 7)}, shape=(4, 7))
    assert limit_reason(some, fits) is None
    wide = Distribution(degrees={"width": (4, 2)}, shape=(4, 2))
    reason = limit_reason(some, wide)
    assert reason is not None
    assert all(word in reason for word in ("'layer'", "7", "width", "8"))
    other = Distribution(degrees={"filter": (2,)}, shape=(2,))
    assert limit_reason(some, other) == "layer 'layer' (activation) cannot be split by filter"
    assert limit_reason(some, Distribution(degrees={"filter": (1,)}, shape=(2,))) is None


@given(st.lists(st.integers(-3, 3)))
def test_distinct_numbers_are_each_there_once_and_rise(values):
    found = distinct(np.array(values, dtype=np.int64))
    assert found.tolist() == sorted(set(values))

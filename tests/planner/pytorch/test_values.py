"""Where numbers lie after reshapes, transpositions and slices is where numpy says that they lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from planner.models.traced.values import Value, reshaped, sliced, whole


def lies(value: Value) -> np.ndarray:
    """The place of each number of a value in what its layer writes."""
    axes = list(value.axes)
    steps = {axis: math.prod(list(value.axes.values())[n + 1 :]) for n, axis in enumerate(axes)}
    first = sum(start * steps[axis] for axis, (start, _) in value.slices.items())
    place = np.full((1,), first)
    for part in value.parts:
        places = np.arange(part.extent) * part.stride * steps.get(part.axis, 0)
        place = (place[:, None] + places[None, :]).reshape(-1)
    return place.reshape(value.shape)


def random_shape(rng: np.random.Generator, size: int) -> list[int]:
    shape = []
    while size > 1 and len(shape) < 6:
        factors = [n for n in range(1, size + 1) if size % n == 0]
        shape.append(int(rng.choice(factors)))
        size //= shape[-1]
    return [*shape, size]


@pytest.mark.parametrize("seed", range(60))
def test_values_follow_what_is_done_to_tensors(seed):
    rng = np.random.default_rng(seed)
    axes = {"sample": int(rng.choice([2, 4, 6])), "sequence": int(rng.choice([3, 8, 12]))}
    axes["hidden"] = int(rng.choice([6, 24, 48]))
    value = Value(layer="x", axes=axes, dims=tuple(whole(a, n) for a, n in axes.items()))
    array = np.arange(math.prod(axes.values())).reshape(tuple(axes.values()))
    followed = 0
    for _ in range(12):
        kind = rng.choice(["reshape", "permute", "slice"])
        if kind == "reshape":
            shape = random_shape(rng, array.size)
            found = reshaped(value, shape)
            if found is None:
                continue
            value, array = found, array.reshape(shape)
        elif kind == "permute":
            order = rng.permutation(array.ndim)
            value = replace(value, dims=tuple(value.dims[dim] for dim in order))
            array = array.transpose(order)
        else:
            dim = int(rng.integers(array.ndim))
            start = int(rng.integers(array.shape[dim]))
            count = int(rng.integers(1, array.shape[dim] - start + 1))
            found = sliced(value, dim, start, count)
            if found is None:
                continue
            value = found
            array = array.take(range(start, start + count), axis=dim)
        followed += 1
        assert value.shape == array.shape
        assert (lies(value) == array).all()
    assert followed >= 3


def test_what_is_no_part_of_an_axis_any_more_is_refused():
    axes = {"sample": 2, "hidden": 12}
    value = Value(layer="x", axes=axes, dims=tuple(whole(a, n) for a, n in axes.items()))
    turned = replace(value, dims=value.dims[::-1])
    assert reshaped(turned, (24,)) is not None
    assert reshaped(reshaped(turned, (24,)), (8, 3)) is None
    inner = reshaped(value, (2, 3, 4))
    assert sliced(inner, 2, 0, 2) is None  # every third of the features
    assert sliced(inner, 1, 1, 2).slices == {"hidden": (4, 8)}
    assert sliced(value, 0, 0, 1) is None  # samples are all needed

"""Local shapes as they are measured."""

from __future__ import annotations

import pytest

from planner.tables.profile.shape import Shape


def test_shapes_give_the_output_of_a_padded_convolution() -> None:
    def conv(extents: tuple[int, int], kernel: int, stride: tuple[int, ...] = ()) -> Shape:
        return Shape(
            operation="conv",
            samples=8,
            channels=64,
            filters=64,
            in_extents=extents,
            kernel=(kernel, kernel),
            stride=stride,
        )

    assert conv((224, 224), 7, (2, 2)).out_extents == (112, 112)
    assert conv((56, 28), 3).out_extents == (56, 28)
    assert conv((56, 28), 3).stride == (1, 1)


def test_a_kernel_has_as_many_dims_as_its_input() -> None:
    with pytest.raises(ValueError, match="1 extents for a kernel of 2 dims"):
        Shape(operation="conv", samples=8, channels=3, filters=64, in_extents=(224,), kernel=(7, 7))


def test_a_linear_layer_is_one_product_of_all_positions() -> None:
    flat = Shape(operation="linear", samples=4, channels=8, filters=6, in_extents=(5, 3)).flattened
    assert (flat.samples, flat.in_extents, flat.out_extents) == (60, (), ())

"""Local work: products, traffic, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from local_works import conv
from msgspec.structs import replace

from costmodels.compute import Work
from costmodels.compute.work import DENSE_DIRECTIONS
from costmodels.errors import InputError


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("forward", (16 * 28 * 28, 128, 64 * 9)),
        ("backward_data", (16 * 56 * 56, 64, 128 * 9 / 4)),
        ("backward_weight", (128, 64 * 9, 16 * 28 * 28)),
    ],
)
def test_strided_convolution_is_an_implicit_product(
    direction: str, expected: tuple[float, float, float]
) -> None:
    product = conv(direction, out_extents=(28, 28), stride=(2, 2)).matrix_product()
    assert (product.m, product.n, product.k) == expected
    assert product.batch == 1


@pytest.mark.parametrize("direction", DENSE_DIRECTIONS)
def test_every_pass_of_a_convolution_has_the_same_flops(direction: str) -> None:
    work = conv(direction, out_extents=(28, 28), stride=(2, 2), groups=4)
    assert work.flops == pytest.approx(2 * 16 * 128 * (64 / 4) * 9 * 28 * 28)


def test_groups_split_the_product_and_not_its_rows() -> None:
    product = conv(groups=32).matrix_product()
    assert (product.batch, product.m, product.n, product.k) == (32, 16 * 56 * 56, 4, 2 * 9)


def test_a_batched_product_has_one_product_per_sample() -> None:
    heads = Work(
        operation="matmul",
        direction="forward",
        samples=96,
        channels=64,
        filters=512,
        in_extents=(512,),
        out_extents=(512,),
    )
    product = heads.matrix_product()
    assert (product.batch, product.m, product.n, product.k) == (96, 512, 512, 64)
    elements = 96 * (512 * 64 + 64 * 512 + 512 * 512)
    assert heads.bytes_moved("bf16") == 2 * elements


def test_bytes_count_every_operand_once_by_precision() -> None:
    positions, weights = 16 * 56 * 56, 64 * 128 * 9
    assert conv().bytes_moved("fp32") == 4 * (positions * (64 + 128) + weights)
    assert conv().bytes_moved("fp16") == conv().bytes_moved("fp32") / 2


def test_batch_norm_reads_its_input_twice_and_a_mask_costs_a_byte() -> None:
    shape: dict[str, Any] = {"samples": 8, "channels": 32, "filters": 32}
    shape |= {"in_extents": (10,), "out_extents": (10,)}
    elements = 8 * 32 * 10
    norm = Work(operation="batch_norm", direction="forward", **shape)
    assert norm.bytes_moved("fp32") == 3 * 4 * elements
    dropout = Work(operation="dropout", direction="forward", **shape)
    assert dropout.bytes_moved("fp16") == (2 * 2 + 1) * elements
    assert norm.flops == 0


def test_candidates_broadcast() -> None:
    work = conv(samples=np.array([4, 8, 16]), channels=np.array([64, 32, 16]))
    assert work.flops.shape == (3,)
    assert work.flops[0] == pytest.approx(work.flops[2])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"operation": "fft"}, "operation"),
        ({"direction": "backward"}, "direction"),
        ({"samples": -1}, "samples"),
        ({"samples": np.nan}, "samples"),
        ({"channels": np.ones((2, 2))}, "at most one dim"),
        ({"stride": (2,)}, "stride"),
    ],
)
def test_impossible_work_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(conv(), **changed)

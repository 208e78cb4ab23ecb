"""How far tensors are from those of one process."""

from __future__ import annotations

import math

import pytest
from torch_extra import require

require("torch")

import torch

from planner.torch.verify.apart import farthest

THEIRS = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, -4.0])}


def test_the_farthest_tensor_is_named() -> None:
    mine = {"a": torch.tensor([1.0, 2.5]), "b": torch.tensor([3.0, -4.25])}
    assert farthest(mine, THEIRS) == (0.5, 4.0, "a")


@pytest.mark.parametrize("name", ["a", "b"])
def test_what_is_no_number_is_infinitely_far(name: str) -> None:
    mine = {**THEIRS, name: torch.tensor([0.0, math.nan])}
    assert farthest(mine, THEIRS) == (math.inf, 4.0, name)
    assert farthest(THEIRS, mine)[:2] == (math.inf, math.inf)


def test_what_is_missing_is_infinitely_far() -> None:
    assert farthest({"a": THEIRS["a"]}, THEIRS) == (math.inf, 4.0, "b")

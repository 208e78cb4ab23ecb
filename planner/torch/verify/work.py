"""What a rank does."""

from __future__ import annotations

import torch

import planner.torch.apply
import planner.torch.apply.convolution  # noqa: F401

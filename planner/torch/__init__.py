"""PyTorch in: modules as networks. Nothing of PyTorch is imported before it is asked for."""

from __future__ import annotations

"""Tests of the extra `[torch]`: where it is missing they are skipped, but not in CI."""

from __future__ import annotations

import os

import pytest


def require(*names: str) -> None:
    """Skip the module of a test that needs packages which are missing; fail in CI."""
    for name in names:
        if os.environ.get("PLANNER_CI"):
            __import__(name)
        else:
            pytest.importorskip(name)

"""Settings of all tests; its folder is on the path, so that tests can import `machines`."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# the same examples on every run, and no deadline: the machine may be busy
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Interrupts interrupt, even where all tests run in the background and ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

"""Settings of all tests; its folder is on the path, so that tests can import `machines`."""

from __future__ import annotations

import signal
from collections import Counter
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases beyond those that CI has time for are slow, and what takes longest begins first."""
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.split("[")[0]
        seen[test] += 1
        some = item.get_closest_marker("ci_cases")
        if some is not None and seen[test] > some.args[0]:
            item.add_marker(pytest.mark.slow)
    # the commands of the README take longest: were they last, other processes would be idle
    items.sort(key=lambda item: item.path.name != "test_readme.py")

"""Settings of all tests; its folder is on the path, so that tests can import `machines`."""

from __future__ import annotations

from hypothesis import settings

# the same examples on every run, and no deadline: the machine may be busy
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

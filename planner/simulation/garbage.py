"""Simulations without looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no cycles meanwhile: simulations make none, and that takes a third of their time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if not gc.get_freeze_count():
                # what is left counts as old, else all of it is looked through at once
                gc.freeze()
                gc.unfreeze()
            gc.enable()

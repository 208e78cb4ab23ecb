"""Looks for garbage are put off, and what is left then is not looked through at once."""

from __future__ import annotations

import gc

from planner.simulation.garbage import uncollected


def _made(count):
    return [[number] for number in range(count)]


def test_nothing_is_looked_through_when_looks_are_allowed_again():
    looks = []
    gc.collect()
    gc.callbacks.append(lambda phase, facts: looks.append((phase, facts)))
    try:
        with uncollected():
            kept = _made(100_000)
            assert not gc.isenabled()
        more = _made(10)
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()
    assert not looks
    assert len(kept) + len(more) == 100_010


def test_what_is_kept_from_being_looked_at_stays_so():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with uncollected():
            pass
        assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()

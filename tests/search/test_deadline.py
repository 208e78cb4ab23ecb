"""Deadlines keep their moment, whatever is asked of them and when."""

from __future__ import annotations

from search.problem.deadline import Deadline


def test_a_later_deadline_is_of_the_same_moment_once_that_has_passed():
    """It was so much after the moment of asking, so that work went on."""
    passed = Deadline(-10.0)
    assert passed.remaining == 0.0
    assert passed.earlier(-1.0).passed
    assert not passed.earlier(-20.0).passed
    assert not Deadline(None).earlier(5.0).passed
    assert Deadline(10.0, work=3.0).earlier(5.0).work == 3.0
    assert 4.0 < Deadline(10.0).earlier(5.0).remaining <= 5.0

"""Loops that are not compiled yet are no reason to be late."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from random_cores import random_core

from search.core import jit
from search.engine import wide
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent

LOOP = """
from search.core.jit import compiled


@compiled
def twice(number: float) -> float:
    return 2.0 * number
"""


def _loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.twice


def test_what_is_compiled_once_takes_no_time_again(tmp_path):
    pytest.importorskip("numba")
    path = tmp_path / "some_loop.py"
    path.write_text(LOOP)
    first = _loaded(path)
    assert jit.compile_time(first) == jit.MOST_COMPILING
    assert first(1.0) == 2.0
    assert jit.compile_time(first) == 0.0
    # another process finds it on disk
    assert jit.compile_time(_loaded(path)) == 0.0


def test_what_is_never_compiled_takes_no_time(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    path = tmp_path / "some_loop.py"
    path.write_text(LOOP)
    assert jit.compile_time(_loaded(path)) == 0.0


@pytest.mark.parametrize(("limit", "compiles"), [(1.0, False), (100.0, True), (None, True)])
def test_loops_are_compiled_where_there_is_time_for_it(limit, compiles, monkeypatch):
    monkeypatch.setattr(wide, "compile_time", lambda *_: jit.MOST_COMPILING)
    known = Incumbent()
    wide.search_core(random_core(3, num_nodes=5), known, deadline=Deadline(limit), seed=0)
    assert (known.choices is not None) == compiles
    assert (known.stopped_by == "time limit") != compiles
    assert any(note.kind == "no-time-to-compile" for note in known.notes) != compiles

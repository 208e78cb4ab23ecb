"""While a plan is searched, the phase, the best step and the bound so far are told."""

from __future__ import annotations

import math
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli.screen import search_progress
from planner.joint import requests
from planner.request.request import make_request

ROOT = Path(__file__).parents[2]
QUESTION = {"cluster": "lassen", "global_batch_size": 64, "cap": 16}
PHASES = ["costing splits", "searching", "simulating the best", "estimating pipelines"]


def told(request) -> list[tuple[str, float, float]]:
    rows: list[tuple[str, float, float]] = []
    plan = requests.optimize_request(request, watch=lambda *row: rows.append(row))
    assert plan == requests.optimize_request(request), "watching changes nothing"
    return rows


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("memory", [None, "1.6 GiB"])
def test_phases_steps_and_bounds_are_told_as_they_come(memory):
    given = {"model": "alexnet", "gpus": 8, "memory": memory, **QUESTION}
    rows = told(make_request("optimize", given))
    assert list(dict.fromkeys(phase for phase, _, _ in rows)) == PHASES
    assert rows[0] == ("costing splits", math.inf, 0.0)
    steps = [step for _, step, _ in rows]
    bounds = [bound for _, _, bound in rows]
    assert steps == sorted(steps, reverse=True)
    # a bound over the whole space may lie below that of what was searched
    assert 0.0 < bounds[-1] <= steps[-1] * (1 + 1e-9) < math.inf


@pytest.mark.slow
def test_what_is_tried_from_outside_is_one_phase():
    given = {"model": "alexnet", "gpus": 4, "tune_trials": 3, **QUESTION}
    phases = [phase for phase, _, _ in told(make_request("optimize", given))]
    assert list(dict.fromkeys(phases)) == [
        *PHASES[:2],
        "trying other settings",
        *PHASES[2:],
    ]


@pytest.mark.slow
def test_every_size_is_told():
    request = make_request("scale", {"model": "alexnet", "gpus": [2, 4], **QUESTION})
    phases: list[str] = []
    answers = list(requests.scale_request(request, watch=lambda phase, *_: phases.append(phase)))
    assert phases.count("costing splits") == 2
    assert answers == list(requests.scale_request(replace(request)))


def test_what_is_told_fits_a_line():
    lines: list[str] = []
    watch = search_progress(lines.append)
    for row in (("searching", math.inf, 0.0), ("searching", 0.0179, 0.0), ("x", 0.0179, 0.0177)):
        watch(*row)
    assert lines == [
        "searching",
        "searching, best 17.9 ms, no bound yet",
        "x, best 17.9 ms, bound 17.7 ms",
    ]


@pytest.mark.slow
def test_a_terminal_shows_the_best_step_and_the_bound():
    ours, theirs = pty.openpty()
    question = ["densenet161", "--gpus", "512", "--cluster", "dgx-h100", "--cap", "500"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", "optimize", *question],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while more := os.read(ours, 4096):
            shown += more
    except OSError:
        pass  # the end of a terminal that nobody writes to any more
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"planning densenet161 on 512 GPUs: searching, best [\d.]+ ms, bound ", text)

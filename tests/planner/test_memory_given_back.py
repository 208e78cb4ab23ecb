"""Steps whose devices give memory back in order to get other: said, and not chosen."""

from __future__ import annotations

import pytest

from costmodels.simulation import load_runtime
from planner.api import optimize, simulate
from planner.errors import InfeasibleError
from planner.planning.staged import tried
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve

ASKED = {
    "gpus": 2,
    "cluster": "dgx-h100",
    "global_batch_size": 15,
    "precision": "bf16",
    "optimizer": "adam",
    "sequence_parallel": True,
}


@pytest.mark.parametrize(("ahead", "gives_back"), [(2**20, True), (830, False)])
def test_searches_take_no_step_that_gives_memory_back_every_time(ahead, gives_back):
    runtime = load_runtime("nanotron", launches_ahead=ahead)
    found = simulate("llama3.2-1b", **ASKED, runtime=runtime, tp=2, micro_batch_size=5)
    step = found.simulated
    assert found.fits
    assert (step.lasting_short > 0.0) is gives_back
    assert any("giving memory back" in note for note in found.notes) is gives_back
    degrees = Degrees(tp=2, micro_batch_size=5, sequence_parallel=True)
    staged, _ = tried(
        resolve(make_request("optimize", {**ASKED, "model": "llama3.2-1b", "runtime": runtime})),
        degrees,
        runtime,
    )
    assert staged.fits is not gives_back
    assert staged.peak_memory <= staged.capacity
    assert (staged.short > 0.0) is gives_back


def test_what_runs_once_says_nothing_of_further_steps():
    # the first step takes what there was nothing of before
    runtime = load_runtime("nanotron", launches_ahead=2**20, makes_state_late=False)
    step = simulate("llama3.2-1b", **ASKED, runtime=runtime, tp=2, micro_batch_size=5).simulated
    assert step.lasting_short == step.peak.short


def test_a_refusal_says_what_a_step_needs_that_gives_nothing_back():
    runtime = load_runtime("nanotron", launches_ahead=2**20)
    asked = {**ASKED, "global_batch_size": 16, "runtime": runtime, "memory": "76.5 GiB"}
    found = simulate("llama3.2-1b", **asked, tp=2, micro_batch_size=4)
    assert found.fits
    kept = "tp=2,micro_batch_size=4,sequence_parallel=true,recompute=none,offload=none,zero=0,pp=1"
    del asked["sequence_parallel"]
    with pytest.raises(InfeasibleError, match=r"smallest of 1 simulated needs 77\.4 GiB a GPU"):
        optimize("llama3.2-1b", **asked, keep=kept)

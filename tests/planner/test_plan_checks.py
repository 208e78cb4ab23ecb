"""Plans are files, and files are edited: what cannot be is refused when a plan is read."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

import planner
from costmodels.errors import InputError
from planner.plan import Plan


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    plan = planner.optimize("resnet18", gpus=4, cluster="lassen", input_size=64)
    found: dict[str, Any] = json.loads(plan.to_json())
    return found


EDITS: dict[str, object] = {
    "gpus": 0,
    "gpus ": 8,
    "global_batch_size": 0,
    "global_batch_size ": 2**60,
    "step_time_s": -1.0,
    "step_time_s ": 0.0,
    "step_time_s  ": 1e9,
    "breakdown_s": {},
    "breakdown_s.compute": -1e308,
    "breakdown_s.compute ": 1e9,
    "breakdown_s.gradient": -1.0,
    "hidden_s": {},
    "hidden_s.gradient": -1.0,
    "memory_bytes.weights": -1.0,
    "memory_bytes": {"activations": 0.0},
    "memory_capacity_bytes": 0.0,
    "communication_bytes": -1.0,
    "shape": [],
    "shape ": [0, 1],
    "shape  ": [-2, -2],
    "level_names": ["host"],
    "host_level": "rack",
    "layers": [],
    "layers.0.forward_s": -1.0,
    "layers.0.forward_s ": 1.0,
    "layers.0.weights_bytes": -1.0,
    "layers.0.degrees": {"area": [2, 1]},
    "layers.0.degrees ": {"sample": [0, 1]},
    "layers.0.shape": [2, 2],
    "layers.1.name": "conv1",
    "search.lower_bound_s": -1.0,
    "search.lower_bound_s ": 1e9,
    "search.num_candidates": -1,
    "search.status": "none",
    "schedule.micro_batches": 3,
    "search.gap": -0.5,
    "training.bucket_bytes": -1.0,
    "baselines.0.step_time_s": 0.0,
    "baselines.0.step_time_s ": None,
    "compute_sources_s.launch": -1.0,
    "finalists.0.step_time_s": 0.0,
    "finalists.0.chosen": False,
    "model": "",
    "runtime": " ",
    "cluster": "\x1b",
}


@pytest.mark.parametrize("place", EDITS)
def test_a_plan_that_cannot_be_is_refused_with_one_sentence(document, place):
    edited = copy.deepcopy(document)
    if place == "finalists.0.chosen":
        edited["finalists"] = edited["finalists"][:1]
    inner: Any = edited
    *path, last = place.split()[0].split(".")
    for key in path:
        inner = inner[int(key) if key.isdigit() else key]
    inner[last] = EDITS[place]
    with pytest.raises(InputError, match=r"^p\.json is no valid plan") as error:
        Plan.from_json(json.dumps(edited), where="p.json")
    assert "optimize -o" in str(error.value)


def test_what_the_planner_writes_is_taken(document):
    assert json.loads(Plan.from_json(json.dumps(document)).to_json()) == document


@pytest.mark.parametrize("text", ["[" * 100_000, '{"gpus": ' + "9" * 5000 + "}", '{"gpus": NaN}'])
def test_a_text_that_no_parser_takes_is_refused(text):
    with pytest.raises(InputError, match="valid JSON"):
        Plan.from_json(text)


def test_what_was_chosen_must_be_the_plan(document):
    edited = copy.deepcopy(document)
    next(row for row in edited["finalists"] if row["chosen"])["step_time_s"] *= 1.01
    with pytest.raises(InputError, match="chosen one of finalists must be the step"):
        Plan.from_json(json.dumps(edited))

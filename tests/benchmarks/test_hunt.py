"""The hunt for faults of plans: what it asks, and what is a fault."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.planning.drawn import Drawn, drawn, wider
from benchmarks.planning.hunt import Hunt, hunt_rows
from costmodels.cluster import load_cluster

BASE = Drawn(model="gpt2", cluster="dgx-a100", gpus=4, batch=8, keep=("tp=2",), forbid=("context",))


def plan(seconds, bound=0.0):
    return SimpleNamespace(step_time_s=seconds, search=SimpleNamespace(lower_bound_s=bound))


def test_a_seed_always_asks_the_same_and_what_the_cluster_can_run(tmp_path):
    for seed in range(40):
        asked, again = (drawn(random.Random(seed), seed, tmp_path) for _ in range(2))
        assert asked == again
        cluster = load_cluster(asked.cluster)
        assert cluster.can_use(asked.gpus)
        assert dict(asked.others).get("precision", "fp32") in cluster.device.peak_flops


def test_a_wider_question_keeps_and_forbids_less():
    found = list(wider(BASE, random.Random(0)))
    assert found[0] == replace(BASE, keep=(), forbid=())
    assert found[1] in (replace(BASE, keep=()), replace(BASE, forbid=()))
    assert list(wider(found[0], random.Random(0))) == []


@pytest.mark.parametrize(
    ("less", "more", "faults"),
    [
        (plan(1.0), plan(1.0005), []),
        (plan(1.0), plan(1.1), ["memory: slower with more by 10.00%"]),
        (plan(1.0), plan(1.1, 1.05), ["slower with more by 10", "bound refuted by 5"]),
        (plan(1.0), None, ["no plan with more by inf%"]),
        (None, plan(1.0), []),
        (None, None, []),
    ],
)
def test_what_is_slower_or_bounded_above_what_there_is_with_less_is_a_fault(
    tmp_path, less, more, faults
):
    hunt = Hunt(tmp_path)
    hunt.compare("memory", BASE, less, replace(BASE, memory=math.inf), more)
    assert len(hunt.faults) == len(faults)
    assert all(part in line for part, line in zip(faults, hunt.faults, strict=True))


@pytest.mark.slow
def test_a_seed_has_no_fault():
    # a small transformer on eight H100 under less and more memory, bandwidth and GPUs
    (row,) = hunt_rows([102])
    assert row["questions"] == 7
    assert row["faults"] == ""

"""Stages cut so that each of them fits: the first hold more micro-batches than the last ones."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from questions import small_llama

import planner
from costmodels.cluster import load_cluster
from planner.joint.fitting import Loads


def drawn_loads(rng, pieces, stages):
    """Loads of some pieces, of which some blocks of each stage may be computed again."""

    def sums(most):
        return np.append(0.0, np.cumsum(rng.integers(1, most + 1, pieces)))

    kept, micro_batches = sums(6), int(rng.integers(1, 6))
    order = np.arange(stages)
    flying = np.minimum(stages - order, micro_batches).astype(float)
    return Loads(
        work=sums(9),
        again=sums(3),
        standing=sums(5),
        kept=kept,
        waiting=sums(2),
        saved=kept * 0.5,
        count=int(rng.integers(0, 3)),
        flying=[(flying, 0.0 * flying), (flying / 2.0, np.minimum(order, 2).astype(float))],
    )


def compositions(pieces, stages):
    for ends in itertools.combinations(range(1, pieces), stages - 1):
        yield tuple(np.diff([0, *ends, pieces]).tolist())


@pytest.mark.parametrize("seed", range(60))
def test_the_heaviest_stage_is_as_light_as_it_can_be_where_all_fit(seed):
    rng = np.random.default_rng(seed)
    pieces = int(rng.integers(2, 9))
    stages = int(rng.integers(2, pieces + 1))
    loads = drawn_loads(rng, pieces, stages)
    ways = [loads.stages(cut) for cut in compositions(pieces, stages)]
    room = float(np.quantile([held for _, held in ways], rng.uniform(0.0, 0.6)))
    best = min((work for work, held in ways if held <= room), default=math.inf)
    found = loads.cut(stages, room)
    assert sum(found) == pieces
    work, held = loads.stages(found)
    assert held <= room
    assert work <= best * 1.001
    least = min(held for _, held in ways)
    assert loads.cut(stages, least * 0.999) == ()


@pytest.mark.slow
def test_stages_with_fewer_blocks_fit():
    question = {"gpus": 4, "cluster": "hkbu-10gbe", "global_batch_size": 16, "precision": "fp16"}
    question |= {"optimizer": "sgd", "input_size": 1024}
    steps = []
    for memory in ("7.9 GiB", "8.5 GiB", "9.3 GiB", "9.4 GiB", "10 GiB"):
        plan = planner.optimize("llama3.2-1b", **question, memory=memory)
        steps.append(plan.step_time_s)
    assert steps == sorted(steps, reverse=True)
    # three, six, six and one block instead of these, with nothing computed again
    question |= {"pp": 4, "micro_batches": 16, "stage_blocks": (4, 5, 5, 2)}
    assert steps[1] < 0.95 * planner.simulate("llama3.2-1b", **question).step_time


@pytest.mark.slow
def test_stages_that_do_not_fit_after_all_are_cut_otherwise():
    question = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 4, "input_size": 1024}
    question |= {"precision": "bf16", "optimizer": "adam", "runtime": "megatron"}
    plans = [
        planner.optimize("bert-large", **question, memory=memory)
        for memory in ("4436 MiB", "4701 MiB")
    ]
    # with the latter equal stages are expected to fit
    assert plans[1].step_time_s <= plans[0].step_time_s
    assert len(plans[1].stages) == 4


@pytest.mark.slow
def test_interleaved_stages_are_cut_unequally_however_many_are_faster_that_cannot_fit():
    """Without recomputation 64 ways are estimated to be faster, with twice the memory there is."""
    asked = {"gpus": 4, "cluster": "dgx-h100", "global_batch_size": 32, "input_size": 512}
    options = {"precision": "bf16", "optimizer": "adam", "memory": "35933.7 MiB"}
    free = planner.optimize("qwen2-7b", **asked, **options)
    kept = planner.optimize("qwen2-7b", **asked, **options, keep="recompute=full")
    assert free.step_time_s <= kept.step_time_s * 1.001


@pytest.mark.slow
def test_stages_whose_gradients_travel_for_long_get_fewer_blocks():
    """Those of the embedding are as many as of four blocks, and hosts of one GPU exchange them."""
    question = {"gpus": 12, "cluster": "aws-p3.2xlarge", "global_batch_size": 64}
    question |= {"precision": "fp16", "optimizer": "adam", "input_size": 512}
    wishes = {"keep": "dp=2", "forbid": "accumulation", "runtime": "deepspeed"}
    plan = planner.optimize("llama3.2-1b", **question, **wishes)
    # the best that balances both passes alone, with blocks moved one by one from there
    passes = {"dp": 2, "pp": 6, "micro_batches": 32, "stage_blocks": (1, 7, 4, 3, 1, 0)}
    other = planner.simulate("llama3.2-1b", **question, **passes, runtime="deepspeed")
    assert plan.step_time_s < 0.9 * other.step_time


@pytest.mark.slow
def test_blocks_of_the_best_pipeline_are_moved_between_stages():
    question = {"gpus": 6, "cluster": "aws-p3.2xlarge", "global_batch_size": 8, "precision": "fp16"}
    question |= {"optimizer": "sgd", "input_size": 1024, "runtime": "megatron"}
    plan = planner.optimize("bert-large", **question)
    # what is estimated to be the best cut
    blocks = {"pp": 6, "micro_batches": 8, "stage_blocks": (4, 5, 5, 5, 4, 1)}
    assert plan.step_time_s < 0.98 * planner.simulate("bert-large", **question, **blocks).step_time


@pytest.mark.slow
def test_blocks_of_pipelines_near_the_best_are_moved_as_well(tmp_path):
    """Two groups become faster than four, whose blocks are moved too, though four were before."""
    path = small_llama(
        tmp_path,
        hidden_size=256,
        intermediate_size=1024,
        num_attention_heads=4,
        num_hidden_layers=8,
        vocab_size=50257,
        max_position_embeddings=512,
    )
    question = {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 12, "precision": "bf16"}
    question |= {"optimizer": "sgd", "forbid": "interleaving"}
    free = planner.optimize(path, **question)
    kept = planner.optimize(path, **question, keep="pp=2")
    assert free.step_time_s <= kept.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize("room", [1.0, 0.75])
def test_no_cut_undercuts_the_bound_whatever_is_computed_again(tmp_path, room):
    path = tmp_path / "config.json"
    rows = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024}
    rows |= {"num_attention_heads": 8, "num_hidden_layers": 6, "vocab_size": 4000}
    path.write_text(json.dumps({**rows, "max_position_embeddings": 512}))
    question = {"gpus": 3, "cluster": "aws-p3.2xlarge", "global_batch_size": 4}
    free = planner.optimize(str(path), **question, keep="pp=3")
    reserved = load_cluster("aws-p3.2xlarge").device.reserved_memory
    question["memory"] = reserved + room * (free.peak_memory - reserved)
    plan = planner.optimize(str(path), **question, keep="pp=3,micro_batches=4")
    best = math.inf
    for cut in [*compositions(6, 3), *((*two, 0) for two in compositions(6, 2))]:
        for again in ("none", 1, 2, "full"):
            for schedule in ("1f1b", "zero-bubble"):
                ways = {"pp": 3, "micro_batches": 4, "stage_blocks": cut, "schedule": schedule}
                step = planner.simulate(str(path), **question, **ways, recompute=again)
                if step.fits:
                    best = min(best, step.step_time)
    assert plan.search.lower_bound_s <= best * (1.0 + 1e-9)
    assert plan.step_time_s <= best * 1.01

"""More GPUs never cost time: what they cannot help with is repeated, and that is said."""

from __future__ import annotations

import itertools
import math

import pytest
from questions import SPLITS_ALONE

import planner
from costmodels.distribution import Distribution, devices_at_work
from planner.planning.decision.fewer import parts_of
from planner.report.line import plan_line
from planner.report.markdown import report_text
from planner.request.request import make_request
from planner.request.setting import resolve

# (network, cluster, batch, numbers of GPUs): all of them cease to gain from GPUs within the series
SERIES = (
    pytest.param("vgg16", "dgx-a100", 256, (128, 256, 512), marks=pytest.mark.slow),
    pytest.param("resnet18", "dgx-a100", 16, (8, 16, 32, 64), marks=pytest.mark.slow),
    pytest.param("resnet50", "aws-p3.2xlarge", 32, (2, 4, 8, 16), marks=pytest.mark.slow),
    pytest.param("cosmoflow-128", "aws-p3.2xlarge", 4, (16, 32), marks=pytest.mark.slow),
    ("alexnet", "abci", 64, (8, 32)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cluster", "batch", "counts"), SERIES)
def test_a_series_of_strong_scaling_never_rises(model, cluster, batch, counts):
    times = []
    for gpus in counts:
        plan = planner.optimize(model, gpus=gpus, cluster=cluster, global_batch_size=batch)
        times.append(plan.step_time_s)
    for before, after in itertools.pairwise(times):
        assert after <= before * 1.001, times


@pytest.mark.slow
def test_moves_from_repeated_work_are_judged_with_buckets_that_suit_them():
    # gradients of the first layers are few, and travel beside what the others repeat
    asked = {"cluster": "aws-p3.2xlarge", "global_batch_size": 16, "optimizer": "sgd"}
    limited, free = (
        planner.optimize("resnet50", gpus=2, memory=memory, forbid=SPLITS_ALONE, **asked)
        for memory in ("2100 MiB", None)
    )
    assert free.step_time_s <= limited.step_time_s * 1.005


def test_one_process_launches_less_for_fewer_gpus():
    """What it launches for four GPUs takes three times as long as all work on one of them."""
    question = {"global_batch_size": 8, "runtime": "data-parallel"}
    many, one = (planner.optimize("resnet18", gpus=gpus, **question) for gpus in (4, 1))
    assert many.step_time_s == one.step_time_s
    assert many.idle_gpus == 3


@pytest.mark.slow
def test_replication_combines_with_samples_and_another_dim_across_hosts():
    """CosmoFlow with 4 samples has work for 4 ways of samples and some of space, however many."""
    few, many = (
        planner.optimize("cosmoflow", input_size=512, gpus=n, cluster="abci", global_batch_size=4)
        for n in (256, 4096)
    )
    assert many.step_time_s <= few.step_time_s


@pytest.mark.parametrize(("gpus", "parts"), [(24, [12, 8]), (16, [8]), (12, [4]), (1, [])])
def test_a_question_has_parts_of_which_none_is_part_of_another(gpus, parts):
    request = {"model": "alexnet", "gpus": gpus, "cluster": "hkbu-10gbe"}
    setting = resolve(make_request("optimize", {**request, "global_batch_size": gpus}))
    assert [one.gpus for one in parts_of(setting)] == parts


# (network, cluster, batch, limit, ruled out, numbers of GPUs)
TIGHT = (
    # fits a host of four GPUs split layer by layer, and gains nothing from a second
    ("resnet18", "hkbu-10gbe", 32, "769.3 MiB", "pipeline", (4, 8)),
    # with all blocks computed again 16 are slower than 32 of which some repeat work
    ("unet", "aws-p3.16xlarge", 16, "1540.5 MiB", "hybrid", (16, 32)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cluster", "batch", "memory", "forbid", "counts"), TIGHT)
def test_under_a_limit_more_gpus_are_no_slower(model, cluster, batch, memory, forbid, counts):
    asked = {"cluster": cluster, "global_batch_size": batch, "memory": memory, "forbid": forbid}
    few, many = (planner.optimize(model, gpus=n, optimizer="adam", **asked) for n in counts)
    assert many.step_time_s <= few.step_time_s


@pytest.fixture(scope="module")
def crowded():
    return planner.optimize(
        "alexnet", gpus=64, cluster="dgx-a100", global_batch_size=4, forbid=SPLITS_ALONE
    )


@pytest.mark.slow
def test_gpus_without_work_are_said_first(crowded):
    enough = crowded.gpus_at_work
    assert enough == crowded.summary()["gpus_at_work"] < 64
    first = crowded.fallbacks[0]
    assert first.startswith(f"{64 - enough} of 64 GPUs have no work of their own")
    assert f"repeat that of others: {enough} would be enough" in first
    assert f"{enough} GPUs would be enough" in plan_line(crowded)
    assert f"{enough} would be enough" in report_text(crowded).split("##")[0]


def test_one_gpu_is_said_as_one(tmp_path):
    path = tmp_path / "tiny.toml"
    fc = '[[layer]]\nname = "fc"\nkind = "linear"\nfilters = 1\n'
    path.write_text(f'name = "tiny"\n[input]\nsequence = 1\nhidden = 1\n{fc}')
    plan = planner.optimize(path, gpus=2, cluster="dgx-a100", global_batch_size=1)
    assert plan.gpus_at_work == 1
    assert plan_line(plan).endswith(", 1 GPU would be enough")
    assert "GPUs would be enough" not in report_text(plan)


@pytest.mark.slow
def test_as_many_gpus_as_are_enough_do_as_well(crowded):
    question = {"cluster": "dgx-a100", "global_batch_size": 4, "forbid": SPLITS_ALONE}
    alone = planner.optimize("alexnet", gpus=crowded.gpus_at_work, **question)
    # on more hosts they may have more links
    assert crowded.step_time_s <= alone.step_time_s * 1.001


def test_gpus_with_work_are_no_news():
    plan = planner.optimize("alexnet", gpus=4, cluster="abci", global_batch_size=128)
    assert plan.gpus_at_work == 4
    assert not any("work of their own" in text for text in plan.fallbacks)
    assert "enough" not in plan_line(plan)


@pytest.mark.parametrize(
    ("splits", "at_work"),
    [
        ([{"sample": (4, 2)}], 8),
        ([{"sample": (4, 1)}], 4),
        ([{"sample": (2, 1)}, {"filter": (1, 2)}], 4),
        ([{"sample": (2, 1)}, {"filter": (4, 1)}], 4),
        ([{}], 1),
    ],
)
def test_devices_at_work_are_those_that_no_other_repeats(splits, at_work):
    layers = [Distribution(degrees=degrees, shape=(4, 2)) for degrees in splits]
    assert devices_at_work(layers) == at_work


@pytest.mark.slow
def test_equal_blocks_are_found_where_not_all_gpus_share_out_the_batch():
    """A number of ways that does not divide the batch ruled out all that do: 6 times as slow."""
    asked = {
        "model": "resnet18",
        "cluster": "dgx-a100",
        "global_batch_size": 64,
        "framework": "jax",
    }
    many = planner.optimize(**asked, gpus=24)
    for gpus in (8, 16):
        few = planner.optimize(**asked, gpus=gpus)
        assert many.step_time_s <= few.step_time_s * 1.001
        assert many.search.lower_bound_s <= few.step_time_s
    assert many.gpus + many.idle_gpus == 24
    splits = [layer.distribution for layer in many.layers.values()]
    assert all(64 % math.prod(split.degrees.get("sample", (1,))) == 0 for split in splits)

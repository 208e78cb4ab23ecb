"""Networks without attention: all ways to train are searched beside the splits of one stage."""

from __future__ import annotations

import itertools
import random
import statistics
from types import SimpleNamespace

import pytest
from questions import SPLITS_ALONE, small_llama

import planner
from planner.joint import answer
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.known_splits import KnownSplits
from planner.joint.requests import wishes_of
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.search import JointSearch
from planner.joint.variants import with_variants
from planner.joint.ways_inside import insides
from planner.planning.decision.finals import SIMPLER_WITHIN
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

# so few samples that launches take most of a step, which stages share out
FEW = {"gpus": 4, "cluster": "lassen", "global_batch_size": 4}


@pytest.fixture(scope="module")
def few() -> planner.Plan:
    return planner.optimize("resnet18", **FEW)


@pytest.mark.ci_cases(3)
@pytest.mark.parametrize(
    "narrower",
    [
        {"forbid": SPLITS_ALONE},
        {"forbid": "zero-bubble"},
        {"forbid": "data"},
        {"keep": "zero=3"},
        {"keep": "pp=2"},
        {"keep": "pp=4,micro_batches=2"},
        {"memory": "1.2 GiB"},
    ],
)
def test_no_narrower_question_has_a_faster_answer(few, narrower):
    plan = planner.optimize("resnet18", **FEW, **narrower)
    assert few.step_time_s <= plan.step_time_s * (1.0 + SIMPLER_WITHIN)
    assert few.search.lower_bound_s <= plan.step_time_s


def test_stages_are_the_plan_where_they_are_faster(few):
    alone = planner.optimize("resnet18", **FEW, forbid=SPLITS_ALONE)
    assert few.num_groups > 1
    assert few.step_time_s < 0.97 * alone.step_time_s
    assert few.search.num_choices > 0
    # compared with the same strategies, under the buckets that suit them
    rows = {row.name: row for row in few.baselines}
    assert all(rows[row.name] == row for row in alone.baselines)
    assert "zero1" in rows


@pytest.mark.slow
def test_splits_are_the_plan_where_nothing_is_faster_by_more_than_they_are_simpler():
    question = {"gpus": 16, "cluster": "dgx-a100", "global_batch_size": 512}
    free = planner.optimize("resnet50", **question)
    alone = planner.optimize("resnet50", **question, forbid=SPLITS_ALONE)
    assert not free.is_staged
    assert free.layers == alone.layers
    assert free.step_time_s == alone.step_time_s
    # the bound is of all of them
    assert free.search.lower_bound_s <= alone.search.lower_bound_s
    assert free.search.num_choices > 0 == alone.search.num_choices
    kept = planner.optimize("resnet50", **question, keep="zero=3")
    gain = 1.0 - kept.step_time_s / free.step_time_s
    assert any(f"{gain:.1%} less, which is too little" in note for note in free.fallbacks)
    assert free.search.lower_bound_s <= kept.step_time_s
    assert free.step_time_s <= kept.step_time_s * (1.0 + SIMPLER_WITHIN)


@pytest.mark.slow
def test_more_gpus_than_stages_and_samples_need_are_left_without_work():
    plans = [planner.optimize("alexnet", **{**FEW, "gpus": gpus}) for gpus in (4, 12, 16)]
    for one, other in itertools.pairwise(plans):
        assert other.step_time_s <= one.step_time_s * 1.001


def test_splits_of_a_plan_are_sharded_where_updates_take_long(monkeypatch):
    question = {"gpus": 16, "cluster": "lassen", "global_batch_size": 64, "optimizer": "adam"}
    shards = []
    run = answer.with_own_splits

    def watched(search, found, deadline):
        found = run(search, found, deadline)
        shards.extend(found.own_splits if search.splits.distributions else ())
        return found

    monkeypatch.setattr(answer, "with_own_splits", watched)
    plan = planner.optimize("vgg16", **question)
    assert shards
    fitting = [one.seconds for one in shards if one.fits]
    assert plan.step_time_s <= min(fitting) * (1.0 + SIMPLER_WITHIN)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("part", "held", "gives_way"),
    [(0.985, 2.0, True), (0.995, 2.0, False), (0.995, 1.0, True), (0.9995, 0.5, False)],
)
def test_what_is_little_faster_must_need_no_more_memory(few, part, held, gives_way):
    alone = planner.optimize("resnet18", **FEW, forbid=SPLITS_ALONE)
    other = SimpleNamespace(seconds=part * alone.step_time_s, peak_memory=held * alone.peak_memory)
    assert KnownSplits.of(alone).give_way_to(other) == gives_way


def test_what_no_split_takes_less_than_is_said_of_a_plan_of_stages(few):
    assert any("no step on these 4 GPUs takes less than" in note for note in few.fallbacks)
    assert not any("less than 0" in note for note in few.fallbacks)


@pytest.mark.slow
def test_splits_of_fewer_gpus_are_asked_for_where_there_are_fewer_samples():
    question = {"cluster": "abci", "global_batch_size": 12, "optimizer": "adam"}
    question["memory"] = "828 MiB"
    half = planner.optimize("resnet18", gpus=12, **question)
    whole = planner.optimize("resnet18", gpus=24, **question)
    assert whole.step_time_s <= half.step_time_s * (1.0 + SIMPLER_WITHIN)


@pytest.mark.slow
def test_what_a_network_without_attention_has_not_is_forbidden_in_vain():
    alone = planner.optimize("resnet18", **FEW, forbid=SPLITS_ALONE)
    other = planner.optimize("resnet18", **FEW, forbid=f"{SPLITS_ALONE},context,sequence")
    assert other.strategy == alone.strategy
    assert other.search.lower_bound_s == alone.search.lower_bound_s


@pytest.mark.parametrize("kept", ["cp=1", "ep=1,sequence_parallel=no"])
def test_what_a_network_without_attention_has_anyway_is_kept_in_vain(kept):
    alone = planner.optimize("alexnet", **FEW, forbid=SPLITS_ALONE)
    other = planner.optimize("alexnet", **FEW, forbid=SPLITS_ALONE, keep=kept)
    assert other.strategy == alone.strategy
    assert other.search.lower_bound_s == alone.search.lower_bound_s


@pytest.mark.parametrize(
    ("wish", "kinds", "dim"),
    [
        ({"forbid": "expert"}, {"linear", "dispatch", "combine", "glu"}, "expert"),
        ({"keep": "ep=1"}, {"linear", "dispatch", "combine", "glu"}, "expert"),
        ({"forbid": "context"}, {"attention"}, "sequence"),
        ({"keep": "cp=1"}, {"attention"}, "sequence"),
    ],
)
def test_ruling_out_context_and_experts_leaves_other_splits(wish, kinds, dim):
    request = make_request("optimize", {"model": "mixtral-8x7b", "gpus": 8, **wish})
    setting = resolve(request)
    wishes = wishes_of(request, setting)
    assert wishes.leaves_splits
    left = wishes.with_splits_left(setting).graph.layers
    for name, layer in setting.graph.layers.items():
        some = {dim} if layer.kind in kinds else set()
        assert left[name].splittable == layer.splittable - some


def test_attention_is_split_otherwise_where_context_parallelism_is_ruled_out(tmp_path):
    # no split layer by layer was searched then; two heads leave little else for four GPUs
    sizes = {"hidden_size": 1280, "intermediate_size": 2560, "num_attention_heads": 2}
    more = {"num_hidden_layers": 1, "vocab_size": 1024, "max_position_embeddings": 8192}
    model = small_llama(tmp_path, **sizes, **more)
    for forbid in (SPLITS_ALONE, f"{SPLITS_ALONE},context", "accumulation,context"):
        plan = planner.optimize(model, gpus=4, global_batch_size=1, forbid=forbid)
        assert plan.search.num_candidates
        rows = [one.distribution for one in plan.layers.values() if one.kind == "attention"]
        assert any(row.degree("sequence") > 1 for row in rows) == (forbid == SPLITS_ALONE)


def test_an_interrupt_leaves_the_splits(monkeypatch):
    def interrupted(self, **_):
        raise KeyboardInterrupt

    for name in ("run", "_result"):
        with monkeypatch.context() as patched:
            patched.setattr(JointSearch, name, interrupted)
            plan = planner.optimize("alexnet", **FEW)
        assert plan.search.stopped_by == "interrupt"
        assert not plan.is_staged
        assert any("stopped early by interrupt" in note for note in plan.fallbacks)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "batch"),
    [
        ("resnet18", "dgx-a100", 8, 64),
        # branches whose layers may work beside those of another stage
        ("googlenet", "lassen", 8, 32),
        ("densenet121", "abci", 4, 16),
        ("unet", "dgx-a100", 8, 12),
    ],
)
def test_bounds_of_stages_hold_wherever_layers_wait(model, cluster, gpus, batch):
    asked = {"model": model, "gpus": gpus, "cluster": cluster, "global_batch_size": batch}
    setting = resolve(make_request("optimize", asked))
    estimates = Estimates(setting, searched_runtime(setting))
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    every = with_variants(setting, choices(setting, list(insides(setting)), (0, 2, 3)))
    staged = [one for one in every if one.pp > 1 and one.micro_batches <= 16]
    near = {"1f1b": [], "zero-bubble": []}
    for choice in random.Random(11).sample(staged, 16):
        found, reason = tried(
            setting, choice.degrees, choice_runtime(estimates.runtime, choice.zero)
        )
        if found is None:
            assert "fewer than the 4 ways" in reason
            continue
        assert bounds.of(choice, fitting=False) <= found.seconds
        assert floors.may_take(choice, found.seconds * (1.0 + 1e-9))
        near.get(choice.schedule, []).append(bounds.of(choice, fitting=False) / found.seconds)
    assert all(statistics.median(rows) > 0.5 for rows in near.values())

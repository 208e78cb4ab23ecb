"""The search over stages, micro-batches, sharding and recomputation, against the simulation."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from functools import partial

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import planner
from costmodels.errors import InputError
from costmodels.graph import build_graph
from costmodels.simulation import load_runtime
from planner.cli.command import planner_command
from planner.errors import InfeasibleError
from planner.joint import answer, search, simulations
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.fewer_gpus import MOST_MISSES_OF_FEWER
from planner.joint.ranking import Ranking
from planner.joint.reduced import Reduced
from planner.joint.result import JointResult
from planner.joint.runtimes import choice_runtime
from planner.joint.verdict import least_held, search_notes, summary
from planner.joint.ways_inside import insides
from planner.joint.wishes import parse_forbid, parse_keep
from planner.models import load_network
from planner.plan import Plan
from planner.planning import usual as usual_ways
from planner.planning.infeasible import stopped_error
from planner.planning.optimize import plan_for
from planner.planning.staged import tried
from planner.report.markdown import report_text
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

DDP = load_runtime("ddp")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


QUESTION = {
    "gpus": 8,
    "cluster": "dgx-a100",
    "global_batch_size": 16,
    "precision": "bf16",
    "optimizer": "adam",
}


@pytest.fixture(scope="module")
def setting(config):
    return resolve(make_request("optimize", {**QUESTION, "model": config}))


@pytest.mark.parametrize("model", ["gpt2", "llama3-8b", "deepseek-v3", "t5-11b", "resnet50"])
def test_a_reduced_network_has_a_layer_like_each_of_the_whole_one(model):
    whole = load_network(model, None)
    reduced = Reduced.of(whole, build_graph(whole, 1))
    all_layers, few = build_graph(whole, 2).layers, build_graph(reduced.network, 2).layers
    for name, like in reduced.like.items():
        assert all_layers[name].signature == few[like].signature
    assert len(few) < len(all_layers)
    kinds = {layer.signature for layer in all_layers.values()}
    assert kinds == {layer.signature for layer in few.values()}


def test_blocks_that_are_built_alike_and_read_more_are_not_alike():
    whole = load_network("squeezenet1_1", None)
    graph = build_graph(whole, 1)
    names = ("features.10.squeeze", "features.11.squeeze")
    assert len({graph.layers[name].parameters for name in names}) == 2
    reduced = Reduced.of(whole, graph)
    assert [reduced.like[name] for name in names] == list(names)


@pytest.mark.slow
def test_estimates_are_near_the_simulation_and_bounds_are_below(setting):
    runtime = load_runtime("ddp")
    estimates = Estimates(setting, runtime)
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    assert floors.chain
    everything = list(choices(setting, list(insides(setting))))
    least, off = floors.least(Deadline(None)), []
    for choice in random.Random(7).sample(everything, 60):
        one = estimates.of(choice)
        found, reason = tried(setting, one.choice.degrees, choice_runtime(runtime, choice.zero))
        assert found is not None, reason
        assert found.seconds > floors.floor(choice) >= least
        assert found.seconds >= bounds.of(choice) >= floors.floor(choice) * 0.99
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        assert found.peak_memory >= bounds.memory.of(choice, inside)
        off.append(abs(one.seconds / found.seconds - 1.0))
        if choice.zero < 3:  # the allocator of that runtime is left to the simulation
            assert one.memory == pytest.approx(found.peak_memory, rel=0.25)
    assert max(off) < 0.2
    assert sorted(off)[len(off) // 2] < 0.02


@pytest.mark.slow
def test_hosts_that_are_no_power_of_two_are_searched(config):
    # three GPUs of a host of eight make no group
    asked = {**QUESTION, "gpus": 24, "global_batch_size": 24}
    plan = planner.optimize(config, **asked)
    usual = [row.step_time_s for row in plan.baselines if row.fits]
    assert plan.step_time_s <= min(usual) * (1 + 1e-9)
    staged = planner.optimize(config, keep="tp=2,pp=3", **asked)
    assert staged.num_groups == 3


@pytest.fixture(scope="module")
def staged(config):
    return planner.optimize(config, keep="pp=2,tp=2", **QUESTION)


@pytest.mark.slow
def test_a_plan_of_stages_holds_what_was_kept_and_is_the_best_of_it(staged, setting):
    assert staged.num_groups == 2
    assert staged.is_staged
    dims = {dim for layer in staged.layers.values() for dim in layer.degrees}
    assert "filter" in dims
    runtime = load_runtime("ddp")
    others = [
        choice
        for choice in choices(setting, list(insides(setting)))
        if choice.pp == 2 and choice.inside.tp == 2 and choice.inside.recompute == "none"
    ]
    rng = random.Random(3)
    for choice in rng.sample(others, 12):
        found, _ = tried(setting, choice.degrees, choice_runtime(runtime, choice.zero))
        assert found is not None
        assert staged.step_time_s <= found.seconds * 1.01


def test_a_plan_of_stages_is_the_same_when_read_simulated_and_evaluated(staged, config, tmp_path):
    path = tmp_path / "plan.json"
    staged.save(path)
    again = Plan.load(path)
    assert again.to_json() == staged.to_json()
    assert again.strategy == staged.strategy
    assert planner.simulate(path).step_time == pytest.approx(staged.step_time_s, rel=1e-12)
    given = planner.evaluate(config, gpus=8, strategy=path)
    assert given.step_time_s == pytest.approx(staged.step_time_s, rel=1e-12)
    assert given.peak_memory == pytest.approx(staged.peak_memory)


def test_times_and_sizes_of_layers_add_up_over_the_groups(staged):
    times = [
        sum(staged.layers[name].time for name in names)
        for names in staged.strategy.layers_of_groups.values()
    ]
    assert max(times) <= staged.step_time_s
    assert sum(times) > 0.5 * staged.time_of_groups
    assert sum(staged.breakdown_s.values()) == pytest.approx(staged.step_time_s)


def test_edited_stages_are_refused(staged):
    document = json.loads(staged.to_json())
    document["stages"][0]["layers"] = document["stages"][0]["layers"][1:]
    with pytest.raises(InputError, match="stages must hold every layer once"):
        Plan.of_document(document, where="x")
    document = json.loads(staged.to_json())
    document["stages"][1]["first_device"] = 0
    with pytest.raises(InputError, match=r"stages must (fit each other|be on 8 GPUs)"):
        Plan.of_document(document, where="x")
    document = json.loads(staged.to_json())
    document["layers"][0]["sharded"] = ["hats"]
    with pytest.raises(InputError, match="sharded of layer"):
        Plan.of_document(document, where="x")


def test_a_larger_space_and_more_memory_are_never_slower(config):
    steps = [
        planner.optimize(config, keep=keep, **QUESTION).step_time_s
        for keep in ("tp=2,pp=2,zero=1", "tp=2,pp=2", "tp=2")
    ]
    assert steps == sorted(steps, reverse=True)
    tight, loose = (
        planner.optimize(config, memory=size, keep="pp=2", **QUESTION).step_time_s
        for size in ("3 GiB", "20 GiB")
    )
    assert loose <= tight


def test_some_blocks_are_computed_again_where_that_is_enough(config):
    asked = {**QUESTION, "memory": "5.5 GiB"}
    keep = "tp=1,pp=1,micro_batches=1,zero=0"
    some = planner.optimize(config, keep=keep, **asked)
    assert some.fits
    assert 0 < sum(len(stage.recompute) for stage in some.stages) < CONFIG["num_hidden_layers"]
    everything = planner.optimize(config, keep=f"{keep},recompute=full", **asked)
    assert len(everything.stages[0].recompute) == CONFIG["num_hidden_layers"]
    assert some.search.lower_bound_s <= some.step_time_s < everything.step_time_s
    # nor is one block fewer enough
    again = sum(len(stage.recompute) for stage in some.stages)
    fewer = Degrees(tp=1, pp=1, dp=8, micro_batches=1, recompute=again - 1)
    found, _ = tried(resolve(make_request("optimize", {**asked, "model": config})), fewer, DDP)
    assert found is not None
    assert not found.fits


def test_what_cannot_fit_is_proven(config):
    with pytest.raises(
        InfeasibleError, match=r"weights, gradients and optimizer state|no plan that fits"
    ) as caught:
        planner.optimize(config, memory="1.1 GiB", keep="pp=1", forbid="offload", **QUESTION)
    assert caught.value.proven == ("not proven" not in str(caught.value))
    with pytest.raises(InfeasibleError, match="optimizer state alone are") as caught:
        planner.optimize("gpt3-175b", gpus=8, cluster="dgx-a100", keep="tp=8", forbid="offload")
    assert caught.value.proven


@pytest.mark.slow
def test_the_front_falls(config):
    plans = planner.pareto(config, **QUESTION)
    assert len(plans) > 2
    steps = [plan.step_time_s for plan in plans]
    sizes = [plan.peak_memory for plan in plans]
    assert steps == sorted(steps)
    assert sizes == sorted(sizes, reverse=True)
    assert all(0.0 < plan.search.lower_bound_s <= plan.step_time_s for plan in plans)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".json", ".html"])
def test_a_front_is_written(config, tmp_path, suffix):
    path = tmp_path / f"front{suffix}"
    words = f"pareto {config} --gpus 8 --global-batch-size 16 --precision bf16 --optimizer adam"
    result = CliRunner().invoke(
        planner_command, [*words.split(), "--forbid", "context,pipeline", "-o", str(path)]
    )
    assert result.exit_code == 0, result.output
    assert "step time" in result.output
    said = " ".join(result.output.split())
    assert "beside the plan of 'planner optimize'" in said
    assert "ways to train, with one split of all layers, were estimated" in said
    text = path.read_text()
    if suffix == ".json":
        rows = json.loads(text)["front"]
        assert all(Plan.of_document(row["plan"], where="x").num_groups == 1 for row in rows)
    else:
        assert "<svg" in text


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("tp", "values such as tp=8"),
        ("hats=3", "use tp"),
        ("tp=2,tp=4", "each once"),
        ("tp=", "values such as tp=8"),
    ],
)
def test_bad_wishes_are_refused(keep, said):
    with pytest.raises(InputError, match=said if said != "use tp" else "use"):
        parse_keep(keep)


def test_unknown_ways_to_rule_out_are_refused():
    with pytest.raises(InputError, match="must be some of data, tensor"):
        parse_forbid("tensor,hats")
    assert parse_forbid("tensor, context,tensor") == ("tensor", "context")


@pytest.mark.parametrize(
    ("keep", "forbid", "why"),
    [
        (
            "tp=3",
            None,
            r"tp=3 is kept, but tp can be 1, 2, 4 or 8, since it must divide the 8 GPUs",
        ),
        ("zero=5", None, r"zero=5 is kept, but zero can be 0, 1, 2 or 3; keep one of these"),
        ("ep=2", None, r"ep can be 1 alone, since the network has no experts"),
        ("dp=16", None, r"dp can be 1, 2, 4 or 8, since it must divide the 8 GPUs and the batch"),
        ("pp=2", "pipeline", r"pipeline is forbidden and pp=2 is kept, but pp can then be 1 alone"),
        ("micro_batches=1,tp=4,dp=2,pp=2", "offload", r"dp=2 is kept and pp=2 is kept, but pp can"),
        ("schedule=pipe", None, r"schedule can be 1f1b, gpipe, interleaved or zero-bubble"),
    ],
)
def test_wishes_that_leave_nothing_are_refused_with_the_limit(config, keep, forbid, why):
    with pytest.raises(InputError, match=f"leaves nothing: .*{why}"):
        planner.optimize(config, keep=keep, forbid=forbid, **QUESTION)


def test_what_no_choice_kept_can_run_is_refused_with_the_limit():
    # it said that no plan fits in memory
    with pytest.raises(InputError, match=r"leaves nothing: the 12 heads .* but there are 8; keep"):
        planner.optimize("gpt2", gpus=8, keep="tp=8", cluster="dgx-a100")


def test_a_time_limit_ends_in_a_plan(config):
    plan = planner.optimize(config, time_limit=0.05, forbid="context", **QUESTION)
    assert plan.search.stopped_by == "time limit"
    assert plan.fits


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("gpus", [4, 8, 16])
def test_no_usual_way_to_train_is_faster(config, gpus):
    plan = planner.optimize(config, **{**QUESTION, "gpus": gpus})
    for row in plan.baselines:
        assert not row.fits or row.step_time_s >= plan.step_time_s * (1 - 1e-9)
    assert len([row for row in plan.finalists if row.chosen]) == 1


def test_buckets_are_as_asked_for(config, tmp_path):
    plan = planner.optimize(config, keep="pp=1,zero=0", bucket_bytes="1 MiB", **QUESTION)
    plan.save(tmp_path / "plan.json")
    again = planner.simulate(tmp_path / "plan.json")
    assert again.step_time == pytest.approx(plan.step_time_s, rel=1e-12)


def test_runtimes_with_buckets_of_their_own_say_so(config):
    # the report had the size that was asked for, under which nothing was simulated
    plan = planner.optimize(config, keep="pp=1,zero=3", bucket_bytes="1 MiB", **QUESTION)
    own = f"those of ddp: {plan.runtime}, under which the plan runs, has its own"
    assert any(own in note for note in plan.fallbacks)
    size = {"zero3": "954 MiB", "fsdp": "one for each unit of layers"}[plan.runtime]
    assert f"| gradient buckets | {size} |" in report_text(plan)


def test_a_proof_holds_for_the_leanest_recipe(setting):
    # autocast keeps 18 bytes of a parameter in bf16 with Adam, sharded parallelism 16
    assert least_held(setting) == setting.graph.parameters * 16


@pytest.mark.slow
def test_a_search_whose_estimates_are_too_small_ends(config, setting, monkeypatch):
    asked = []

    def too_large(where, setting, degrees, *others):
        asked.append((where, degrees))
        found, reason = tried(setting, degrees, *others)
        return replace(found, step=_Swollen(found.step)), reason

    for where in (simulations, usual_ways):
        monkeypatch.setattr(where, "tried", partial(too_large, where))
    with pytest.raises(InfeasibleError, match="not proven"):
        planner.optimize(config, keep="tp=1", **QUESTION)
    # of all GPUs, and of the smaller numbers that promise more, each under two runtimes where
    # weights are cut; usual ways are of each of them
    asked = [degrees for where, degrees in asked if where is simulations]
    later = (search.MOST_ROUNDS - 1) * 3 * simulations.LATER_MISSES
    cheap = simulations.MOST_WORK // len(setting.graph.compute_layers)
    most = 3 * simulations.MOST_MISSES + 4 + later + cheap
    assert len(asked) <= 2 * (1 + MOST_MISSES_OF_FEWER) * most


class _Swollen:
    """A step that fits nowhere."""

    def __init__(self, step):
        self.step = step
        self.roles = step.roles
        self.step_time = step.step_time

    @property
    def peak(self):
        peak = self.step.peak
        return replace(peak, memory=replace(peak.memory, total=1e15))

    @property
    def lasting_short(self):
        return self.peak.short


def test_options_of_one_stage_are_refused_where_they_would_not_be_heeded(config):
    with pytest.raises(InputError, match="of the splits of one stage"):
        planner.optimize(config, keep="pp=2", least_memory=True, **QUESTION)


def test_a_bound_that_is_undercut_is_withdrawn(staged, setting):
    found, _ = tried(setting, Degrees(tp=2, micro_batch_size=1), load_runtime("ddp"))
    result = JointResult(
        best=found,
        simulated=(found,),
        bound=2 * found.seconds,
        single_bound=0.0,
        num_choices=1,
        num_wished=1,
    )
    assert summary(result, found).lower_bound_s == 0.0
    assert not summary(result, found).proven_optimal
    assert "bound-withdrawn" in {note.kind for note in search_notes(result, found)}


@pytest.mark.parametrize("where", ["search", "comparison"])
def test_an_interrupt_keeps_what_was_found(config, monkeypatch, where):
    calls = []

    def interrupted(*asked):
        calls.append(asked)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return tried(*asked)

    monkeypatch.setattr(simulations if where == "search" else usual_ways, "tried", interrupted)
    plan = planner.optimize(config, keep="tp=2", **QUESTION)
    assert plan.search.stopped_by == "interrupt"
    assert plan.fits


def test_who_interrupts_before_anything_is_simulated_has_what_is_found_in_a_moment(
    config, monkeypatch
):
    calls, ranked = [], Ranking.of

    def interrupted(*asked, **options):
        calls.append(asked)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return ranked(*asked, **options)

    monkeypatch.setattr(Ranking, "of", interrupted)
    plan = planner.optimize(config, keep="tp=2", **QUESTION)
    assert len(calls) > 1
    assert plan.search.stopped_by == "interrupt"
    assert plan.fits


SMALL = {"cluster": "lassen", "global_batch_size": 64}


@pytest.mark.slow
def test_a_front_against_gpus_rises_and_holds_what_optimize_finds():
    plans = planner.pareto("alexnet", gpus=8, against="gpus", **SMALL)
    counts = [plan.gpus for plan in plans]
    assert counts == sorted(counts, reverse=True)
    assert set(counts) <= {1, 2, 4, 8}
    rates = [plan.throughput for plan in plans]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates) > 1
    for plan in plans:
        assert plan.global_batch_size == 64
        alone = planner.optimize("alexnet", gpus=plan.gpus, **SMALL)
        assert alone.step_time_s == pytest.approx(plan.step_time_s, rel=1e-3)
    everything = {
        plan.gpus: plan for plan in planner.scale("alexnet", gpus="1-8", strong=True, **SMALL)
    }
    for count in {1, 2, 4, 8} - set(counts):
        fewer = [everything[n].throughput for n in everything if n < count]
        assert everything[count].throughput <= max(fewer)


@pytest.mark.parametrize(
    ("given", "counts"), [("2-4", {2, 4}), ("1,4", {1, 4}), ([4, 2], {2, 4}), (4, {1, 2, 4})]
)
def test_a_front_against_gpus_takes_several_numbers(given, counts):
    plans = planner.pareto("alexnet", gpus=given, against="gpus", cluster="lassen")
    assert {plan.gpus for plan in plans} <= counts
    # the batch grows with the GPUs, so that more are faster
    assert plans[0].gpus == max(counts)
    assert {plan.global_batch_size // plan.gpus for plan in plans} == {32}


@pytest.mark.parametrize("suffix", [".json", ".html"])
def test_a_front_against_gpus_is_shown_and_written(tmp_path, suffix):
    path = tmp_path / f"front{suffix}"
    words = ["pareto", "alexnet", "--gpus", "1,2", "--cluster", "lassen", "--against", "gpus"]
    result = CliRunner().invoke(planner_command, [*words, "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert "alexnet on 1 to 2 x v100-16gb of lassen" in result.output
    assert "global batch 32 a GPU" in result.output
    text = path.read_text()
    if suffix == ".json":
        facts = json.loads(text)
        assert facts["against"] == "gpus"
        plans = [Plan.of_document(row["plan"], where="x") for row in facts["front"]]
        assert [row["gpus"] for row in facts["front"]] == [plan.gpus for plan in plans]
    else:
        assert "Throughput over GPUs" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": "4-8"}, "is of one number of GPUs but there are 2; name one, or add --against"),
        ({"gpus": 4, "against": "hosts"}, "must be one of memory, gpus but is 'hosts'"),
        ({"gpus": "4-", "against": "gpus"}, "must be whole numbers or ranges"),
        ({"gpus": "3", "against": "gpus"}, "divide or fill the hosts"),
        ({"gpus": True, "against": "gpus"}, "must be a whole number but is True"),
    ],
)
def test_fronts_against_what_there_is_not_are_refused(given, said):
    with pytest.raises(InputError, match=said):
        planner.pareto("alexnet", cluster="lassen", **given)


def test_a_front_against_gpus_that_fits_nowhere_says_why():
    with pytest.raises(InfeasibleError, match="no plan fits in memory"):
        planner.pareto("vgg16", gpus="1,2", against="gpus", cluster="lassen", memory="1.1 GiB")


def _resnet(**asked):
    return planner.optimize(
        "resnet18", gpus=8, cluster="dgx-a100", global_batch_size=64, precision="bf16", **asked
    )


@pytest.mark.slow
def test_all_ways_to_train_are_asked_where_memory_binds():
    free = _resnet()
    assert not free.search.memory_binds
    size = f"{0.9 * free.peak_memory / 2**20:.0f} MiB"
    tight = _resnet(memory=size)
    assert tight.search.memory_binds or tight.search.num_choices
    for ways in ("zero=1", "zero=3", "pp=2", "micro_batches=2", "recompute=full"):
        try:
            asked = _resnet(memory=size, keep=ways)
        except InfeasibleError:
            continue
        assert tight.step_time_s <= asked.step_time_s * (1 + 1e-9), ways
    assert tight.search.lower_bound_s <= tight.step_time_s


def test_no_feasible_plan_is_missed_that_a_usual_strategy_has():
    # no split of one stage fits in that, parts of the batch one after the other do
    plan = planner.optimize(
        "resnet18", gpus=2, global_batch_size=1024, memory="2.2 GiB", cluster="dgx-a100"
    )
    assert plan.fits
    assert plan.schedule.micro_batches > 1 or plan.is_staged


@pytest.mark.parametrize("left", ["nothing", "a plan"])
def test_an_interrupt_of_the_splits_of_one_stage_is_told(config, monkeypatch, left):
    searched = []

    def interrupted(*asked):
        searched.append(asked)
        if left == "nothing":
            raise stopped_error("interrupt")
        setting, options, *others = asked
        plan = plan_for(setting, replace(options, limit=math.inf), *others)
        return dataclasses.replace(plan, search=replace(plan.search, stopped_by="interrupt"))

    monkeypatch.setattr(answer, "plan_for", interrupted)
    monkeypatch.setattr(answer, "left_splits", lambda setting, found, limit: found)
    plan = planner.optimize(config, **QUESTION)
    assert searched
    assert plan.search.stopped_by == "interrupt"


def test_what_replicas_alone_need_is_proven_where_a_framework_has_nothing_else():
    question = {"gpus": 16, "cluster": "dgx-h100", "framework": "deepspeed"}
    with pytest.raises(InfeasibleError, match="every way to train that deepspeed has") as caught:
        planner.optimize("llama3-8b", forbid="sharding", **question)
    assert caught.value.proven
    assert caught.value.missing_bytes > 2.0**35  # 16 bytes of each of 8 billion parameters
    with pytest.raises(InfeasibleError) as caught:
        planner.optimize("llama3-8b", memory="16 GiB", **question)
    assert "offload" not in str(caught.value)  # which DeepSpeed's settings do not say


def test_a_deep_network_without_weights_has_a_plan(tmp_path):
    """There was nothing to cut in any way: "a defect of the planner"."""
    path = tmp_path / "deep.toml"
    path.write_text(
        'name = "deep"\n[input]\nsequence = 16\nhidden = 8\n[[layer]]\nname = "h"\nrepeat = 60\n'
        '[[layer.layer]]\nname = "r"\nkind = "activation"\n'
        '[[layer]]\nname = "loss"\nkind = "loss"\n'
    )
    plan = planner.optimize(str(path), gpus=2, global_batch_size=4)
    assert plan.step_time_s > 0.0
    cut = planner.optimize(str(path), gpus=2, global_batch_size=4, keep="pp=2")
    assert plan.step_time_s <= cut.step_time_s

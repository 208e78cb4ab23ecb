"""Plans under memory limits: found where there are some, proven absent where there are none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from click.testing import CliRunner
from machines import cluster, graph, machine
from msgspec.structs import replace
from questions import SPLITS_ALONE, small_llama

import planner
from costmodels.cluster import load_cluster
from planner.cli.command import planner_command
from planner.errors import InfeasibleError
from planner.planning import answer
from planner.planning.bounds.under_limit import save_memory
from planner.planning.decision.decide import judge
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.infeasible import stopped_error
from planner.planning.memory.by_moment import memory_by_moment
from planner.planning.memory.prices import MemoryPrices, Point, prices_to_try
from planner.planning.options import Overtaken
from planner.planning.search_plan import search_plan
from planner.planning.space.costing import cost
from planner.planning.space.formulate import Formulation, formulate
from search.elimination.k_best import k_best
from search.problem.problem import costs_and_peaks

GIB = 2.0**30


def narrow(cap: int = 4) -> Formulation:
    """A small network whose assignments can all be costed."""
    rows: list = [
        ("conv", "conv", {"filters": 16, "kernel": 3, "padding": 1}),
        ("bn", "batch_norm", {}),
        ("relu", "activation", {}),
        ("next", "conv", {"filters": 16, "kernel": 3, "padding": 1}),
        ("fc", "linear", {"filters": 64}),
    ]
    where = cluster(4)
    g = graph({"channel": 8, "height": 16, "width": 16}, rows, 8)
    return formulate(g, where, machine(where), cap=cap)


def under(formulation: Formulation, memory: float) -> Formulation:
    """The same on devices of that much memory."""
    where = formulation.cluster
    device = replace(where.device, memory=memory, reserved_memory=0.0)
    return replace(formulation, cluster=replace(where, device=device))


@pytest.fixture(scope="module")
def everything() -> tuple[Formulation, list]:
    formulation = under(narrow(), 1e12)
    sizes = [len(formulation.spaces[layer.name].candidates) for layer in formulation.layers]
    choices = itertools.product(*map(range, sizes))
    return formulation, [cost(formulation, row) for row in choices]


def test_the_least_memory_is_found_and_what_is_below_is_proven(everything):
    formulation, costs = everything
    least = min(costed.memory.total for costed in costs)
    found = search_plan(formulation, least_memory=True)
    assert found.best is not None
    assert found.best.memory.total <= least * 1.05
    assert 0.8 * least <= found.least_memory <= least * (1 + 1e-9)
    lower = search_plan(under(formulation, 0.8 * found.least_memory))
    assert lower.best is None
    assert lower.incumbent.infeasible


def test_prices_never_bound_above_what_fits(everything):
    formulation, costs = everything
    rows, plain = memory_by_moment(formulation), formulation.problem(0.5)
    peaks = [costed.memory.total for costed in costs]
    rng = np.random.default_rng(0)
    for limit in np.quantile(peaks, (0.1, 0.5, 0.9)):
        fastest = min(c.step.total for c in costs if c.memory.total <= limit)
        for _ in range(5):
            raw = rng.random(rows.num_moments) * (rng.random(rows.num_moments) < 0.3)
            memory = MemoryPrices(rows=rows, prices=raw * fastest / limit, limit=float(limit))
            answer = k_best(memory.priced(plain), 1)[0]
            assert memory.bound(answer.lower_bound) <= fastest


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_bound_under_a_limit_holds_for_what_was_not_searched(share):
    whole = narrow(10**6)
    free = search_plan(under(whole, 1e12))
    least = search_plan(under(whole, 1e12), least_memory=True)
    assert free.best is not None
    assert least.best is not None
    low, high = least.best.memory.total, free.best.memory.total
    limit = low + share * (high - low)
    found = search_plan(under(whole, limit))
    assert found.best is not None
    for cap in (4, 8, 16):
        few = search_plan(under(narrow(cap), limit))
        assert few.incumbent.infeasible or few.incumbent.bound <= found.best.step.total * (1 + 1e-9)


@pytest.mark.parametrize("bucket", [1.0, 2.0**14, 1e12])
def test_sums_that_are_never_less_than_what_is_held(bucket):
    where = narrow()
    training = replace(where.machine.training, bucket_bytes=bucket)
    formulation = where.with_training(training)
    rows, rng = memory_by_moment(formulation), np.random.default_rng(0)
    sizes = [len(formulation.spaces[layer.name].candidates) for layer in formulation.layers]
    choices = np.stack([rng.integers(size, size=100) for size in sizes], axis=1)
    for moment in range(rows.num_moments):
        weights = np.eye(rows.num_moments)[moment]
        sums = [
            costs_and_peaks(held, choices)[0] + beyond
            for held, beyond in rows.never_less(formulation.without_times(), weights)
        ]
        truth = rows.held(choices)[:, moment]
        assert np.allclose(np.min(sums, axis=0), truth, rtol=1e-9)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_what_is_fastest_under_a_limit_is_found(everything, share):
    _, rows = everything
    least = min(row.memory.total for row in rows)
    fastest = min(rows, key=lambda row: row.step.total)
    limit = least + share * (fastest.memory.total - least)
    best = min(row.step.total for row in rows if row.memory.total <= limit)
    found = search_plan(under(narrow(), limit)).best
    assert found is not None
    assert found.step.total <= best * 1.001


def test_prices_to_try_are_those_of_the_highest_bound():
    # one holds too much in the first moment, one too much in the second
    points = [
        Point(cost=1.0, held=np.array([4.0, 1.0])),
        Point(cost=1.0, held=np.array([1.0, 4.0])),
        Point(cost=3.0, held=np.array([2.0, 2.0])),
    ]
    prices, height = prices_to_try(points, limit=2.0, total=10.0, unit=(1.0, 1.0))
    # at a price of 2 in both, each costs 1 + 2 * (2 - 1) = 3
    assert prices == pytest.approx([2.0, 2.0])
    assert height == pytest.approx(3.0)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("memory", "within"), [("4.12 GiB", 1.6), ("4.3 GiB", 1.35), ("4.4 GiB", 1.2)]
)
def test_gpt2_gets_a_plan_where_there_is_one(memory, within):
    options = {"gpus": 16, "global_batch_size": 64}
    free = planner.optimize("gpt2", **options)
    plan = planner.optimize("gpt2", memory=memory, **options)
    assert plan.peak_memory <= plan.memory_capacity_bytes
    assert free.step_time_s <= plan.step_time_s <= within * free.step_time_s


@pytest.mark.slow
def test_layers_split_in_two_make_resnet152_fit():
    options = {"gpus": 64, "global_batch_size": 2048}
    plan = planner.optimize("resnet152", memory="4.14 GiB", **options)
    assert plan.peak_memory <= 4.14 * GIB
    with pytest.raises(InfeasibleError) as error:
        planner.optimize("resnet152", memory="3 GiB", forbid=SPLITS_ALONE, **options)
    assert error.value.proven


def without_rival(search, profile, *args, rival=None):
    return save_memory(search, profile, *args)


def test_the_search_under_a_limit_ends_where_something_else_is_faster(everything):
    _, rows = everything
    fastest = min(rows, key=lambda row: row.step.total)
    least = min(row.memory.total for row in rows)
    limit = 0.5 * (least + fastest.memory.total)
    asked = []

    def rival(seconds):
        asked.append(seconds)
        return seconds

    # by what none of the candidates that fits takes less than
    fitting = min(row.step.total for row in rows if row.memory.total <= limit)
    with pytest.raises(Overtaken) as ended:
        search_plan(under(narrow(), limit), rival=lambda: rival(0.5 * fastest.step.total))
    assert 0.5 * fastest.step.total < ended.value.bound <= fitting
    assert ended.value.note.kind == "single-stage-bounded"
    slower = search_plan(under(narrow(), limit), rival=lambda: rival(10.0))
    assert slower.best is not None
    assert slower.best.memory.total <= limit
    count = len(asked)
    search_plan(under(narrow(), 1e12), rival=lambda: rival(0.0))
    assert len(asked) == count  # nothing else is looked at where memory does not bind


def test_the_search_under_a_limit_ends_where_what_fits_is_much_slower(everything, monkeypatch):
    _, rows = everything
    least = min(row.memory.total for row in rows)
    fastest = min(rows, key=lambda row: row.step.total)
    limit = 0.5 * (least + fastest.memory.total)
    fitting = min(row.step.total for row in rows if row.memory.total <= limit)
    # a bound says nothing as yet
    monkeypatch.setattr("planner.planning.bounds.under_limit.save_memory", without_rival)
    with pytest.raises(Overtaken) as ended:
        search_plan(under(narrow(), limit), rival=lambda: 0.5 * fastest.step.total)
    assert ended.value.seconds >= fastest.step.total
    assert ended.value.bound <= fitting
    assert ended.value.note.kind == "single-stage-overtaken"


def test_the_search_ends_where_what_is_found_is_slower_than_a_plan_that_is_known(everything):
    _, rows = everything
    fastest = min(row.step.total for row in rows)
    roomy = under(narrow(), 1e12)
    with pytest.raises(Overtaken) as ended:
        search_plan(roomy, limit=0.9 * fastest)
    assert 0.9 * fastest < ended.value.bound <= fastest
    assert ended.value.note.kind == "single-stage-bounded"
    near = search_plan(roomy, limit=fastest)
    assert near.best == search_plan(roomy).best


def test_splits_that_are_not_searched_are_priced_where_the_search_ends_early(everything):
    _, rows = everything
    least = min(row.memory.total for row in rows)
    fastest = min(rows, key=lambda row: row.step.total)
    few, many = (under(narrow(cap), 0.5 * (least + fastest.memory.total)) for cap in (2, 1000))
    best = search_plan(many).best
    alone = search_plan(few)
    assert best.step.total <= alone.best.step.total
    # the problem that is told of it is under the limit, though more candidates came in behind it
    assert alone.formulation.num_candidates > sum(map(len, alone.problem.costs))
    assert alone.problem.usage_limit is not None
    with pytest.raises(Overtaken) as ended:
        search_plan(few, limit=0.9 * best.step.total)
    assert ended.value.bound <= best.step.total


@pytest.mark.slow
def test_what_no_way_to_train_fits_is_not_proven_beyond_the_weights():
    # weights with their state are less than that: other splits of layers may fit for all we know
    options = {"gpus": 8, "global_batch_size": 32, "memory": "1.2 GiB"}
    with pytest.raises(InfeasibleError, match=r"\d+ with splits of their own, though") as told:
        planner.optimize("vgg16", **options)
    assert not told.value.proven
    assert told.value.missing_bytes > 0.0


@pytest.mark.slow
def test_splits_that_keep_too_much_are_not_searched_one_by_one(monkeypatch):
    free = planner.optimize("resnet18", gpus=8, global_batch_size=1024)
    reserved = free.memory_bytes["reserved"]
    limit = f"{reserved + 0.5 * (free.peak_memory - reserved):.0f} B"

    def refused(*args):
        raise AssertionError("no split of one stage is within half of what all of them keep")

    monkeypatch.setattr("planner.joint.answer.plan_for", refused)
    plan = planner.optimize("resnet18", gpus=8, global_batch_size=1024, memory=limit)
    assert plan.peak_memory <= plan.memory_capacity_bytes


@pytest.mark.slow
def test_some_blocks_computed_again_make_a_densenet_fit():
    options = {"gpus": 64, "global_batch_size": 2048}
    free = planner.optimize("densenet121", **options)
    steps = [free.step_time_s]
    for share in (0.95, 0.8):
        limit = share * free.peak_memory
        plan = planner.optimize("densenet121", memory=limit, **options)
        assert plan.peak_memory <= limit
        steps.append(plan.step_time_s)
    assert steps[0] < steps[1] < steps[2] < 1.3 * steps[0]


@pytest.mark.slow
def test_a_plan_between_what_prices_find_is_found():
    # beside the reserve, prices alone find 1,449 MiB, and layers of several such answers 1,434
    options = {"gpus": 64, "global_batch_size": 2048}
    plan = planner.optimize("resnet50", memory="2.402 GiB", **options)
    assert plan.peak_memory <= 2.402 * GIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "batch", "memory"),
    [
        # one split of all layers: estimates prefer what mixes splits by 1 %, simulations do not
        ("mesh-1k", "dgx-a100", 64, 4, 1.39877e9),
    ],
)
def test_a_limit_finds_nothing_that_is_faster_than_without_it(model, cluster, gpus, batch, memory):
    options = {"gpus": gpus, "cluster": cluster, "global_batch_size": batch}
    free = planner.optimize(model, **options)
    limited = planner.optimize(model, memory=memory, **options)
    assert free.step_time_s <= limited.step_time_s * 1.001


@pytest.mark.slow
def test_what_holds_less_is_begun_with_where_memory_does_not_bind(tmp_path):
    """Moves from what the additive model has as the fastest end 1 % above what holds less."""
    model = small_llama(
        tmp_path,
        model_type="mixtral",
        hidden_size=512,
        intermediate_size=1536,
        num_attention_heads=8,
        num_hidden_layers=3,
        vocab_size=1000,
        max_position_embeddings=512,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    question = {"cluster": "lassen", "gpus": 4, "global_batch_size": 16}
    question |= {"precision": "fp16", "optimizer": "adam"}
    free, limited = (
        planner.optimize(model, **question, memory=memory) for memory in (None, "1245.9 MiB")
    )
    assert free.step_time_s <= limited.step_time_s * 1.005


@pytest.mark.slow
def test_under_a_limit_a_faster_network_is_no_slower(tmp_path):
    """What fits by prices is 12 % slower then than what the fastest becomes that does not fit."""
    model = small_llama(
        tmp_path,
        hidden_size=256,
        intermediate_size=1024,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_hidden_layers=8,
        vocab_size=50257,
        max_position_embeddings=1024,
    )
    usual = load_cluster("aws-p3.16xlarge")
    host, network = usual.levels
    fast = replace(network, bandwidth=2.0 * network.bandwidth)
    before, after = (
        planner.optimize(
            model,
            cluster=machine,
            gpus=16,
            global_batch_size=8,
            memory="1158.1 MiB",
            precision="fp16",
            optimizer="adam",
            forbid=SPLITS_ALONE,
        )
        for machine in (usual, replace(usual, levels=(host, fast)))
    )
    assert after.step_time_s <= before.step_time_s
    assert after.peak_memory <= 1158.1 * 2**20


@pytest.mark.slow
def test_a_limit_that_estimates_of_memory_miss_does_not_end_at_the_slowest_plan():
    # what is estimated to fit does not, by 2 %; parts of 8 samples do
    given = {"gpus": 64, "cluster": "dgx-a100", "global_batch_size": 2048, "memory": "1.22 GiB"}
    plan = planner.optimize("resnet18", **given)
    parts = planner.simulate("resnet18", dp=64, micro_batches=4, zero=2, **given)
    assert parts.fits
    assert plan.step_time_s <= parts.step_time * (1 + 1e-9)


@pytest.mark.slow
def test_least_memory_is_said_when_asked():
    arguments = ["optimize", "alexnet", "--gpus", "16", "--least-memory"]
    result = CliRunner().invoke(planner_command, arguments)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "the least memory found is" in text
    assert "no split of the layers of one stage fits in less than" in text
    assert "may make do with less, which --memory searches" in text
    free = planner.optimize("alexnet", gpus=16)
    least = planner.optimize("alexnet", gpus=16, least_memory=True)
    assert least.peak_memory < free.peak_memory
    options = {"gpus": 16, "global_batch_size": least.global_batch_size}
    tight = planner.optimize("alexnet", memory=least.peak_memory * 1.01, **options)
    assert tight.peak_memory <= least.peak_memory * 1.01


def simulated_with(monkeypatch: pytest.MonkeyPatch, further: float) -> None:
    """Let simulations find that much more memory than the search counts. [B]"""
    simulate = PlanSimulator.simulate

    def more(self, choices, bucket_bytes):
        trial = simulate(self, choices, bucket_bytes)
        return replace(trial, peak_memory=trial.peak_memory + further)

    monkeypatch.setattr(PlanSimulator, "simulate", more)


QUESTION = {"gpus": 16, "cluster": "abci", "global_batch_size": 256, "memory": "1.2 GiB"}
QUESTION_LIMIT = 1.2 * GIB


@pytest.mark.slow
def test_where_simulations_need_more_a_plan_is_chosen_that_still_fits(monkeypatch):
    usual = planner.optimize("resnet18", **QUESTION)
    least = min(row.peak_memory_bytes for row in usual.finalists)
    # so that none of these fits any more
    simulated_with(monkeypatch, QUESTION_LIMIT - least + 1.0)
    plan = planner.optimize("resnet18", **QUESTION)
    (chosen,) = (row for row in plan.finalists if row.chosen)
    assert chosen.peak_memory_bytes <= QUESTION_LIMIT
    assert plan.step_time_s > usual.step_time_s


@pytest.mark.slow
def test_what_no_simulation_finds_to_fit_is_no_plan(monkeypatch):
    simulated_with(monkeypatch, 0.5 * GIB)
    with pytest.raises(InfeasibleError, match=r"nor is it proven.*the smallest of \d+ sim") as told:
        planner.optimize("resnet18", forbid=SPLITS_ALONE, **QUESTION)
    assert not told.value.proven
    assert 0.0 < told.value.missing_bytes < 0.5 * GIB
    command = "optimize resnet18 --gpus 16 --cluster abci --global-batch-size 256 --memory"
    alone = ["1.2GiB", "--forbid", SPLITS_ALONE]
    result = CliRunner().invoke(planner_command, [*command.split(), *alone])
    assert result.exit_code == 4


@pytest.mark.parametrize("stop", ["interrupt", ""])
def test_an_interrupt_of_the_question_for_fewer_devices_is_told(monkeypatch, stop):
    asked = []

    def judged(attempt, *given):
        asked.append(attempt.formulation.machine.topology.num_devices)
        if len(asked) > 1:
            raise stopped_error(stop)
        return judge(attempt, *given)

    monkeypatch.setattr(answer, "judge", judged)
    plan = planner.optimize("alexnet", gpus=16, cluster="lassen", global_batch_size=1, cap=16)
    assert asked == [16, 8]
    assert plan.search.stopped_by == stop


@pytest.mark.slow
def test_a_limit_that_the_fastest_plan_is_within_leaves_it():
    """What is fastest by terms does not fit; what is fastest by simulation takes far less."""
    question = {"gpus": 16, "cluster": "lassen", "global_batch_size": 4}
    more, less = (
        planner.optimize("unet", **question, memory=memory) for memory in ("1579 MiB", "1529 MiB")
    )
    assert more.peak_memory < 1529 * 2**20
    assert less.step_time_s <= more.step_time_s * 1.005

"""The least memory of all distributions, and assignments between those that prices find."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from click.testing import CliRunner
from machines import cluster, graph, machine
from msgspec.structs import replace
from questions import SPLITS_ALONE
from random_plans import random_choices, random_formulation

import planner
from benchmarks.planning.memory_limits import worse_with_more
from costmodels.layers.layer_cost import layer_costs
from planner.cli.command import planner_command
from planner.errors import InfeasibleError
from planner.planning.bounds.least_memory import least_memory, one_of_each_split
from planner.planning.bounds.least_on_tree import least_on_tree
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.memory import mixtures
from planner.planning.memory.by_moment import memory_by_moment, memory_of_layers
from planner.planning.memory.mixtures import Mixtures
from planner.planning.memory.prices import Climb, Point, balance
from planner.planning.search_plan import search_plan
from planner.planning.space.costing import cost
from planner.planning.space.formulate import Formulation, formulate
from search.problem.deadline import Deadline
from search.problem.problem import costs_and_peaks

NO_LIMIT = Deadline(None)


def branching(cap: int = 40, hosts: int = 2) -> Formulation:
    """Branches that read one tensor, which only some of them keep a copy of."""
    rows: list = [
        ("conv", "conv", {"filters": 16, "kernel": 3, "padding": 1}),
        ("one", "conv", {"filters": 8, "kernel": 1}, ["conv"]),
        ("two", "conv", {"filters": 8, "kernel": 3, "padding": 1}, ["conv"]),
        ("three", "pool", {"kernel": 3, "stride": 1, "padding": 1}, ["conv"]),
        ("all", "concat", {}, ["one", "two", "three"]),
        ("fc", "linear", {"filters": 32}, ["all"]),
    ]
    where = cluster(2, hosts)
    g = graph({"channel": 8, "height": 16, "width": 16}, rows, 8)
    return formulate(g, where, machine(where), cap=cap)


def at_random(formulation: Formulation, count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    sizes = [len(formulation.spaces[layer.name].candidates) for layer in formulation.layers]
    return rng.integers(0, sizes, size=(count, len(sizes)))


def test_what_a_layer_holds_depends_on_its_splits_and_not_on_their_levels():
    formulation = branching(10**9, hosts=4)
    for layer in formulation.layers:
        space = formulation.spaces[layer.name]
        assert space.is_complete
        ways = one_of_each_split(layer, formulation.machine.topology.shape)
        costs = layer_costs(
            layer,
            ways,
            formulation.machine,
            input_gradients=formulation.graph.input_gradients(layer.name),
            largest_bucket=formulation.largest,
        )
        place = {tuple(row): i for i, row in enumerate(ways.degrees.prod(axis=1))}
        rows = [place[tuple(row)] for row in space.candidates.degrees.prod(axis=1)]
        assert set(rows) == set(range(len(ways)))
        for held in ("output", "scattered", "saved", "workspace", "communication_bytes", "weights"):
            assert getattr(space.costs, held) == pytest.approx(getattr(costs, held)[rows])


@pytest.mark.parametrize("cap", [4, 40])
def test_no_assignment_holds_less_than_the_least_memory_of_all(cap):
    everything = branching(10**9)
    bound = least_memory(branching(cap), math.inf, NO_LIMIT).bound
    reserved = everything.cluster.device.reserved_memory
    least = min(cost(everything, row).memory.total for row in at_random(everything, 300))
    found = search_plan(everything, least_memory=True).best
    assert found is not None
    assert 0.6 * found.memory.total <= bound + reserved
    assert bound + reserved <= min(least, found.memory.total)


def test_candidates_are_out_only_where_more_than_enough_is_held():
    everything = branching(10**9)
    found = search_plan(everything, least_memory=True).best
    assert found is not None
    # what is possible is never said not to be
    usable = found.memory.total - everything.cluster.device.reserved_memory
    assert least_memory(everything, usable, NO_LIMIT).bound <= usable


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "networks"), [(1, 12), pytest.param(2, 600, marks=pytest.mark.slow)]
)
def test_what_fits_is_never_left_out(seed, networks):
    rng = np.random.default_rng(seed)
    for _ in range(networks):
        formulation = random_formulation(rng)
        reserved = formulation.cluster.device.reserved_memory
        met = [random_choices(formulation, rng) for _ in range(12)]
        met.append(tuple(int(s.kept.argmin()) for s in spaces_of(formulation)))
        held = [cost(formulation, choices).memory.total - reserved for choices in met]
        for enough in (min(held), float(np.median(held))):
            least = least_memory(formulation, enough, NO_LIMIT)
            least = least_on_tree(formulation, least, NO_LIMIT)
            assert least.bound <= min(held) * (1 + 1e-9)
            fitting = least.fitting(formulation)
            for choices in (met[n] for n in np.flatnonzero(np.array(held) <= enough)):
                for i, space in enumerate(spaces_of(formulation)):
                    assert fitting.among(i, space.candidates)[choices[i]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "networks"), [(1, 24), pytest.param(2, 400, marks=pytest.mark.slow)]
)
def test_no_simulated_step_holds_less_than_what_its_layers_are_said_to(seed, networks):
    # readers in one layout share a copy, and attention has copies of three parts of one tensor
    rng = np.random.default_rng(seed)
    for _ in range(networks):
        formulation = random_formulation(rng)
        reserved = formulation.cluster.device.reserved_memory
        alone = memory_of_layers(formulation, formulation.spaces, complete=True)
        rows, simulator = memory_by_moment(formulation), PlanSimulator(formulation)
        for _ in range(8):
            choices = random_choices(formulation, rng)
            trial = simulator.simulate(choices, formulation.machine.training.bucket_bytes)
            held = trial.peak_memory - reserved
            assert max(each.profile(choices).max() for each in (rows, alone)) <= held * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "batch"), [(8, 8), (16, 24)])
def test_a_plan_of_the_least_memory_is_found_where_just_that_much_is_there(gpus, batch):
    options = {"gpus": gpus, "global_batch_size": batch, "forbid": SPLITS_ALONE}
    least = planner.optimize("gpt2", least_memory=True, **options)
    memory = least.peak_memory * (1.0 + 1e-3)
    assert planner.optimize("gpt2", memory=f"{memory:.0f} B", **options).peak_memory <= memory


def spaces_of(formulation: Formulation) -> list:
    return [formulation.spaces[layer.name] for layer in formulation.layers]


@pytest.mark.slow
def test_a_proof_counts_what_neighbours_add_and_what_no_moment_has_room_for():
    # a sum of what each layer holds at least says 2.57 GiB
    options = {"gpus": 64, "global_batch_size": 2048, "forbid": SPLITS_ALONE}
    with pytest.raises(InfeasibleError, match="since every split of the layers needs") as error:
        planner.optimize("inception_v3", memory="2.59 GiB", **options)
    assert error.value.proven


def test_branches_share_what_is_kept_of_their_input():
    formulation = branching()
    rows, many = memory_by_moment(formulation), at_random(formulation, 300)
    reserved = formulation.cluster.device.reserved_memory
    peaks = rows.profiles(many).max(axis=1)
    true = np.array([cost(formulation, row).memory.total - reserved for row in many])
    assert (peaks <= true * (1 + 1e-9)).all()
    assert (peaks / true).mean() > 0.93


def test_nothing_fits_is_proven_for_every_split():
    # the candidates searched need 1.42 GiB, every split 1.39
    options = {"gpus": 64, "global_batch_size": 2048, "forbid": SPLITS_ALONE}
    with pytest.raises(InfeasibleError, match="since every split of the layers needs") as error:
        planner.optimize("resnet18", memory="1.37 GiB", **options)
    assert error.value.proven


def test_what_holds_for_candidates_alone_is_not_called_proven():
    formulation = branching(4)
    least = search_plan(formulation, least_memory=True)
    assert least.best is not None
    assert not formulation.is_complete
    memory = 0.9 * least.least_memory + 0.1 * least.best.memory.total
    device = replace(formulation.cluster.device, memory=memory, reserved_memory=0.0)
    tight = replace(formulation, cluster=replace(formulation.cluster, device=device))
    found = search_plan(tight)
    assert found.best is None
    possible = search_plan(branching(10**9), least_memory=True).best
    assert possible is not None
    assert found.least_memory <= possible.memory.total


def test_memory_that_the_framework_takes_alone_is_a_proof():
    arguments = ["optimize", "alexnet", "--gpus", "16", "--memory", "900 MiB"]
    result = CliRunner().invoke(planner_command, arguments)
    assert result.exit_code == 3
    assert "the framework alone reserves 1 GiB" in result.output


@pytest.mark.parametrize(
    "wrong",
    [
        ("--optimizer", "<script>"),
        ("--gpus", "3"),
        ("--global-batch-size", "0"),
        ("--strategy", "no-such"),
    ],
)
def test_what_is_no_question_is_said_before_what_does_not_fit(wrong):
    given = {"--gpus": "8", "--memory": "512 MiB", **dict([wrong])}
    arguments = ["evaluate", "resnet18", *(part for pair in given.items() for part in pair)]
    result = CliRunner().invoke(planner_command, arguments)
    assert result.exit_code == 2
    assert wrong[1] in result.output


def test_a_wrong_strategy_is_said_before_what_does_not_fit(tmp_path):
    path = tmp_path / "strategy.toml"
    path.write_text("[layers.conv1]\nsample = 3\n")
    plan = tmp_path / "plan.json"
    planner.evaluate("alexnet", strategy="data", gpus=8).save(plan)
    for command, name in itertools.product(("evaluate", "simulate"), (path, plan, "spatial+data")):
        arguments = [command, "resnet18", "--gpus", "8", "--memory", "512 MiB", "--strategy", name]
        result = CliRunner().invoke(planner_command, [str(part) for part in arguments])
        assert result.exit_code == 2, result.output


@pytest.mark.parametrize("command", ["optimize", "evaluate", "simulate", "scale"])
def test_memory_below_the_reserve_fits_nothing_in_any_command(command):
    arguments = [command, "resnet18", "--gpus", "8", "--memory", "512 MiB"]
    result = CliRunner().invoke(planner_command, arguments)
    assert result.exit_code == 3
    assert "no plan fits" in result.output


def test_buckets_are_small_where_memory_is_short():
    formulation = branching()
    free = search_plan(formulation, smallest_bucket=1.0)
    assert free.best is not None
    assert free.formulation.machine.training == formulation.machine.training
    device = replace(formulation.cluster.device, memory=0.99 * free.best.memory.total)
    tight = replace(formulation, cluster=replace(formulation.cluster, device=device))
    found = search_plan(tight, starts=[free.best.choices], smallest_bucket=1.0)
    assert found.formulation.machine.training.bucket_bytes == 1.0
    for choices, costed in found.met.items():
        assert costed.memory.total == cost(found.formulation, choices).memory.total


@pytest.fixture(scope="module")
def mixed() -> tuple[Mixtures, np.ndarray, np.ndarray, np.ndarray]:
    """A pool, all that takes each layer from one of it, what that costs, and its peaks."""
    formulation = branching()
    rows, problem = memory_by_moment(formulation), formulation.problem()
    many = at_random(formulation, 3)
    pool = Mixtures(problem=problem, rows=rows, assignments=many, deadline=NO_LIMIT)
    everything = np.array(list(itertools.product(*(sorted({*column}) for column in many.T))))
    costs, _ = costs_and_peaks(problem, everything)
    return pool, everything, costs, rows.held(everything).max(axis=1)


def test_of_a_pool_what_holds_least_is_found(mixed):
    pool, everything, _, peaks = mixed
    found = pool.smallest()
    assert found in {tuple(row) for row in everything.tolist()}
    assert pool.rows.held(np.array([found])).max() == pytest.approx(peaks.min(), rel=1e-6)
    assert peaks.min() < pool.rows.held(pool.assignments).max(axis=1).min(), "nothing lies between"


@pytest.mark.parametrize("part", [0.02, 0.1, 0.5])
def test_of_a_pool_what_costs_least_within_a_limit_is_found(mixed, part):
    pool, everything, costs, peaks = mixed
    limit = float(np.quantile(peaks, part))
    found = pool.cheapest(limit)
    assert found is not None
    number = everything.tolist().index(list(found))
    assert peaks[number] <= limit
    assert costs[number] == pytest.approx(costs[peaks <= limit].min(), rel=1e-5)


def test_a_pool_without_anything_within_a_limit_has_no_answer(mixed):
    pool, _, _, peaks = mixed
    assert pool.cheapest(0.99 * float(peaks.min())) is None


def test_an_interrupt_of_what_looks_between_assignments_is_not_lost(mixed, monkeypatch):
    pool, *_ = mixed
    run_model = mixtures.run_model

    def interrupted(*given, **named):
        return replace(run_model(*given, **named), stopped_by="interrupt")

    monkeypatch.setattr(mixtures, "run_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.smallest()


def test_of_too_many_assignments_the_first_are_mixed(mixed, monkeypatch):
    pool, *_ = mixed
    monkeypatch.setattr(mixtures, "MOST_PAIRS", 10)
    few = Mixtures.of(pool.problem, pool.rows, pool.assignments.tolist(), NO_LIMIT)
    assert few.assignments.tolist() == pool.assignments[:1].tolist()
    assert few.smallest() is None


@pytest.mark.parametrize("seed", range(8))
def test_gradients_in_flight_make_sums_no_more_than_the_truth(seed):
    rng = np.random.default_rng(seed)
    formulation = random_formulation(rng)
    rows, reserved = memory_by_moment(formulation), formulation.cluster.device.reserved_memory
    for _ in range(10):
        choices = random_choices(formulation, rng)
        peak = float(rows.held(np.array([choices])).max())
        assert float(rows.profile(choices).max()) <= peak
        assert peak <= (cost(formulation, choices).memory.total - reserved) * (1 + 1e-9)


def test_weights_settle_where_what_holds_least_by_them_holds_most():
    # three assignments, each of which holds too much in a moment of its own
    known = np.array([[4.0, 1, 1], [1, 4.0, 1], [1, 1, 4.0]])
    bounds = []

    def look_at(weights):
        assert weights.sum() == pytest.approx(1.0)
        bounds.append(float((known @ weights).min()))
        return known[(known @ weights).argmin()]

    balance(look_at, np.array([1.0, 0.0, 0.0]), 400)
    assert max(bounds) == pytest.approx(2.0, rel=0.03)
    assert max(bounds) <= 2.0 + 1e-9


def test_prices_settle_between_what_is_best_and_what_is_tried():
    # three assignments, each of which holds too much in a moment of its own
    known = [Point(cost=0.0, held=np.array(row)) for row in ([4.0, 1, 1], [1, 4.0, 1], [1, 1, 4.0])]
    points = known[:1]

    def bound_at(weights):
        costs = [float(weights @ point.held) for point in known]
        best = int(np.argmin(costs))
        is_new = known[best] not in points
        points.extend([known[best]] * is_new)
        return costs[best], is_new

    climb = Climb(limit=0.0, total=1.0, unit=(1.0, 1.0), rounds=60)
    weights = climb.best_prices(lambda: points, bound_at, start=np.array([0.2, 0.3, 0.5]))
    assert min(float(weights @ point.held) for point in known) == pytest.approx(2.0, rel=2e-3)


def test_a_table_of_limits_tells_where_more_memory_is_worse():
    def row(share, step):
        answer = "proof" if math.isnan(step) else "plan"
        return {"model": "net", "share": share, "step_time_s": step, "answer": answer}

    fine = [row(None, 1.0), row(0.9, 1.0), row(0.8, 2.0), row(0.7, math.nan)]
    assert worse_with_more(fine) == []
    slower, none = replace_step(fine, 1, 2.1), replace_step(fine, 1, math.nan)
    assert len(worse_with_more(slower)) == len(worse_with_more(none)) == 1


def replace_step(rows: list[dict], place: int, step: float) -> list[dict]:
    answer = "proof" if math.isnan(step) else "plan"
    changed = {**rows[place], "step_time_s": step, "answer": answer}
    return [*rows[:place], changed, *rows[place + 1 :]]


def test_moments_that_hold_far_more_than_the_lowest_leave_weights_numbers():
    seen = []

    def held(weights):
        seen.append(weights.copy())
        return np.array([1.0, 1.0]) if len(seen) == 1 else np.array([1.0, 1e6])

    balance(held, np.array([0.5, 0.5]), 4)
    assert all(np.isfinite(weights).all() for weights in seen)
    assert seen[-1][1] > 0.99

"""The search on real networks: against every assignment there is, its bounds, and memory limits."""

from __future__ import annotations

import itertools

import pytest
from machines import cluster, graph, machine
from msgspec.structs import replace
from questions import SPLITS_ALONE

import planner
from costmodels.cluster import Cluster, load_cluster
from costmodels.compute import ComputeModel
from costmodels.errors import InputError
from costmodels.graph import Graph, build_graph
from costmodels.step.machine import Machine
from planner.errors import InfeasibleError
from planner.models import build
from planner.models.gpt import gpt2
from planner.planning.bounds import additive_search
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.search_plan import PlanSearchResult, search_plan
from planner.planning.space.costing import Costed, cost
from planner.planning.space.formulate import Formulation, formulate

LASSEN = load_cluster("lassen")


def real(gpus: int, where: Cluster = LASSEN, **options) -> Machine:
    plain = machine(where, where.shape(gpus), precision=where.default_precision, **options)
    return replace(plain, compute=ComputeModel(where.device, where.default_precision))


def first_layers(name: str, count: int, batch: int, size: int) -> Graph:
    network = build(name, size)
    return build_graph(replace(network, layers=network.layers[:count]), batch)


def inception_block() -> Graph:
    """Two of the four branches of the first inception block, with their concatenation."""
    conv = "conv"
    rows: list = [
        ("b1", conv, {"filters": 64, "kernel": 1}, ("input",)),
        ("b2a", conv, {"filters": 96, "kernel": 1}, ("input",)),
        ("b2b", conv, {"filters": 128, "kernel": 3, "padding": 1}),
        ("concat", "concat", {}, ("b1", "b2b")),
        ("pool", "pool", {"kernel": 2}),
        ("next", conv, {"filters": 128, "kernel": 1}),
    ]
    return graph({"channel": 192, "height": 28, "width": 28}, rows, 2)


def tiny_unet() -> Graph:
    """One level of a U-Net: down, up, and the connection across."""
    conv = {"kernel": 3, "padding": 1}
    rows: list = [
        ("down", "conv", {"filters": 16, **conv}),
        ("pool", "pool", {"kernel": 2}),
        ("deep", "conv", {"filters": 32, **conv}),
        ("up", "conv", {"filters": 16, "kernel": 2, "stride": 2, "transposed": True}),
        ("concat", "concat", {}, ("down", "up")),
        ("out", "conv", {"filters": 2, "kernel": 1}),
    ]
    return graph({"channel": 4, "height": 64, "width": 64}, rows, 2)


def tied() -> Graph:
    """A head that uses the table of the embedding."""
    rows: list = [
        ("embedding", "embedding", {"rows": 512, "filters": 256}),
        ("fc", "linear", {"filters": 256}),
        ("gelu", "activation", {"function": "gelu"}),
        ("norm", "layer_norm", {}),
        ("head", "linear", {"filters": 512, "bias": False, "share": "embedding"}),
        ("loss", "loss", {}),
    ]
    return graph({"sequence": 32}, rows, 4)


SMALL = {
    "resnet18": lambda: first_layers("resnet18", 6, 4, 64),
    "inception": inception_block,
    "unet": tiny_unet,
    "tied": tied,
}
# few candidates a layer, but of all sorts: every assignment of them can be costed
CAP = 4


def small(name: str, gpus: int = 4, where: Cluster = LASSEN, **options) -> Formulation:
    return formulate(SMALL[name](), where, real(gpus, where, **options), cap=CAP)


def every_assignment(formulation: Formulation) -> list[Costed]:
    sizes = [len(formulation.spaces[layer.name].candidates) for layer in formulation.layers]
    return [cost(formulation, choices) for choices in itertools.product(*map(range, sizes))]


def seconds_of(formulation: Formulation, costed: Costed) -> float:
    """What an assignment costs the search: its timeline, or what its simulated step cannot beat."""
    return max(costed.step.total, float(formulation.terms(costed.choices).max()))


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("overlap", [True, False])
def test_nothing_is_faster_than_the_plan_or_the_bound(name, overlap):
    formulation = small(name, gradient_overlap=overlap)
    costs = every_assignment(formulation)
    assert len(costs) > 500
    best = min(costs, key=lambda costed: seconds_of(formulation, costed))
    fastest = seconds_of(formulation, best)
    found = search_plan(formulation)
    assert found.best is not None
    assert found.incumbent.bound <= fastest * (1 + 1e-9)
    assert found.incumbent.cost == pytest.approx(fastest, rel=1e-9)
    assert seconds_of(found.formulation, found.best) == pytest.approx(fastest, rel=1e-9)
    # the bound holds for simulated steps: those that the timeline takes for fast come near it
    simulator, bucket = PlanSimulator(formulation), formulation.machine.training.bucket_bytes
    for costed in sorted(costs, key=lambda costed: costed.step.total)[:50]:
        step = simulator.simulate(costed.choices, bucket).seconds
        assert found.incumbent.bound <= step * (1 + 1e-9)
    assert found.num_costed < len(costs) / 10


# the first layers of ResNet-18 hold their activations whatever is split, and next to no weights
@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(("name", "within"), [("inception", 1.17), ("unet", 1.1), ("tied", 1.25)])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_with_little_memory_the_plan_fits_and_the_bound_holds(name, within, share):
    formulation = small(name)
    costs = every_assignment(formulation)
    least = min(costed.memory.total for costed in costs) - LASSEN.device.reserved_memory
    fastest = min(costs, key=lambda costed: seconds_of(formulation, costed))
    wanted = fastest.memory.total - LASSEN.device.reserved_memory
    assert wanted > least
    capacity = least + share * (wanted - least)
    device = replace(LASSEN.device, memory=capacity, reserved_memory=0.0)
    tight = replace(formulation, cluster=replace(LASSEN, device=device))
    # what the framework reserves is none here, and so it is taken off
    reserved = LASSEN.device.reserved_memory
    fitting = [seconds_of(formulation, c) for c in costs if c.memory.total - reserved <= capacity]
    found = search_plan(tight)
    assert found.best is not None
    assert found.best.memory.total <= capacity
    assert found.incumbent.bound <= min(fitting) * (1 + 1e-9)
    assert found.incumbent.cost == seconds_of(found.formulation, found.best)
    assert found.incumbent.cost <= min(fitting) * within


@pytest.mark.slow
def test_a_memory_limit_that_nothing_meets_has_no_plan():
    # every distribution of every layer: where nothing fits, the search takes back what was left out
    rows: list = [
        ("down", "conv", {"filters": 16, "kernel": 3, "padding": 1}),
        ("pool", "pool", {"kernel": 2}),
        ("deep", "conv", {"filters": 32, "kernel": 3, "padding": 1}),
    ]
    g = graph({"channel": 4, "height": 16, "width": 16}, rows, 2)
    formulation = formulate(g, LASSEN, real(4), cap=10**6)
    assert formulation.is_complete
    costs = every_assignment(formulation)
    assert len(costs) > 500
    least = min(costed.memory.total for costed in costs) - LASSEN.device.reserved_memory

    def search_under(capacity: float) -> PlanSearchResult:
        device = replace(LASSEN.device, memory=capacity, reserved_memory=0.0)
        return search_plan(replace(formulation, cluster=replace(LASSEN, device=device)))

    found = search_under(least * 0.99)
    assert found.best is None
    assert found.tightest is not None
    assert found.tightest.memory.total >= least
    found = search_under(least * 1.01)
    assert found.best is not None
    assert least <= found.best.memory.total <= least * 1.01


def test_starts_are_costed_and_never_beaten_by_worse():
    formulation = small("resnet18")
    start = tuple(0 for _ in formulation.layers)
    found = search_plan(formulation, starts=[start])
    assert found.best is not None
    assert found.best.step.total <= cost(formulation, start).step.total


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("model", "size", "gpus", "batch"),
    [
        ("resnet18", 64, 8, 64),
        ("resnet18", 64, 8, 4),
        ("googlenet", 64, 4, 8),
        ("unet", 64, 16, 8),
        ("alexnet", 224, 16, 64),
        ("gpt2", 128, 8, 4),
    ],
)
def test_the_plan_is_never_slower_than_a_usual_strategy(model, size, gpus, batch):
    plan = planner.optimize(
        model, gpus=gpus, input_size=size, global_batch_size=batch, cluster="lassen", cap=32
    )
    assert plan.fits
    rows = [row for row in plan.baselines if row.fits]
    assert rows
    for row in rows:
        assert row.step_time_s is not None
        assert plan.step_time_s <= row.step_time_s
    assert plan.search.lower_bound_s <= plan.step_time_s
    assert plan.search.gap == pytest.approx(1 - plan.search.lower_bound_s / plan.step_time_s)


@pytest.mark.slow
def test_samples_too_large_for_a_device_are_split_by_space():
    # a 2K sample with its activations exceeds the memory; with two devices for each, it fits
    options = {"gpus": 8, "cluster": "lassen", "memory": "6 GiB"}
    assert not planner.evaluate("mesh-2k", global_batch_size=8, strategy="data", **options).fits
    again = planner.optimize("mesh-2k", global_batch_size=8, cap=16, **options)
    assert again.fits
    assert again.strategy.schedule.micro_batches > 1
    assert {"width", "height"} & {dim for layer in again.layers.values() for dim in layer.degrees}
    with pytest.raises(InfeasibleError):
        planner.optimize("mesh-2k", global_batch_size=8, cap=16, forbid=SPLITS_ALONE, **options)
    plan = planner.optimize("mesh-2k", global_batch_size=4, forbid=SPLITS_ALONE, **options)
    assert plan.fits
    for layer in plan.layers.values():
        split = layer.distribution
        if layer.kind == "conv" and layer.name != "prediction":
            assert split.degree("sample") == 4
            assert split.degree("height") * split.degree("width") == 2


@pytest.mark.slow
def test_memory_makes_the_search_leave_the_fastest_plan():
    bare = replace(LASSEN, device=replace(LASSEN.device, reserved_memory=0.0))
    network = gpt2(64, blocks=2, hidden=256, heads=8)
    options = {"gpus": 8, "cluster": bare, "global_batch_size": 8, "cap": 16}
    free = planner.optimize(network, **options)
    limit = 0.9 * free.peak_memory
    tight = planner.optimize(network, memory=limit, **options)
    assert tight.peak_memory <= limit
    assert tight.step_time_s >= free.step_time_s
    assert tight.search.lower_bound_s <= tight.step_time_s


def test_where_nothing_fits_the_message_names_layer_bytes_and_ways_out():
    with pytest.raises(InfeasibleError) as error:
        planner.optimize(
            "mesh-1k",
            gpus=4,
            global_batch_size=64,
            cluster="lassen",
            memory="2 GiB",
            cap=16,
            forbid=SPLITS_ALONE,
        )
    message = str(error.value)
    assert "\n" not in message
    assert error.value.missing_bytes > 0
    assert f"'{error.value.layer}'" in message
    assert error.value.layer in {spec.name for spec in build("mesh-1k").layers}
    assert "GiB more than the 2 GiB" in message
    assert "global batch of about" in message


def test_the_advice_of_an_infeasible_answer_helps():
    options = {"gpus": 4, "cluster": "lassen", "memory": "3 GiB", "input_size": 64, "cap": 16}
    options |= {"forbid": SPLITS_ALONE}
    with pytest.raises(InfeasibleError) as error:
        planner.optimize("resnet18", global_batch_size=16384, **options)
    words = str(error.value).split("global batch of about ")[1].split()
    # the advice is rounded: a tenth less is certain to fit, half as much again is not
    about = int(words[0])
    assert planner.optimize("resnet18", global_batch_size=about * 9 // 10, **options).fits
    with pytest.raises(InfeasibleError):
        planner.optimize("resnet18", global_batch_size=about * 3 // 2, **options)


def test_time_runs_out_but_a_plan_comes_back():
    plan = planner.optimize(
        "resnet18", gpus=8, input_size=64, cluster="lassen", global_batch_size=64, time_limit=1e-6
    )
    assert plan.fits
    assert plan.search.lower_bound_s <= plan.step_time_s


def test_an_interrupt_leaves_the_best_so_far(monkeypatch):
    def interrupted(problem, *, time_limit=None, seed=0, work=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(additive_search, "SOLVERS", {"auto": interrupted})
    formulation = small("unet")
    start = tuple(0 for _ in formulation.layers)
    found = search_plan(formulation, starts=[start])
    assert found.incumbent.stopped_by == "interrupt"
    assert found.best is not None
    assert found.best.choices == start
    # computation alone bounds every distribution
    assert 0.0 < found.incumbent.bound < found.best.step.total


def test_an_unknown_search_is_refused_with_a_sentence():
    with pytest.raises(InputError, match="the search must be one of auto"):
        planner.optimize("resnet18", gpus=4, cluster="lassen", search="magic")


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("search", ["auto", "elimination"])
def test_solvers_agree(search):
    plan = planner.optimize(
        "resnet18",
        gpus=4,
        input_size=64,
        cluster="lassen",
        global_batch_size=16,
        cap=8,
        search=search,
        gradient_overlap=False,
    )
    assert plan.search.gap < 0.02


def test_one_hidden_unit_more_of_latency_changes_the_choice():
    # two small layers: splitting them pays while messages are quick
    g = graph({"channel": 512}, [("a", "linear", {"filters": 512})], 1)
    quick, slow = (cluster(4, latency=latency, bandwidth=1e12) for latency in (1e-9, 1e-3))
    chosen = []
    for where in (quick, slow):
        formulation = formulate(g, where, machine(where))
        found = search_plan(formulation)
        assert found.best is not None
        chosen.append(str(formulation.distributions(found.best.choices)["a"]))
    assert chosen[0] == "filter 4"


def test_gpt_on_one_device_needs_no_search():
    where = LASSEN
    g = build_graph(gpt2(64, blocks=1, hidden=96, heads=4), 2)
    found = search_plan(formulate(g, where, real(1)))
    assert found.best is not None
    assert found.best.step.total == pytest.approx(found.incumbent.bound)

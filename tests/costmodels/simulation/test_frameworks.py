"""What a runtime decides beyond gradients: halos, copies around collectives, memory, other time."""

from __future__ import annotations

from typing import Any

import pytest
from machines import cluster, graph
from msgspec.structs import replace
from pipelines import PLAIN, compile_job

import planner
from benchmarks.published.dryden import lassen_run
from benchmarks.published.simulated import simulated_prediction
from costmodels.distribution import Distribution
from costmodels.graph import Graph
from costmodels.simulation import SimulatedStep, load_runtime, run_graph
from costmodels.simulation.execution import ExecutionGraph, Task
from costmodels.step.training import Training
from costmodels.strategy.usual import single_stage
from planner.request.request import Request
from planner.request.setting import resolve

WAYS = 4
GIB = 2.0**30
V100 = 15.78 * GIB
# of the runtime's answers that are options of a step
CUTS = {"always_cut": True, "cuts_backward": False}


def images() -> Graph:
    """Two convolutions, so that the second sends a gradient back."""
    conv = {"filters": 64, "kernel": 3, "padding": 1, "bias": False}
    rows: list[Any] = [("first", "conv", conv), ("second", "conv", conv)]
    return graph({"channel": 64, "height": 64, "width": 64}, rows, 4)


def split(g: Graph, **degrees: int) -> Any:
    """Every layer split alike."""
    ways = {dim: (n,) for dim, n in degrees.items()}
    return single_stage(
        {layer.name: Distribution(degrees=ways, shape=(WAYS,)) for layer in g.compute_layers},
        (WAYS,),
    )


def compiled(degrees: dict[str, int], runtime: Any = "ddp", **options: Any) -> ExecutionGraph:
    g = images()
    return compile_job(g, split(g, **degrees), cluster(WAYS), runtime, **options).compile(1)


def done(degrees: dict[str, int], runtime: Any = "ddp", **options: Any) -> SimulatedStep:
    g = images()
    compiler = compile_job(g, split(g, **degrees), cluster(WAYS), runtime, **options)
    return run_graph(compiler.compile(1), PLAIN)


def of_second(found: ExecutionGraph, kind: str) -> list[Task]:
    return [task for task in found.tasks if task.name == "second" and task.kind == kind]


def test_a_framework_may_cut_the_forward_pass_only() -> None:
    both = compiled({"height": WAYS}, always_cut=True)
    assert len(of_second(both, "forward")) == len(of_second(both, "backward")) == 2
    forward = compiled({"height": WAYS}, **CUTS)
    assert len(of_second(forward, "forward")) == 2
    assert len(of_second(forward, "backward")) == 1


@pytest.mark.parametrize(
    ("degrees", "beside"), [({"height": 4}, True), ({"height": 2, "width": 2}, False)]
)
def test_a_halo_with_corners_may_wait_for_the_gradient_of_the_filter(
    degrees: dict[str, int], beside: bool
) -> None:
    found = compiled(degrees, **CUTS, corner_overlap=False)
    exchange = [task for task in found.tasks if task.kind == "halo exchange"][-1]
    assert exchange.name == "second"
    before = {(found.tasks[n].kind, found.tasks[n].name) for n in exchange.after}
    assert (("backward of weight", exchange.name) in before) is not beside
    # both is no slower than exchanging beside the gradient
    assert done(degrees, **CUTS, corner_overlap=False).step_time >= done(degrees, **CUTS).step_time


def test_collectives_of_activations_are_copied_and_waited_for() -> None:
    plain = done({"filter": WAYS})
    count = sum(
        task.kind in ("all_gather", "all_reduce", "reduce_scatter")
        for task in compiled({"filter": WAYS}).tasks
        if task.name in ("first", "second")
    )
    assert count > 0
    launch = 1e-3
    waiting = load_runtime("ddp", activation_waits=2.0)
    slow = done({"filter": WAYS}, waiting, launch_time=launch)
    calm = done({"filter": WAYS}, launch_time=launch)
    assert slow.step_time - calm.step_time == pytest.approx(2.0 * launch * count)
    copying = done({"filter": WAYS}, load_runtime("ddp", activation_copies=1.0))
    whole = 4.0 * 4 * 64 * 64 * 64
    assert copying.step_time - plain.step_time == pytest.approx(2.0 * count * whole / 900e9)
    # gradients of weights are no activations
    data = done({"sample": WAYS})
    assert done({"sample": WAYS}, waiting).step_time == data.step_time


def test_what_a_runtime_decides_is_decided_unless_asked_for() -> None:
    lbann = load_runtime("lbann")
    assert set(lbann.decided) <= set(Training.__struct_fields__)
    asked: dict[str, Any] = {"source": "resnet18", "gpus": 4, "cluster": "lassen"}
    training = resolve(Request(**asked, runtime="lbann")).machine.training
    assert not training.winograd
    assert training.always_cut
    assert not training.cuts_backward
    assert training.memory_model == "retained"
    given = resolve(Request(**asked, runtime="lbann", winograd=True, memory_model="liveness"))
    assert given.machine.training.winograd
    assert given.machine.training.memory_model == "liveness"
    assert not given.machine.training.corner_overlap
    plain = resolve(Request(**asked)).machine.training
    assert plain == resolve(Request(**asked, runtime="ddp")).machine.training


def test_time_outside_of_layers_is_part_of_the_step() -> None:
    asked: dict[str, Any] = {"gpus": 4, "cluster": "lassen", "global_batch_size": 32}
    runtime = load_runtime("ddp")
    plain = planner.simulate("resnet18", runtime=runtime, **asked)
    later = planner.simulate("resnet18", runtime=replace(runtime, outside_layers=0.02), **asked)
    assert later.step_time == pytest.approx(plain.step_time + 0.02)
    assert later.outside == later.summary()["outside_layers_s"] == 0.02
    assert plain.outside == 0.0


def test_plans_can_be_simulated_under_a_runtime_that_decides_more() -> None:
    plan = planner.optimize("resnet18", gpus=4, cluster="lassen", global_batch_size=32)
    step = planner.simulate(plan, runtime="lbann")
    assert step.outside > 0.0
    assert any("cuts backward True, here False" in note for note in step.notes)


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "fits"),
    [
        ("mesh-1k", 1, 1, True),
        ("mesh-1k", 1, 2, False),
        ("mesh-2k", 1, 1, False),
        ("mesh-2k", 2, 1, True),
        ("resnet50", 1, 32, True),
    ],
)
def test_lbann_holds_what_its_authors_say_it_does(
    model: str, gpus: int, batch: int, fits: bool
) -> None:
    """Dryden et al. 2019, section VI.B: how many samples fit a V100 of 16 GB."""
    found = simulated_prediction(lassen_run(model, gpus, batch, gpus))
    assert (found.memory <= V100) is fits


def test_nothing_is_freed_where_tensors_are_retained() -> None:
    kept = done({"height": WAYS}, memory_model="retained").slowest.memory.holders
    freed = done({"height": WAYS}).slowest.memory.holders
    block = 4.0 * 4 * 64 * 64 * 64 / WAYS
    # the data and two outputs; the gradients of both outputs
    assert kept["activations"] == pytest.approx(3 * block)
    assert kept["activation gradients"] == pytest.approx(2 * block)
    assert kept["activations"] >= freed["activations"]

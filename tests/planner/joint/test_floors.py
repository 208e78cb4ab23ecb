"""What no step of a way to train takes less than by computation: of convolutional networks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution, one_candidate, split_dims
from costmodels.layers.layer_passes import Computation, layer_computation
from costmodels.layers.local_work import local_parameters
from costmodels.simulation import load_runtime
from costmodels.simulation.known_blocks import block_computation
from planner.joint.activations import LeastOfStages
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate, Estimates
from planner.joint.misfits import Misfits
from planner.joint.pace import Pace
from planner.joint.reduced import Reduced
from planner.joint.runtimes import choice_runtime
from planner.joint.search import JointSearch
from planner.joint.series import longest_series, series_starts
from planner.joint.simulations import Simulations
from planner.joint.smallest import run_smallest
from planner.joint.ways_inside import insides
from planner.planning.bounds.left_out import LayerComputation
from planner.planning.options import SearchOptions
from planner.planning.staged import tried
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve
from planner.request.training_graphs import training_graph
from planner.simulation.compiled import compiler_of
from search.problem.deadline import Deadline

RUNTIME = load_runtime("ddp")


def _setting(model, gpus, batch):
    asked = {"model": model, "gpus": gpus, "global_batch_size": batch, "cluster": "dgx-a100"}
    return resolve(make_request("optimize", asked))


def _floors(setting):
    return PipelineBounds(setting, Reduced.of(setting.model, setting.graph))


@pytest.mark.parametrize("model", ["alexnet", "resnet18", "cosmoflow"])
@pytest.mark.parametrize("gpus", [1, 4])
def test_parts_of_some_samples_cost_what_they_do_by_themselves(model, gpus):
    setting = _setting(model, 4, 48)
    floors = _floors(setting)
    topology = Topology.of(setting.cluster, setting.cluster.shape(gpus))
    machine = replace(setting.machine, topology=topology)
    floors.micro_batch(gpus, 48)
    for samples in (48, 24, 12, 6, 3):
        graph = training_graph(floors.network, samples, machine.training)
        least = {
            layer.name: LayerComputation.of(layer, machine, graph.input_gradients(layer.name))
            for layer in graph.compute_layers
        }
        rows = (floors.like[layer.name] for layer in setting.graph.compute_layers)
        alone = sum(float(least[name].passes.min()) for name in rows)
        assert floors.known[gpus, samples][0] == pytest.approx(alone, rel=1e-12)


@pytest.mark.slow
def test_no_way_to_train_is_faster_than_its_floor_and_bound():
    setting = _setting("googlenet", 4, 16)
    estimates = Estimates(setting, RUNTIME)
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    everything = [one for one in choices(setting, list(insides(setting))) if one.pp > 1]
    for choice in random.Random(3).sample(everything, 6):
        found, reason = tried(setting, choice.degrees, choice_runtime(RUNTIME, choice.zero))
        assert found is not None, reason
        # what stages wait for each other counts in both
        assert floors.floor(choice) * (1 - 1e-6) <= bounds.of(choice) <= found.seconds, choice


def test_stages_of_branches_wait_for_each_other():
    """Half of the stages cannot halve the time of one micro-batch, but for a block that is cut."""
    setting = _setting("googlenet", 4, 16)
    floors = _floors(setting)
    assert not floors.chain
    whole = floors.micro_batch(1, 16)[0]
    assert floors.of(2, 1, 1) > 0.5 * floors.of(1, 1, 1)
    cut = floors.micro_batch(1, 16)[1]
    assert whole >= cut[0] > cut[1] > cut[2] > 0.8 * whole


def test_blocks_in_series_begin_where_all_that_follows_reads_one_layer():
    graph = _setting("resnet18", 4, 16).graph
    names = [layer.name for layer in graph.compute_layers]
    starts = series_starts(graph)
    assert starts[0] == 0
    for start in starts[1:]:
        for name in names[start:]:
            sources = [e.source for e in graph.producers[name]]
            assert all(names.index(source) >= start - 1 for source in sources), name
    longest = longest_series(graph, np.ones((1, len(names))), starts)[0]
    sizes = [b - a for a, b in zip(starts, [*starts[1:], len(names)], strict=True)]
    assert all(one <= size for one, size in zip(longest, sizes, strict=True))
    assert sum(longest) < len(names)  # a skip with a layer of its own lies beside the block


def test_networks_without_numbers_in_their_names_have_blocks_too():
    plain, blocks = _setting("mesh-1k", 4, 16), _setting("resnet18", 4, 16)
    for setting in (plain, blocks):
        assert {one.recompute for one in insides(setting)} == {"none", "full"}
        kept, again = (tried(setting, Degrees(recompute=w), RUNTIME)[0] for w in ("none", "full"))
        assert kept.seconds < again.seconds < 1.5 * kept.seconds
        assert kept.peak_memory > again.peak_memory


def test_what_layers_cost_is_known_of_what_was_simulated_before():
    setting, known = _setting("resnet18", 8, 32), {}
    counts = []
    for degrees in (
        Degrees(pp=2, micro_batches=2),
        Degrees(pp=2, micro_batches=2, zero=2),
        Degrees(pp=2, micro_batches=2, recompute="full"),
        Degrees(pp=2, micro_batches=4),
        Degrees(pp=2, micro_batches=2, zero=3),
        Degrees(tp=2, micro_batches=2),
    ):
        runtime = choice_runtime(RUNTIME, degrees.zero or 0)
        again, _ = tried(setting, degrees, runtime, known)
        alone, _ = tried(setting, degrees, runtime)
        assert again.seconds == alone.seconds
        assert again.peak_memory == alone.peak_memory
        counts.append(sum(len(one.known) for stages in known.values() for one in stages.values()))
    assert counts[0] == counts[1] == counts[2] < counts[3] < counts[4] < counts[5]


@pytest.mark.parametrize("runtime", ["ddp", "fsdp", "megatron-core"])
@pytest.mark.parametrize(("model", "batch"), [("resnet18", 32), ("unet", 8), ("gpt2", 8)])
def test_blocks_compute_what_they_do_by_themselves(model, batch, runtime):
    setting = _setting(model, 4, batch).under(load_runtime(runtime))
    for samples, degrees in [
        (batch, {}),
        (batch // 2, {"sample": (2, 1)}),
        (batch, {"sample": (4, 1)}),
        (batch // 2, {"filter": (2, 1)}),
        (batch, {"sample": (2, 1), "filter": (2, 1)}),
        (batch, {"height": (2, 1), "sample": (2, 1)}),
    ]:
        graph = training_graph(setting.model, samples, setting.machine.training)
        layers = {layer.signature: layer for layer in graph.compute_layers}
        for layer in list(layers.values())[:40]:
            split = {dim: ways for dim, ways in degrees.items() if dim in layer.dims}
            if any(dim not in split_dims(layer) for dim in split):
                continue
            distribution = Distribution(degrees=split, shape=(4, 1))
            one, wants = one_candidate(distribution, split_dims(layer)), True
            parameters = local_parameters(layer, one) * (layer.shares_weight_with is None)
            alone = layer_computation(layer, one, setting.machine, parameters, wants)
            known = block_computation(layer, one, distribution, setting.machine, wants)
            for name in Computation.__struct_fields__:
                ours, other = getattr(known, name), getattr(alone, name)
                assert np.array_equal(ours, other), (layer.name, samples, degrees, name)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("alexnet", 8),
        ("mobilenet_v2", 4),
        *(
            pytest.param(model, 40, marks=pytest.mark.slow)
            for model in ("resnet18", "googlenet", "mobilenet_v2", "squeezenet1_1", "densenet121")
        ),
        *(pytest.param(model, 30, marks=pytest.mark.slow) for model in ("unet", "vnet", "dlrm")),
    ],
)
def test_no_stage_holds_less_than_its_least(model, count):
    setting = _setting(model, 8, 32)
    least, known, shares = LeastOfStages(setting), {}, []
    everything = [one for one in choices(setting, list(insides(setting))) if one.pp <= 4]
    for choice in random.Random(5).sample(everything, count):
        found, _ = tried(setting, choice.degrees, choice_runtime(RUNTIME, choice.zero), known)
        if found is not None:
            held = found.peak_memory - setting.cluster.device.reserved_memory
            staged = least.of(choice, found.placed.strategy.stages)
            # wherever it is cut, and whatever is computed again
            assert least.anyhow(choice) <= staged * (1.0 + 1e-9), choice
            shares.append(staged / held)
    assert max(shares) <= 1.0
    # or nothing would be told by it
    assert max(shares) > 0.6


def test_what_fits_nowhere_is_not_costed():
    free = _setting("resnet18", 4, 512)
    ways = list(choices(free, list(insides(free))))
    device = replace(free.cluster.device, memory=int(1.4e9))
    setting = replace(free, cluster=replace(free.cluster, device=device))
    found = JointSearch(
        setting=setting, runtime=RUNTIME, options=SearchOptions(), deadline=Deadline(None)
    )
    result = found.run()
    assert result.best is not None
    assert result.best.fits
    usable, least = setting.cluster.device.usable_memory, LeastOfStages(setting)
    left_out = [one for one in ways if least.anyhow(one) > usable * (1.0 + 1e-9)]
    assert left_out
    assert set(left_out) <= set(found.heavy)
    assert not set(left_out) & {one.choice for one in result.estimates}
    assert not any(choice in result.passed for choice in left_out)


def test_what_cannot_fit_is_not_laid_out_to_prove_it(monkeypatch):
    free = _setting("alexnet", 8, 1024)
    everything = [one for one in choices(free, list(insides(free))) if one.inside.tp == one.pp == 1]
    small, large = (
        next(one for one in everything if one.samples == size and not one.zero)
        for size in (16, 128)
    )
    peaks = [tried(free, one.degrees, RUNTIME)[0].peak_memory for one in (small, large)]
    device = replace(free.cluster.device, memory=int(1.01 * peaks[0]))
    setting = replace(free, cluster=replace(free.cluster, device=device))
    laid_out = []

    def counted(*args, **others):
        laid_out.append(args)
        return compiler_of(*args, **others)

    monkeypatch.setattr("planner.planning.staged.compiler_of", counted)
    tries = Simulations(
        setting=setting,
        runtime=RUNTIME,
        options=SearchOptions(),
        estimates=Estimates(setting, RUNTIME),
        pace=Pace(deadline=Deadline(None), layers=1),
        offloads=False,
        left_out=[],
        misfits=Misfits(setting=setting, least=LeastOfStages(setting)),
    )
    # while nothing fits, all that is tried says how much is missing
    assert tries.attempt(large, 0.0) is None
    assert tries.misfits.short[large] > 0.0
    assert not tries.attempt(large, 0.0, anyhow=True).fits
    assert tries.attempt(small, 0.0).fits
    tries.tried.clear()
    assert tries.attempt(large, 0.0) is None
    assert len(laid_out) == 3
    assert len(tries.simulated) == 2
    assert tries.left_out == []


def test_what_is_not_split_is_kept_whole():
    least = LeastOfStages(_setting("densenet121", 8, 32))
    whole, eighth = (sum(least.kept("full", tp).values()) for tp in (1, 8))
    # blocks start from what all filters are read of
    assert 0.8 * whole < eighth < whole
    # where tensors cannot be cut, nothing is said of it here
    narrow = LeastOfStages(_setting("efficientnet_b0", 8, 32))
    assert sum(narrow.kept("none", 8).values()) == sum(narrow.kept("none").values()) / 8


def test_what_is_estimated_to_hold_much_too_much_is_not_simulated_at_last():
    free = _setting("alexnet", 8, 1024)
    device = replace(free.cluster.device, memory=int(1.1e9))
    setting = replace(free, cluster=replace(free.cluster, device=device))
    ways = (one for one in choices(free, list(insides(free))) if one.inside.tp == one.pp == 1)
    one, other, *_ = (way for way in ways if not way.zero)
    tries = Simulations(
        setting=setting,
        runtime=RUNTIME,
        options=SearchOptions(),
        estimates=Estimates(setting, RUNTIME),
        pace=Pace(deadline=Deadline(None), layers=1),
        offloads=False,
        left_out=[],
        misfits=Misfits(setting=setting, least=None),
    )
    near = Estimate(choice=one, seconds=1.0, memory=1.01 * device.memory)
    far = Estimate(choice=other, seconds=1.0, memory=1.2 * device.memory)
    run_smallest(tries, [near, far], 0.0)
    assert tries.tried == {one}
    # where estimates were as far above what is held, it may fit
    tries.misjudged.above = 1.2
    run_smallest(tries, [near, far], 0.0)
    assert tries.tried == {one, other}


def test_what_is_found_out_together_is_what_is_found_out_alone():
    setting = _setting("alexnet", 16, 96)
    wanted = [(1, 96), (2, 48), (3, 32), (4, 96), (12, 24), (12, 5)]
    together = PipelineBounds(setting, Reduced.of(setting.model, setting.graph))
    together.learn(wanted)
    for gpus, samples in wanted:
        alone = PipelineBounds(setting, Reduced.of(setting.model, setting.graph))
        total, series = alone.micro_batch(gpus, samples)
        assert together.known[gpus, samples][0] == total
        assert (together.known[gpus, samples][1] == series).all()


def test_what_fits_is_not_simulated_with_more_computed_again():
    search = JointSearch(
        setting=_setting("resnet18", 4, 16),
        runtime=RUNTIME,
        options=SearchOptions(),
        deadline=Deadline(None),
    )
    found = search.run()
    assert len(found.simulated) > 3
    assert all(one.degrees and one.degrees.recompute == "none" for one in found.simulated)

"""Plans that are applied to modules train as one process does, whatever their splits are."""

from __future__ import annotations

import numpy as np
import pytest
import torch_extra
from msgspec.structs import replace

torch_extra.require("torch")

import applied_works as works

import planner
from costmodels.cluster import load_cluster
from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution, split_dims
from costmodels.errors import InputError
from costmodels.graph import SPATIAL_DIMS, Network, build_graph
from planner.models import build
from planner.torch.verify.ranks import RankError, on_ranks
from planner.torch.verify.scaled import SmallPlan, smaller_networks
from planner.torch.verify.verify import task_of, verification_of
from planner.torch.verify.work import run_tasks

SHAPE, LEVELS = (2, 2), ("gpu", "host")


def _network(name: str, extent: int) -> Network:
    """A built-in network with few channels and small images."""
    small = next(smaller_networks(build(name)))
    shape = {axis: extent if axis in SPATIAL_DIMS else n for axis, n in small.input_shape.items()}
    return replace(small, input_shape=shape)


def _random_plan(network: Network, batch: int, seed: int) -> SmallPlan:
    """Any splits, which differ from layer to layer."""
    rng = np.random.default_rng(seed)
    graph = build_graph(network, batch)
    splits = {}
    for layer in graph.compute_layers:
        degrees: dict[str, list[int]] = {}
        for level, size in enumerate(SHAPE):
            choices = [dim for dim in split_dims(layer) if layer.dims[dim] >= 4]
            if choices and rng.random() < 0.85:
                dim = str(rng.choice(choices))
                degrees.setdefault(dim, [1, 1])[level] = size
        splits[layer.name] = Distribution(
            degrees={dim: tuple(ways) for dim, ways in degrees.items()}, shape=SHAPE
        )
    return SmallPlan(network=network, batch=batch, distributions=splits, left_out=())


def _checked(plans: list[SmallPlan], steps: int) -> None:
    """Run plans on four ranks, and look for faults."""
    tasks = [task_of(plan, SHAPE, LEVELS, steps=steps) for plan in plans]
    outcomes = on_ranks(run_tasks, 4, tasks)
    topology = Topology.of(load_cluster("lassen"), SHAPE)
    for n, plan in enumerate(plans):
        found = verification_of(plan.network.name, plan, topology, [rank[n] for rank in outcomes])
        assert not found.faults, (n, found.faults)
        assert found.checked > 4 * len(plan.distributions)
        # what differs by design is known by its size
        for rank in outcomes:
            for key in rank[n].numbers:
                rank[n].numbers[key] = 10 * rank[n].numbers[key] + 7
        wrong = verification_of(plan.network.name, plan, topology, [rank[n] for rank in outcomes])
        assert [one for one in wrong.differences if one.received and one.reason] == []


@pytest.mark.slow
def test_random_plans_train_as_one_process_does():
    plans = [
        _random_plan(_network("resnet18", 48), 8, 0),
        _random_plan(_network("nnunet-2d", 32), 4, 1),
        *(_random_plan(works.volume(), 4, seed) for seed in (2, 3, 4)),
    ]
    _checked(plans, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extent", "batch"), [("resnet18", 48, 8), ("nnunet-2d", 64, 4)])
def test_many_random_plans(name, extent, batch):
    _checked([_random_plan(_network(name, extent), batch, seed) for seed in range(10, 22)], 3)


@pytest.fixture(scope="module")
def faults() -> dict[str, list[tuple[float, float]]]:
    return on_ranks(works.with_faults, 4, task_of(works.mixed_plan(), SHAPE, LEVELS, steps=1))[0]


@pytest.mark.parametrize("name", works.FAULTS)
def test_planted_faults_are_caught(faults, name):
    (apart, largest), loss = faults[name]
    assert apart > 1e-6 * largest, name
    if name in ("halo gradient", "weight gradient"):
        # which the loss does not show
        assert loss < 1e-12


@pytest.mark.parametrize("dim", ["height", "width"])
def test_blocks_and_their_halos_are_copied_once(dim):
    for found, block in on_ranks(works.copied_numbers, 2, {dim: 2}):
        halo = block // 8  # a row of the 8 of a block, in a message of its own
        # forward the input and backward the gradient, packed halos and received ones
        assert found == {"copy_": 2 * (block + halo), "clone": 2 * halo}


def test_without_a_fault_there_is_none(faults):
    (apart, largest), loss = faults["none"]
    assert apart < 1e-12 * largest
    assert loss < 1e-12


@pytest.mark.slow
def test_statistics_of_all_ranks_and_checkpoints_of_another_plan(tmp_path):
    said = on_ranks(works.checkpoint, 4, str(tmp_path))
    assert all(row == [] for row in said), said


def test_a_plan_for_others_is_refused():
    found = on_ranks(works.refusals, 2)[0]
    assert "is for 4 and there are 2" in found[0]
    assert "'body.0' must write" in found[1]


def test_a_rank_that_dies_ends_the_others():
    with pytest.raises(RankError, match=r"rank 1 died .*; the others were ended"):
        on_ranks(works.dies, 2)


def test_ranks_are_asked_in_words():
    plan = planner.evaluate("alexnet", gpus=4, cluster="lassen", global_batch_size=8)
    from planner.torch.verify.verify import verify_plan

    with pytest.raises(InputError, match="--ranks"):
        verify_plan(plan, ranks=3)
    for seed in (-1, 2**64):
        with pytest.raises(InputError, match="--seed"):
            verify_plan(plan, ranks=2, seed=seed)

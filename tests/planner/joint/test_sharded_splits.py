"""What no step takes less than whose layers are split in any way while state or weights are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from random_plans import random_choices
from test_own_splits import by_degrees

import planner
from costmodels.cluster import list_clusters, load_cluster
from costmodels.communication.collectives import all_reduce_time, reduce_scatter_time
from costmodels.communication.topology import Topology
from planner.joint.activations import LeastOfStages
from planner.joint.own_splits import OwnSplits, Way
from planner.joint.search import JointSearch
from planner.joint.sharded_splits import SCATTERED, least_sharded
from planner.planning.prepare import default_cap
from planner.planning.space.formulate import formulate
from search.problem.deadline import Deadline

# Here layers of their own splits, with weights that are cut, are faster than all else.
SLOW_LINKS = {"model": "alexnet", "gpus": 64, "cluster": "aws-p3.16xlarge"}


def sharded_steps(search: JointSearch, asked: dict[str, object], count: int) -> list[float]:
    """Steps of random splits, and of the best ones without ZeRO, with every stage of it. [s]"""
    setting, rng = search.setting, np.random.default_rng(7)
    formulation = formulate(
        setting.graph, setting.cluster, setting.machine, cap=default_cap(setting)
    )
    own = OwnSplits(
        setting=setting,
        runtime=search.runtime,
        options=search.options,
        wishes=search.wishes,
        deadline=Deadline(None),
        floors=search.floors,
        least=LeastOfStages(setting),
        known=search.simulations.known,
        best=None,
    )
    # few choices that are slow by themselves: the fastest tenth of each layer
    fast = [
        np.argsort(formulation.spaces[layer.name].costs.total, kind="stable")
        for layer in formulation.layers
    ]
    best = planner.optimize(**asked, forbid="pipeline,accumulation,sharding,recompute")
    splits = [best.strategy.distributions]
    for _ in range(count):
        drawn = random_choices(formulation, rng)
        if rng.random() < 0.7:
            drawn = tuple(
                int(order[rng.integers(max(len(order) // 10, 1))]) if rng.random() < 0.5 else one
                for order, one in zip(fast, drawn, strict=True)
            )
        splits.append(formulation.distributions(drawn))
    ways = [Way(micro_batches=1, zero=zero, again=0) for zero in (1, 2, 3)]
    steps = (own._step(way, split, np.inf) for split in splits for way in ways)
    return [step.seconds for step in steps if step is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(
            {"model": "alexnet", "gpus": 8, "cluster": "aws-p3.2xlarge", "global_batch_size": 64},
            marks=pytest.mark.slow,
        ),
        {"model": "vgg16", "gpus": 4, "cluster": "hkbu-10gbe", "global_batch_size": 8},
        pytest.param(
            {
                "model": "resnet18",
                "gpus": 16,
                "cluster": "aws-p3.16xlarge",
                "global_batch_size": 64,
            },
            marks=pytest.mark.slow,
        ),
        {"model": "alexnet", "gpus": 8, "cluster": "aws-p3.2xlarge", "gradient_overlap": False},
    ],
    ids=lambda asked: asked["model"],
)
def test_no_step_is_below_it(asked):
    search, found = by_degrees(asked)
    least = least_sharded(search.setting, search.runtime, Deadline(None))
    steps = sharded_steps(search, asked, 15)
    assert len(steps) >= 30
    assert least <= min(steps)
    # data parallelism with every stage of ZeRO is among the choices
    assert found.best is not None
    assert least <= found.best.seconds
    assert least > 0.0


@pytest.mark.parametrize("name", list_clusters())
def test_the_first_half_of_an_all_reduce_takes_half_of_it(name):
    cluster = load_cluster(name)
    count = next(n for n in (64, 16, 8, 4) if cluster.can_use(n))
    topology = Topology.of(cluster, cluster.shape(count))
    sizes = 2.0 ** np.arange(6, 33)
    assert not topology.curves
    ways = ([n for n in range(1, size + 1) if size % n == 0] for size in topology.shape)
    for members in itertools.product(*ways):
        group = np.array(members)
        half = reduce_scatter_time(topology, group, sizes)
        assert (half >= SCATTERED * all_reduce_time(topology, group, sizes) * (1 - 1e-12)).all()


@pytest.mark.slow
def test_a_plan_of_sharded_splits_is_bounded_by_them():
    plan = planner.optimize(**SLOW_LINKS)
    assert any("what is cut over replicas makes that faster" in text for text in plan.fallbacks)
    assert 0.4 * plan.step_time_s < plan.search.lower_bound_s < plan.step_time_s

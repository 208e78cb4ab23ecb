"""What a plan says to shard by agrees with its splits, rank by rank, and with its local sizes."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest

import planner
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import DIMS, Graph, build_graph
from costmodels.strategy import Stage, Strategy
from planner.models import build
from planner.plan import Plan, Sharding, TensorPlacement, shard_plan
from planner.plan.sharding import PARTIAL, REPLICATE, sharded_dim

NAMES = ("network", "host")


def block_by_digits(distribution: Distribution, dim: str, rank: int) -> int:
    """Number of the block of a dim that a rank has, as `costmodels.distribution` defines it."""
    block, levels = 0, []
    for size in distribution.shape:
        rank, member = divmod(rank, size)
        levels.append(member)
    for level in reversed(range(len(levels))):
        left, member = distribution.shape[level], levels[level]
        for each in DIMS:
            ways = distribution.degrees.get(each, (1,) * len(levels))[level]
            left //= ways
            digit, member = divmod(member, left)
            if each == dim:
                block = block * ways + digit
    return block


def block_by_mesh(sharding: Sharding, mesh: int, tensor: TensorPlacement, rank: int, dim: int):
    """The same by the axes of a mesh, as DTensor does it: (block, ways)."""
    axes = sharding.meshes[mesh]
    block, ways = 0, 1
    for place, size, at in zip(tensor.placements, axes.shape, axes.coordinates(rank), strict=True):
        if sharded_dim(place) == dim:
            block, ways = block * size + at, ways * size
    return block, ways


def check(graph: Graph, strategy: Strategy, sharding: Sharding) -> None:
    """Every tensor lies by the mesh where the digits of the distribution say that it does."""
    groups = {name: group for group, of in strategy.layers_of_groups.items() for name in of}
    for layer in graph.compute_layers:
        row, placed = strategy.distributions[layer.name], sharding.layers[layer.name]
        first, end = groups[layer.name]
        assert list(sharding.meshes[placed.mesh].ranks) == list(range(first, end))
        for tensor, known in zip(
            (*layer.inputs, layer.output), (*placed.inputs, placed.output), strict=True
        ):
            assert known.shape == tuple(axis.extent for axis in tensor.axes)
            for place, axis in enumerate(tensor.axes):
                ways = row.degree(axis.dim) if axis.dim else 1
                for rank in range(first, end):
                    block, parts = block_by_mesh(sharding, placed.mesh, known, rank, place)
                    expected = block_by_digits(row, axis.dim, rank - first) if axis.dim else 0
                    if axis.units is None:
                        assert (block, parts) == (expected, ways), (layer.name, axis, rank)
                    else:
                        # what repeats a block lies inside of what tells blocks apart
                        assert ways % parts == 0
                        assert axis.units % parts == 0
                        assert known.local_shape[place] * parts == axis.extent
                if axis.units is None:
                    largest = max(
                        (b + 1) * axis.extent // ways - b * axis.extent // ways for b in range(ways)
                    )
                    assert known.local_shape[place] == largest
        split = set(row.degrees)
        sums = math.prod(
            size
            for place, size in zip(
                placed.output.placements, sharding.meshes[placed.mesh].shape, strict=True
            )
            if place == PARTIAL
        )
        assert sums == math.prod(row.degree(dim) for dim in split & layer.reduced_dims)
        for weight in placed.weights:
            axes = sharding.meshes[placed.mesh]
            of = dict(zip(axes.names, zip(weight.placements, axes.shape, strict=True), strict=True))
            summed = math.prod(of[name][1] for name in weight.gradient_sums)
            lacked = split - set(layer.weight_dims)
            assert summed == math.prod(row.degree(dim) for dim in lacked)
            assert all(of[name][0] == REPLICATE for name in weight.gradient_sums)


def random_strategy(graph: Graph, shape: tuple[int, ...], seed: int) -> Strategy:
    chance = random.Random(seed)
    rows = {}
    for layer in graph.compute_layers:
        degrees: dict[str, list[int]] = {}
        for level, size in enumerate(shape):
            left = size
            dims = [dim for dim in DIMS if dim in layer.splittable]
            chance.shuffle(dims)
            for dim in dims:
                whole = degrees.setdefault(dim, [1] * len(shape))
                most = layer.dims[dim] // math.prod(whole)
                ways = [n for n in range(1, left + 1) if left % n == 0 and n <= most]
                whole[level] = chance.choice(ways)
                left //= whole[level]
        rows[layer.name] = Distribution(
            degrees={dim: tuple(ways) for dim, ways in degrees.items()}, shape=shape
        )
    stage = Stage(layers=tuple(rows), first_device=0, shape=shape)
    return Strategy(stages=(stage,), distributions=rows)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(4, 2), (8, 1), (6, 2), (12, 1), (1, 1)])
@pytest.mark.parametrize(
    ("model", "size"), [("resnet18", 64), ("unet", 64), ("mobilenet_v2", 64), ("llama3-8b", 16)]
)
def test_random_splits_lie_where_their_digits_say(model, size, shape, seed):
    graph = build_graph(build(model, size), 8)
    strategy = random_strategy(graph, shape, seed)
    sharding = shard_plan(graph, strategy, ("host", "network"))
    check(graph, strategy, sharding)
    for one in sharding.shuffles:
        source, target = sharding.layers[one.source], sharding.layers[one.target]
        before, after = source.output.placements, target.inputs[one.slot].placements
        if source.mesh != target.mesh:
            assert one.axes == ()
            continue
        names = sharding.meshes[source.mesh].names
        rows = zip(names, before, after, strict=True)
        assert one.axes == tuple(name for name, old, new in rows if old != new)
        changes = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
        if one.collective == "all_gather":
            assert any(sharded_dim(old) is not None and new == REPLICATE for old, new in changes)
        if one.collective in ("all_reduce", "reduce_scatter"):
            assert PARTIAL in {old for old, _ in changes}
        if one.collective == "slice":
            assert {old for old, _ in changes} == {REPLICATE}
    # what needs no shuffle lies alike already, and is whole
    shuffled = {(one.source, one.target, one.slot) for one in sharding.shuffles}
    for edge in graph.edges:
        if edge.source == "input" or (edge.source, edge.target, edge.slot) in shuffled:
            continue
        source, target = sharding.layers[edge.source], sharding.layers[edge.target]
        assert PARTIAL not in source.output.placements
        if source.mesh == target.mesh:
            assert source.output.placements == target.inputs[edge.slot].placements


def test_degrees_that_do_not_divide_each_other_take_several_meshes():
    graph = build_graph(build("resnet18", 64), 12)
    rows = {
        layer.name: Distribution(
            degrees={"sample": (2, 1), "height": (3, 1)}
            if layer.name == "conv1"
            else {"sample": (3, 1)},
            shape=(6, 2),
        )
        for layer in graph.compute_layers
    }
    stage = Stage(layers=tuple(rows), first_device=0, shape=(6, 2))
    strategy = Strategy(stages=(stage,), distributions=rows)
    sharding = shard_plan(graph, strategy, ("host", "network"))
    assert len(sharding.meshes) == 2
    with pytest.raises(InputError, match=r"must have one mesh .* but has 2, since"):
        _ = sharding.mesh
    check(graph, strategy, sharding)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.optimize(
        "vgg16", gpus=64, cluster="abci", global_batch_size=2048, precision="fp32", cap=16
    )


@pytest.fixture(scope="module")
def staged() -> Plan:
    return planner.optimize(
        "gpt2",
        gpus=32,
        cluster="dgx-a100",
        global_batch_size=64,
        optimizer="adam",
        keep="pp=4,tp=2",
    )


def test_local_shapes_are_those_that_memory_is_counted_by(plan):
    size = 4  # bytes of an activation in fp32
    for name, layer in plan.layers.items():
        placed = plan.placements(name)
        assert math.prod(placed.output.local_shape) * size == layer.output_bytes
        held = sum(math.prod(weight.local_shape) for weight in placed.weights)
        assert held * size == pytest.approx(layer.weights_bytes, rel=0.01)
    assert any(
        sharded_dim(place) is not None
        for name in plan.layers
        for weight in plan.placements(name).weights
        for place in weight.placements
    ), "a layer of VGG16 has a weight that is cut"


def test_the_mesh_counts_all_ranks(plan):
    mesh = plan.mesh
    assert list(mesh.ranks) == list(range(64))
    everywhere = itertools.product(*map(range, mesh.shape))
    assert [mesh.coordinates(rank) for rank in mesh.ranks] == list(everywhere)
    assert len(set(mesh.names)) == len(mesh.names)


def test_stages_have_an_axis_of_their_own(staged):
    assert len({stage.group for stage in staged.stages}) == 4
    mesh = staged.mesh
    assert mesh.names[0] == "pp"
    assert mesh.shape[0] == 4
    assert list(mesh.ranks) == list(range(32))
    for stage in staged.stages:
        for name in stage.layers:
            placed = staged.placements(name)
            ranks = staged.sharding.meshes[placed.mesh].ranks
            assert (ranks.start, ranks.stop) == stage.group
    apart = [
        one.collective
        for one in staged.sharding.shuffles
        if staged.placements(one.source).mesh != staged.placements(one.target).mesh
    ]
    assert set(apart) == {"send_recv"}
    assert len(apart) >= 3


def test_placements_survive_the_file(plan, staged):
    for one in (plan, staged):
        again = Plan.from_json(one.to_json())
        assert again.sharding == one.sharding
        assert again.mesh == one.mesh


def edited(plan: Plan, change) -> str:
    document = json.loads(plan.to_json())
    change(document["sharding"])
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["layers"]["fc6"]["output"].update(placements=[]), "must have 3 placements"),
        (
            lambda s: s["layers"]["fc6"]["output"].update(placements=["Shard(9)"] * 3),
            "cut along one of its 2 dims",
        ),
        (
            lambda s: s["layers"]["fc6"]["output"].update(placements=["__import__('os')"] * 3),
            "must be placed by Shard",
        ),
        (lambda s: s["layers"]["fc6"]["output"].update(local_shape=[1, 1]), "must have blocks of"),
        (lambda s: s["layers"].pop("fc6"), "must be between layers"),
        (lambda s: s["layers"]["fc6"].update(mesh=1), "must be one of sharding.meshes"),
        (lambda s: s["meshes"][0].update(first_rank=1), "must be on ranks 0 to 63"),
        (lambda s: s["meshes"].clear(), "must have a mesh"),
        (lambda s: s["meshes"][0]["axes"][0].update(size=0), "must be on ranks 0 to 63"),
    ],
)
def test_files_that_contradict_themselves_are_refused(plan, change, words):
    with pytest.raises(InputError, match="is no valid plan") as error:
        Plan.from_json(edited(plan, change))
    assert words in str(error.value)


def test_an_older_plan_says_what_to_do(plan):
    document = json.loads(plan.to_json())
    del document["sharding"]
    old = Plan.from_json(json.dumps({**document, "version": 3}))
    with pytest.raises(InputError, match="make it again"):
        _ = old.mesh
    with pytest.raises(InputError, match="make it again"):
        old.placements("fc6")


def test_a_layer_that_is_not_there_is_named_with_those_that_are(plan):
    with pytest.raises(InputError, match=r"the plan has no layer 'fc9'; use one of .*fc6"):
        plan.placements("fc9")

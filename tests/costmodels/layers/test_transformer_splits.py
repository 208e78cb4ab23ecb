"""Splits of transformers move and sum up what counting by hand says."""

from __future__ import annotations

import numpy as np
import pytest
from machines import cluster, graph, machine, topology_of

from costmodels.communication.collectives import all_reduce_time, reduce_scatter_time
from costmodels.communication.layout import Layouts
from costmodels.communication.movement import movement
from costmodels.distribution import Candidates, Distribution, one_candidate
from costmodels.graph import Graph, Layer
from costmodels.layers.layer_cost import LayerCosts, layer_costs
from costmodels.layers.local_work import local_size, local_work

SIZE = 2  # of an activation in 16 bits [B]
SAMPLES, LENGTH, HIDDEN = 8, 64, 256


def split(*shape: int, **ways: int | tuple[int, ...]) -> Candidates:
    """One distribution; a number is the ways at the only level."""
    degrees = {dim: n if isinstance(n, tuple) else (n,) for dim, n in ways.items()}
    return one_candidate(Distribution(degrees=degrees, shape=shape))


def received(layer: Layer, slot: int, maker: Layer, made: Candidates, read: Candidates) -> float:
    """Elements that a device receives between two layers, on one level."""
    source = Layouts.of(made, maker.output, maker.reduced_dims)
    target = Layouts.of(read, layer.inputs[slot], layer.absent_dims(slot))
    volume = movement(source, target, topology_of(*made.shape)).volume[0, 0, 0]
    return float(volume) * layer.inputs[slot].size


def costs(layer: Layer, candidates: Candidates) -> LayerCosts:
    on = machine(cluster(*candidates.shape), precision="fp16")
    wants = (True,) * len(layer.inputs)
    return layer_costs(layer, candidates, on, input_gradients=wants, largest_bucket=1e6)


def attention(heads: int, kv_heads: int, width: int = 32) -> Graph:
    rows = [
        ("qkv", "linear", {"filters": (heads + 2 * kv_heads) * width, "bias": False}),
        ("attn", "attention", {"heads": heads, "kv_heads": kv_heads}),
        ("out", "linear", {"filters": HIDDEN, "bias": False}),
    ]
    return graph({"sequence": LENGTH, "hidden": HIDDEN}, rows, SAMPLES)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ways", "groups"),
    [
        (8, 8, 4, 4),  # all alike: keys are split as queries are
        (16, 4, 4, 4),
        (16, 4, 8, 4),  # two ranks share a head of keys
        (16, 4, 16, 4),
        (16, 1, 8, 1),  # multi-query: one head for all
        (12, 3, 6, 3),
        (12, 6, 4, 2),  # ways that do not divide the heads of keys: a rank has some in part
    ],
)
def test_a_split_by_heads_repeats_keys_that_are_fewer(
    heads: int, kv_heads: int, ways: int, groups: int
) -> None:
    g = attention(heads, kv_heads)
    layer, read = g.layers["attn"], split(ways, head=ways)
    tokens = SAMPLES * LENGTH
    assert local_size(layer.inputs[0], read)[0] == tokens * 32 * heads // ways
    keys = tokens * 2 * 32 * kv_heads
    assert local_size(layer.inputs[1], read)[0] == keys // groups
    # a rank has made its part of the keys, and lacks the rest of the heads that it needs
    made = split(ways, filter=ways)
    assert received(layer, 0, g.layers["qkv"], made, read) == 0
    lacks = keys / groups - keys / ways
    assert received(layer, 1, g.layers["qkv"], made, read) == pytest.approx(lacks)
    # the gradients of keys are partial sums over the ranks that share them
    group = read.sharing_group(layer.inputs[1], layer.absent_dims(1))
    assert group.tolist() == [[ways // groups]]
    sums = reduce_scatter_time(topology_of(ways), group, np.array([SIZE * keys / groups]))
    assert costs(layer, read).reduce_backward == pytest.approx(sums)


def test_repeated_keys_lie_on_the_inner_level() -> None:
    layer = attention(16, 4).layers["attn"]
    # 4 x 4 ranks: hosts tell the 4 heads of keys apart, whose devices repeat them
    read = split(4, 4, head=(4, 4))
    layouts = Layouts.of(read, layer.inputs[1], layer.absent_dims(1))
    assert layouts.degrees[0, :, 3].tolist() == [1, 4]
    assert layouts.partial.tolist() == [[4, 1]]


def test_what_all_heads_add_to_their_keys_is_whole_on_every_rank() -> None:
    rows = [
        ("q", "linear", {"filters": 8 * 48}),
        ("kv", "linear", {"filters": 8 * (32 + 32)}, ["input"]),
        ("k_rope", "linear", {"filters": 16}, ["input"]),
        ("attn", "attention", {"heads": 8}, ["q", "kv", "k_rope"]),
    ]
    g = graph({"sequence": LENGTH, "hidden": HIDDEN}, rows, SAMPLES)
    layer, read = g.layers["attn"], split(4, head=4)
    tokens = SAMPLES * LENGTH
    sizes = [float(local_size(t, read)[0]) for t in layer.inputs]
    assert sizes == [tokens * 8 * 48 / 4, tokens * 8 * 64 / 4, tokens * 16]
    assert layer.output.extent("hidden") == 8 * 32
    # scores are 48 wide, values 32
    assert layer.macs == SAMPLES * 8 * LENGTH**2 * (48 + 32)
    assert read.group(layer.absent_dims(2)).tolist() == [[4]]


def test_columns_and_rows_send_nothing_in_between() -> None:
    rows = [
        ("up", "linear", {"filters": 2 * 1024, "bias": False}),
        ("act", "glu", {}),
        ("down", "linear", {"filters": HIDDEN, "bias": False}),
    ]
    g = graph({"sequence": LENGTH, "hidden": HIDDEN}, rows, SAMPLES)
    columns, features, row = split(4, filter=4), split(4, channel=4), split(4, channel=4)
    assert received(g.layers["act"], 0, g.layers["up"], columns, features) == 0
    assert received(g.layers["down"], 0, g.layers["act"], features, row) == 0
    block = np.array([SIZE * SAMPLES * LENGTH * HIDDEN])
    sums = reduce_scatter_time(topology_of(4), np.array([[4]]), block)
    up, down = costs(g.layers["up"], columns), costs(g.layers["down"], row)
    assert (up.reduce_forward, down.reduce_backward) == (0, 0)
    assert up.reduce_backward == pytest.approx(sums)
    assert down.reduce_forward == pytest.approx(sums)


def test_a_split_vocabulary_sums_two_numbers_a_token_and_no_logits() -> None:
    rows = [
        ("embed", "embedding", {"rows": 1000, "filters": HIDDEN}),
        ("head", "linear", {"filters": 1000, "bias": False}),
        ("loss", "loss", {}),
    ]
    g = graph({"sequence": LENGTH}, rows, SAMPLES)
    vocabulary, classes = split(4, filter=4), split(4, channel=4)
    assert received(g.layers["loss"], 0, g.layers["head"], vocabulary, classes) == 0
    # the largest logit and the sum of exponentials of every token, in fp32, forward and backward
    numbers = np.array([4.0 * 2 * SAMPLES * LENGTH])
    expected = 2 * all_reduce_time(topology_of(4), np.array([[4]]), numbers)
    loss = costs(g.layers["loss"], classes)
    assert loss.statistics == pytest.approx(expected)
    assert (loss.reduce_forward, loss.reduce_backward) == (0, 0)
    # rows of the table that other ranks have are partial sums of the embedding
    block = np.array([SIZE * SAMPLES * LENGTH * HIDDEN])
    sums = reduce_scatter_time(topology_of(4), np.array([[4]]), block)
    assert costs(g.layers["embed"], split(4, channel=4)).reduce_forward == pytest.approx(sums)


EXPERTS, TOP_K = 16, 2


def mixture(capacity: float = 1.0) -> Graph:
    options = {"experts": EXPERTS, "top_k": TOP_K, "capacity": capacity}
    rows = [
        ("router", "router", {"experts": EXPERTS}),
        ("dispatch", "dispatch", options, ["input"]),
        ("up", "linear", {"filters": 512, "bias": False}),
        ("act", "activation", {"function": "gelu"}),
        ("down", "linear", {"filters": HIDDEN, "bias": False}),
        ("combine", "combine", {}, ["down", "router"]),
    ]
    return graph({"sequence": LENGTH, "hidden": HIDDEN}, rows, SAMPLES)


@pytest.mark.parametrize("ways", [2, 4, 8])
@pytest.mark.parametrize("capacity", [1.0, 1.5])
def test_experts_that_are_split_send_tokens_to_them_and_back(ways: int, capacity: float) -> None:
    g = mixture(capacity)
    samples, experts = split(8, sample=8), split(8, sample=8 // ways, expert=ways)
    sent = SAMPLES / 8 * LENGTH * TOP_K * capacity * HIDDEN * (1 - 1 / ways)
    assert received(g.layers["up"], 0, g.layers["dispatch"], samples, experts) == pytest.approx(
        sent
    )
    assert received(g.layers["combine"], 0, g.layers["down"], experts, samples) == pytest.approx(
        sent
    )
    # ranks that have the same experts sum up their gradients: the samples that experts share
    up = costs(g.layers["up"], experts)
    assert up.gradient_group.tolist() == [[8 // ways]]
    assert up.weights == pytest.approx(up.weights[0])
    one = costs(g.layers["up"], split(8, sample=8))
    assert up.weights * ways == pytest.approx(one.weights)


def test_each_expert_multiplies_its_own_tokens() -> None:
    up = mixture().layers["up"]
    assert up.parameters == EXPERTS * HIDDEN * 512
    assert up.macs == SAMPLES * LENGTH * TOP_K * HIDDEN * 512
    for direction in ("forward", "backward_data", "backward_weight"):
        (work,) = local_work(up, split(8, sample=2, expert=4), direction)
        product = work.matrix_product()
        assert product.batch == 4
        extents = {float(np.squeeze(n)) for n in (product.m, product.n, product.k)}
        assert extents == {SAMPLES / 2 * LENGTH * TOP_K / EXPERTS, HIDDEN, 512}
        assert work.flops == 2 * up.macs / 8
        assert work.weights == up.parameters / 4


def test_dispatching_by_experts_gathers_tokens_and_sums_up_what_they_become() -> None:
    g = mixture()
    experts = split(8, expert=8)
    assert received(g.layers["up"], 0, g.layers["dispatch"], experts, experts) == 0
    combine = costs(g.layers["combine"], experts)
    block = np.array([SIZE * SAMPLES * LENGTH * HIDDEN])
    sums = reduce_scatter_time(topology_of(8), np.array([[8]]), block)
    assert combine.reduce_forward == pytest.approx(sums)


def test_split_tables_send_what_they_say_of_all_samples() -> None:
    rows = [
        ("tables", "embedding_tables", {"rows": [50] * 8, "filters": 16}),
        ("dense", "linear", {"filters": 16}, ["input"]),
        ("interaction", "interaction", {}, ["dense", "tables"]),
    ]
    g = graph({"channel": 4}, rows, SAMPLES)
    tables, samples = split(4, table=4), split(4, sample=4)
    moved = received(g.layers["interaction"], 1, g.layers["tables"], tables, samples)
    assert moved == pytest.approx(SAMPLES / 4 * 8 * 16 * (1 - 1 / 4))
    assert costs(g.layers["tables"], tables).gradient_bytes == 0
    assert costs(g.layers["tables"], samples).gradient_bytes > 0


def test_a_mask_that_a_kernel_knows_saves_work_but_not_published_counts() -> None:
    def layer(**options: object) -> Layer:
        rows = [("attn", "attention", {"heads": 4, **options})]
        return graph({"sequence": LENGTH, "hidden": 3 * HIDDEN}, rows, SAMPLES).layers["attn"]

    def flops(of: Layer) -> float:
        return sum(float(w.flops[0]) for w in local_work(of, split(1), "forward"))

    whole = layer()
    assert flops(whole) == 2 * whole.macs == 4 * SAMPLES * LENGTH**2 * HIDDEN
    causal = layer(causal=True)
    assert causal.macs == whole.macs
    assert flops(causal) == pytest.approx(flops(whole) * (LENGTH + 1) / (2 * LENGTH))
    # without a fused kernel the whole square is computed
    assert flops(layer(causal=True, fused=False)) == flops(whole)
    # 15 queries see 1 to 15 positions, the others 16
    band = layer(causal=True, window=16)
    seen = (sum(range(1, 16)) + (LENGTH - 15) * 16) / LENGTH
    assert flops(band) == pytest.approx(flops(whole) * seen / LENGTH)
    assert band.macs * LENGTH == whole.macs * 16

"""Peak memory: against allocations followed by hand, and against laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import graph
from msgspec.structs import replace

from costmodels.graph import Graph
from costmodels.step.memory import (
    HOLDERS,
    LayerMemory,
    held_inputs,
    keeps_tensor,
    liveness,
    paradl,
)

X, C = 3 * 64, 8 * 64  # items of the data and of what convolutions with 8 filters make


def sizes(g: Graph, **changes: LayerMemory) -> dict[str, LayerMemory]:
    """One device, a byte an item, weights and workspace left out."""
    result = {}
    for layer in g.compute_layers:
        result[layer.name] = LayerMemory(
            weights=0.0,
            gradients=0.0,
            state=0.0,
            output=float(layer.output.size),
            kept=float(layer.output.size),
            inputs=tuple(float(t.size) for t in layer.inputs),
            copied=(False,) * len(layer.inputs),
            saved=float(layer.saved_bytes),
            workspace=0.0,
            buffer=0.0,
        )
    return {**result, **changes}


def peak(g: Graph, of: dict[str, LayerMemory] | None = None):
    return liveness(g, of or sizes(g), reserved=0.0, bucket_bytes=0.0)


def conv(name: str, *inputs: str, filters: int = 8):
    options = {"filters": filters, "kernel": 3, "padding": 1}
    return (name, "conv", options, inputs) if inputs else (name, "conv", options)


IMAGE = {"channel": 3, "height": 8, "width": 8}


def test_conv_bn_relu():
    g = graph(IMAGE, [conv("conv"), ("bn", "batch_norm", {}), ("relu", "activation", {})], 1)
    result = peak(g)
    # kept: data, conv (bn reads it again), relu in the place of bn; gradients of relu and bn
    assert result.moment == "backward of relu"
    assert result.holders["activations"] == X + 2 * C
    assert result.holders["activation gradients"] == 2 * C
    assert result.total == X + 4 * C


def test_an_activation_that_does_not_work_in_place_keeps_its_input():
    rows = [conv("conv"), ("bn", "batch_norm", {}), ("gelu", "activation", {"function": "gelu"})]
    g = graph(IMAGE, rows, 1)
    # bn's output is kept too, gelu's own is not: nobody reads it
    result = peak(g)
    assert result.total == X + 4 * C
    then = graph(IMAGE, [*rows, conv("last")], 1)
    # kept: conv, bn, gelu; its backward pass holds gradients of the last convolution and of gelu
    assert peak(then).holders["activations"] == X + 3 * C
    assert peak(then).total == X + 5 * C


def test_a_residual_block():
    rows = [
        conv("stem"),
        ("stem.relu", "activation", {}),
        conv("conv"),
        ("bn", "batch_norm", {}),
        ("add", "add", {}, ("bn", "stem.relu")),
        ("relu", "activation", {}),
    ]
    g = graph(IMAGE, rows, 1)
    # add writes over bn and relu over add: kept are data, stem.relu (over stem), conv, relu
    result = peak(g)
    assert result.holders["activations"] == X + 3 * C
    # gradients of relu and add; then relu is let go, and add's gradient goes to both operands
    assert result.moment == "backward of relu"
    assert result.total == X + 3 * C + 2 * C


def test_concat_copies_and_frees_what_it_joins():
    rows = [
        conv("a", "input", filters=8),
        conv("b", "input", filters=24),
        ("concat", "concat", {}, ("a", "b")),
        conv("last"),
    ]
    g = graph(IMAGE, rows, 1)
    joined = C + 3 * C
    result = peak(g)
    # forward of concat holds both pieces and the whole; afterwards only the whole is kept, until
    # the convolution that reads it has made its gradient
    assert result.moment == "backward of last"
    assert result.total == X + joined + (C + joined)
    assert keeps_tensor(g, "concat")
    assert not keeps_tensor(g, "a")


def test_what_is_read_twice_is_not_overwritten():
    rows = [conv("a"), ("relu", "activation", {}, ("a",)), ("add", "add", {}, ("relu", "a"))]
    g = graph(IMAGE, rows, 1)
    # relu cannot work in place, as add reads a as well; add cannot write over relu, which is kept
    forward = X + 3 * C
    # add reads none of them again: its gradient and those of its operands come to data and relu
    assert peak(g).total == max(forward, X + C + 3 * C)


def test_partial_sums_are_whole_while_their_layer_runs():
    g = graph(IMAGE, [conv("one"), conv("two")], 1)
    plain = sizes(g)
    scattered = {**plain, "one": replace(plain["one"], kept=C / 4)}
    result = peak(g, scattered)
    # gradients are of all that is summed, of which a quarter is kept
    assert result.moment == "backward of two"
    assert result.holders["activations"] == X + C / 4
    assert result.holders["activation gradients"] == 2 * C
    busy = {**scattered, "one": replace(scattered["one"], output=9.0 * C)}
    assert peak(g, busy).moment == "backward of two"
    assert peak(g, busy).holders["activation gradients"] == C + 9.0 * C
    # with both as large, the gradients of both are whole when the second layer goes back
    large = {**busy, "two": replace(plain["two"], output=99.0 * C, kept=C)}
    assert peak(g, large).total == X + C / 4 + 9.0 * C + 99.0 * C


def test_scratch_space_counts_while_its_layer_runs():
    g = graph(IMAGE, [conv("conv"), ("relu", "activation", {})], 1)
    plain = sizes(g)
    busy = {**plain, "conv": replace(plain["conv"], workspace=1e6, buffer=5e5)}
    result = peak(g, busy)
    assert result.moment == "forward of conv" or result.moment == "backward of conv"
    assert result.holders["workspace"] == 1e6
    assert result.holders["communication buffers"] == 5e5
    assert sum(result.holders.values()) == pytest.approx(result.total)


def test_a_copy_in_another_layout_is_kept_in_place_of_the_original():
    g = graph(IMAGE, [conv("one"), conv("two")], 1)
    plain = sizes(g)
    copied = {**plain, "two": replace(plain["two"], inputs=(2.0 * C,), copied=(True,))}
    result = peak(g, copied)
    # forward of two holds the original too; backward only the copy, with gradients as large
    assert result.moment == "backward of two"
    assert result.holders["activations"] == X + 2 * C
    assert result.holders["activation gradients"] == C + 2 * C


def test_masks_and_indices_live_until_the_backward_pass():
    rows = [conv("conv"), ("pool", "pool", {"kernel": 2}), ("dropout", "dropout", {})]
    g = graph(IMAGE, rows, 1)
    result = peak(g)
    pooled = C / 4
    kept = X + C + 8 * pooled + pooled  # data, conv for the maxima, indices, mask
    # dropout's input is let go, its output is not read: backward of pool holds two gradients
    assert result.moment == "backward of pool"
    assert result.total == kept - pooled + pooled + C


def test_persistent_parts_are_always_there():
    g = graph(IMAGE, [conv("conv"), ("relu", "activation", {})], 1)
    plain = sizes(g)
    heavy = {**plain, "conv": replace(plain["conv"], weights=1e6, gradients=2e6, state=4e6)}
    result = liveness(g, heavy, reserved=5e5, bucket_bytes=7e5)
    expected = {
        "weights": 1e6,
        "weight gradients": 2e6,
        "optimizer state": 4e6,
        "reserved": 5e5,
        "communication buffers": 1.4e6,
    }
    for holder, size in expected.items():
        assert result.holders[holder] == size
    assert result.total == pytest.approx(sum(expected.values()) + X + 3 * C)


def test_paradl_is_twice_everything():
    g = graph(IMAGE, [conv("conv"), ("relu", "activation", {})], 1)
    plain = sizes(g)
    heavy = {**plain, "conv": replace(plain["conv"], weights=1e3, gradients=1e3)}
    result = paradl(g, heavy, reserved=100.0)
    # equation 4: 2 (x + y + w) for both layers
    assert result.total == 2 * ((X + C) + (C + C) + 1e3) + 100.0
    assert set(result.holders) == set(HOLDERS)


@st.composite
def networks(draw) -> Graph:
    """Random chains with branches that join again."""
    rows: list = [conv("first")]
    last, before = "first", "first"
    for i in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["conv", "bn", "relu", "gelu", "dropout", "add", "branch"]))
        name = f"layer{i}"
        row = {
            "conv": conv(name, last),
            "bn": (name, "batch_norm", {}, (last,)),
            "relu": (name, "activation", {}, (last,)),
            "gelu": (name, "activation", {"function": "gelu"}, (last,)),
            "dropout": (name, "dropout", {}, (last,)),
            "add": (name, "add", {}, (last, before)),
            "branch": conv(name, before),
        }[kind]
        rows.append(row)
        before, last = (last, name) if kind != "branch" else (name, last)
    rows.append(("join", "add", {}, (last, before)))
    return graph(IMAGE, rows, 1)


@given(g=networks(), data=st.data())
def test_peaks_never_fall_below_what_must_be_there(g, data):
    parts = {}
    for name, plain in sizes(g).items():
        weights, gradients, state = (data.draw(st.floats(0, 1e4)) for _ in range(3))
        parts[name] = replace(plain, weights=weights, gradients=gradients, state=state)
    result = liveness(g, parts, reserved=10.0, bucket_bytes=100.0)
    persistent = sum(m.weights + m.gradients + m.state for m in parts.values()) + 10.0
    kept = sum(m.saved for m in parts.values())
    for name, memory in parts.items():
        kept += memory.output * g.layers[name].keeps_output
        held = held_inputs(g, name)
        kept += sum(size for size, counts in zip(memory.inputs, held, strict=True) if counts)
    assert result.total >= (persistent + kept) * (1 - 1e-12)
    assert result.total == pytest.approx(sum(result.holders.values()))
    assert all(size >= -1e-6 for size in result.holders.values())
    # the closed form counts every input and output, and leaves out only masks
    masks = sum(m.saved for m in parts.values())
    assert (
        result.holders["activations"]
        <= paradl(g, parts, reserved=0.0).holders["activations"] + masks
    )


@given(g=networks())
def test_every_kept_tensor_is_held_by_one_layer(g):
    held = {}
    for layer in g.compute_layers:
        for edge, counts in zip(g.producers[layer.name], held_inputs(g, layer.name), strict=True):
            if counts:
                held[edge.source] = held.get(edge.source, 0) + 1
    for name, layer in g.layers.items():
        if layer.kind == "input":
            assert held.pop(name) == 1
        elif layer.keeps_output:
            assert name not in held
        elif keeps_tensor(g, name):
            assert held.pop(name) == 1
    assert not held


def test_parts_of_one_tensor_count_together_but_never_twice():
    rows = [
        ("qkv", "linear", {"filters": 3 * 16}),
        ("attention", "attention", {"heads": 4}),
        ("norm", "layer_norm", {}, ("attention",)),
    ]
    g = graph({"sequence": 8, "hidden": 16}, rows, 1)
    # queries, and keys with values, are parts of one tensor
    assert held_inputs(g, "attention") == (True, True)
    # attention keeps its output itself
    assert held_inputs(g, "norm") == (False,)

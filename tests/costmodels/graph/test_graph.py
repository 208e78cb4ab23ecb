"""Iteration spaces agree with counting by hand, and graphs with their descriptions."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodels.errors import InputError
from costmodels.graph import DIMS, Axis, Graph, Layer, LayerSpec, Network, Tensor, build_graph
from costmodels.graph.kinds import KINDS, make_layer
from costmodels.graph.sharing import shared_dims

IMAGE = {"sample": 2, "channel": 6, "height": 8, "width": 10}
TOKENS = {"sample": 2, "sequence": 5}
HIDDEN = {**TOKENS, "hidden": 12}
FEATURES = {"sample": 2, "channel": 6}
MEMORY = {"sample": 2, "sequence": 7, "hidden": 12}
EXPERTS = {"sample": 2, "sequence": 3, "expert": 4, "hidden": 12}


def tensor(**extents: int) -> Tensor:
    return Tensor(axes=tuple(Axis(name=a, extent=n, dim=a) for a, n in extents.items()))


def make(kind: str, *shapes: dict[str, int], **options: Any) -> Layer:
    return make_layer(kind, "layer", [tensor(**shape) for shape in shapes], options)


def shape(t: Tensor) -> dict[str, int]:
    return {axis.name: axis.extent for axis in t.axes}


def line(extent: int, channels: int = 1) -> dict[str, int]:
    return {"sample": 1, "channel": channels, "width": extent}


# one layer of every kind, and some of their variants
EXAMPLES: dict[str, Layer] = {
    "conv": make("conv", IMAGE, filters=4, kernel=3, padding=1),
    "conv, grouped": make("conv", IMAGE, filters=4, kernel=3, groups=2),
    "conv, depthwise": make("conv", IMAGE, filters=12, kernel=3, groups=6),
    "conv, frozen": make("conv", IMAGE, filters=4, kernel=3, frozen=True),
    "conv, transposed": make("conv", IMAGE, filters=4, kernel=2, stride=2, transposed=True),
    "pool": make("pool", IMAGE, kernel=2),
    "global_pool": make("global_pool", IMAGE),
    "linear": make("linear", HIDDEN, filters=7),
    "linear, flattening": make("linear", IMAGE, filters=7),
    "embedding": make("embedding", TOKENS, rows=50, filters=12),
    "attention": make("attention", HIDDEN, heads=2),
    "attention, grouped": make("attention", HIDDEN, heads=4, kv_heads=1),
    "attention, cross": make("attention", HIDDEN, {**MEMORY, "hidden": 8}, heads=4, kv_heads=2),
    "attention, latent": make("attention", HIDDEN, MEMORY, {**MEMORY, "hidden": 2}, heads=2),
    "attention, unfused": make("attention", HIDDEN, heads=2, fused=False, position_buckets=3),
    "attention, separate": make(
        "attention",
        HIDDEN,
        {**MEMORY, "hidden": 6},
        {**MEMORY, "hidden": 10},
        heads=4,
        kv_heads=2,
        separate=True,
    ),
    "pointwise": make("pointwise", HIDDEN, HIDDEN, weights=1),
    "rearrange": make(
        "rearrange", IMAGE, axes={"sequence": 80, "hidden": 6}, along={"hidden": "channel"}
    ),
    "opaque": make("opaque", HIDDEN, IMAGE, axes={"channel": 3}),
    "rotary": make("rotary", HIDDEN, heads=4, touched=3),
    "head_norm": make("head_norm", HIDDEN, heads=4, touched=3),
    "glu": make("glu", HIDDEN),
    "rms_norm": make("rms_norm", HIDDEN),
    "bias": make("bias", HIDDEN),
    "router": make("router", HIDDEN, experts=4),
    "dispatch": make("dispatch", HIDDEN, experts=4, top_k=2),
    "linear, of experts": make("linear", EXPERTS, filters=7),
    "glu, of experts": make("glu", EXPERTS),
    "combine": make("combine", EXPERTS, {**TOKENS, "hidden": 4}),
    "tokens": make("tokens", IMAGE),
    "take": make("take", HIDDEN, axis="sequence", count=1),
    "embedding_tables": make("embedding_tables", FEATURES, rows=(5, 9), filters=6),
    "interaction": make("interaction", FEATURES, {"sample": 2, "table": 3, "hidden": 6}),
    "activation": make("activation", IMAGE),
    "add": make("add", IMAGE, IMAGE),
    "scale": make("scale", IMAGE, FEATURES),
    "dropout": make("dropout", HIDDEN),
    "batch_norm": make("batch_norm", IMAGE, statistics="synchronised"),
    "affine": make("affine", IMAGE),
    "layer_norm": make("layer_norm", HIDDEN),
    "softmax": make("softmax", HIDDEN),
    "loss": make("loss", FEATURES),
    "upsample": make("upsample", IMAGE, factor=3),
    "roi_align": make("roi_align", IMAGE, IMAGE, regions=5, extent=7),
    "concat": make("concat", IMAGE, {**IMAGE, "channel": 2}),
}


def test_every_kind_has_an_example() -> None:
    assert {name.split(",")[0] for name in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("layer", EXAMPLES.values(), ids=EXAMPLES)
def test_tensors_are_indexed_by_dims_of_the_layer(layer: Layer) -> None:
    assert set(layer.dims) <= set(DIMS)
    for t in (*layer.inputs, layer.output):
        assert t.dims <= set(layer.dims)
        # no two axes of a tensor are split by one dim
        assert len(t.dims) == sum(axis.dim is not None for axis in t.axes)
    assert set(layer.weight_dims) <= set(layer.dims)
    assert layer.splittable <= set(layer.dims)
    assert set(layer.windows) <= set(layer.dims)
    # the weights of a norm that heads share are whole on every rank
    shared = layer.kind == "head_norm"
    assert (layer.held_parameters > 0) == bool(layer.weight_dims) or shared
    if layer.statistics:
        assert {*layer.statistics.over, *layer.statistics.per} <= set(layer.dims)


@pytest.mark.parametrize("layer", EXAMPLES.values(), ids=EXAMPLES)
def test_what_is_reduced_is_not_in_the_output(layer: Layer) -> None:
    assert layer.reduced_dims | layer.output.dims == set(layer.dims)
    assert not layer.reduced_dims & layer.output.dims
    for slot, t in enumerate(layer.inputs):
        assert layer.absent_dims(slot) == set(layer.dims) - t.dims


def test_rules_of_a_convolution() -> None:
    layer = EXAMPLES["conv"]
    assert layer.reduced_dims == {"channel"}
    assert layer.absent_dims(0) == {"filter"}
    assert set(layer.dims) - set(layer.weight_dims) == {"sample", "height", "width"}
    assert shape(layer.output) == {"sample": 2, "channel": 4, "height": 8, "width": 10}
    assert layer.parameters == 4 * 6 * 9


def test_rules_of_attention() -> None:
    queries, keys = EXAMPLES["attention"].absent_dims(0), EXAMPLES["attention"].absent_dims(1)
    assert queries == set()
    assert keys == {"sequence"}


@settings(max_examples=200, deadline=None)
@given(
    extent=st.integers(1, 24),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 4),
    dilation=st.integers(1, 3),
)
def test_outputs_are_the_windows_that_fit(
    extent: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    starts = range(-padding, extent + padding, stride)
    fitting = [s for s in starts if s + (kernel - 1) * dilation < extent + padding]
    options = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    if not fitting:
        with pytest.raises(InputError, match="dim width must have at least 1 position"):
            make("conv", line(extent), filters=1, **options)
        return
    layer = make("conv", line(extent), filters=1, **options)
    assert layer.dims["width"] == len(fitting)
    window = layer.windows["width"]
    first = [o * window.stride - window.padding for o in range(layer.dims["width"])]
    assert first == fitting
    read = [fitting[0] + k * window.dilation for k in range(window.kernel)]
    assert window.reach == max(read) - min(read) + 1


@settings(max_examples=200, deadline=None)
@given(
    extent=st.integers(1, 24),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
)
def test_ceil_mode_adds_only_windows_that_start_inside(
    extent: int, kernel: int, stride: int, padding: int
) -> None:
    assume(padding <= kernel // 2 and extent + 2 * padding >= kernel)
    layer = make(
        "pool", line(extent), kernel=kernel, stride=stride, padding=padding, ceil_mode=True
    )
    starts = list(range(-padding, extent, stride))
    fitting = sum(s + kernel <= extent + padding for s in starts)
    # a window that hangs over the end counts when one position of the one before it is missing
    covered = starts[fitting - 1] + kernel if fitting else -padding
    overhanging = covered < extent + padding and fitting < len(starts)
    assert layer.dims["width"] == fitting + overhanging


@settings(max_examples=200, deadline=None)
@given(
    extent=st.integers(1, 30),
    kernel=st.integers(1, 6),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 2),
)
def test_same_padding_covers_the_input(
    extent: int, kernel: int, stride: int, dilation: int
) -> None:
    layer = make(
        "conv",
        line(extent),
        filters=1,
        kernel=kernel,
        stride=stride,
        padding="same",
        dilation=dilation,
    )
    outputs, window = layer.dims["width"], layer.windows["width"]
    assert outputs == math.ceil(extent / stride)
    before = window.padding
    after = (outputs - 1) * stride - before + window.reach - extent
    # padding is shared evenly, and none is needed where strides leave inputs out
    assert after - before in (0, 1) or (before == 0 and after <= 0)


@settings(max_examples=50, deadline=None)
@given(
    extents=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    transposed=st.booleans(),
)
def test_multiply_adds_are_counted(
    extents: tuple[int, int], groups: int, kernel: tuple[int, int], transposed: bool
) -> None:
    channels, filters, samples = 4, 8, 2
    height, width = extents
    layer = make(
        "conv",
        {"sample": samples, "channel": channels, "height": height, "width": width},
        filters=filters,
        kernel=kernel,
        stride=kernel if transposed else 1,
        groups=groups,
        transposed=transposed,
    )
    rows, columns = layer.output.extent("height"), layer.output.extent("width")
    count = 0
    for f, c in itertools.product(range(filters), range(channels)):
        if f // (filters // groups) != c // (channels // groups):
            continue
        # a transposed convolution's output reads one input, a plain one's reads the kernel
        count += samples * rows * columns * (1 if transposed else math.prod(kernel))
    assert layer.macs == count
    assert layer.parameters * groups == channels * filters * math.prod(kernel)


def test_other_multiply_adds_and_parameters() -> None:
    assert EXAMPLES["linear"].macs == 2 * 5 * 12 * 7
    assert EXAMPLES["linear"].parameters == 12 * 7 + 7
    assert EXAMPLES["linear, flattening"].macs == 2 * 6 * 8 * 10 * 7
    # scores, and values weighted by them, of 4 of 12 / 3 features
    assert EXAMPLES["attention"].macs == 2 * 2 * 5 * 5 * 4
    assert EXAMPLES["embedding"].parameters == 50 * 12
    assert EXAMPLES["batch_norm"].parameters == 2 * 6
    assert EXAMPLES["layer_norm"].parameters == 2 * 12
    assert EXAMPLES["pool"].macs == EXAMPLES["embedding"].macs == 0


def test_shapes() -> None:
    shapes = {name: shape(layer.output) for name, layer in EXAMPLES.items()}
    assert shapes["conv, transposed"] == {"sample": 2, "channel": 4, "height": 16, "width": 20}
    assert shapes["pool"] == {**IMAGE, "height": 4, "width": 5}
    assert shapes["global_pool"] == FEATURES
    assert shapes["linear"] == {**TOKENS, "hidden": 7}
    assert shapes["linear, flattening"] == {"sample": 2, "channel": 7}
    assert shapes["embedding"] == HIDDEN
    assert shapes["attention"] == {**TOKENS, "hidden": 4}
    assert shapes["upsample"] == {**IMAGE, "height": 24, "width": 30}
    assert shapes["concat"] == {**IMAGE, "channel": 8}


def test_a_group_of_one_channel_is_one_dim_but_one_channel_is_no_group() -> None:
    assert "channel" not in EXAMPLES["conv, depthwise"].splittable
    assert EXAMPLES["conv, depthwise"].absent_dims(0) == {"channel"}
    single = make("conv", {**IMAGE, "channel": 1}, filters=4, kernel=3)
    assert single.absent_dims(0) == {"filter"}


def test_what_backward_keeps() -> None:
    kept = {name: (layer.keeps_inputs, layer.keeps_output) for name, layer in EXAMPLES.items()}
    assert kept["conv"] == kept["linear"] == kept["batch_norm"] == (True, False)
    assert kept["activation"] == (False, True)
    assert kept["add"] == kept["concat"] == kept["dropout"] == (False, False)
    for function, keeps_output in (("relu6", True), ("leaky_relu", True), ("gelu", False)):
        layer = make("activation", IMAGE, function=function)
        assert (layer.keeps_inputs, layer.keeps_output) == (not keeps_output, keeps_output)
        assert layer.in_place == keeps_output
    assert EXAMPLES["dropout"].saved_bytes == math.prod(HIDDEN.values())
    assert EXAMPLES["pool"].saved_bytes == 8 * EXAMPLES["pool"].output.size
    assert make("pool", IMAGE, kernel=2, mode="average").saved_bytes == 0
    squares = 2 * 2 * 5 * 5
    unfused = make("attention", HIDDEN, heads=2, fused=False)
    assert (unfused.saved_elements, unfused.saved_bytes) == (squares, 0)
    dropping = make("attention", HIDDEN, heads=2, fused=False, dropout=True)
    assert (dropping.saved_elements, dropping.saved_bytes) == (2 * squares, squares)


def test_equal_work_has_an_equal_signature() -> None:
    options: dict[str, Any] = {"filters": 4, "kernel": 3}
    one = KINDS["conv"]("one", [tensor(**IMAGE)], **options)
    other = KINDS["conv"]("other", [tensor(**IMAGE)], **options)
    wider = KINDS["conv"]("one", [tensor(**IMAGE)], **{**options, "kernel": 1})
    assert one.signature == other.signature != wider.signature
    assert hash(one.signature) == hash(other.signature)


@pytest.mark.parametrize(
    ("kind", "shapes", "options", "message"),
    [
        ("conv", [FEATURES], {"filters": 4, "kernel": 3}, "its input needs height and width"),
        ("conv", [IMAGE], {"filters": 4, "kernel": 3, "groups": 4}, "groups must divide"),
        ("conv", [IMAGE], {"filters": 4, "kernel": [3]}, "kernel must be a whole number"),
        ("conv", [IMAGE], {"filters": 4, "kernel": 3, "padding": -1}, "padding must be"),
        (
            "conv",
            [IMAGE],
            {"filters": 4, "kernel": 3, "transposed": True},
            "must have kernel equal",
        ),
        ("pool", [IMAGE], {"kernel": 2, "padding": 2}, "at most half its kernel but is 2 of 2"),
        ("pool", [IMAGE], {"kernel": 9}, "dim height must have at least 1 position"),
        ("attention", [HIDDEN], {"heads": 3}, "heads must divide"),
        ("attention", [{**TOKENS, "hidden": 8}], {"heads": 1}, "query, key and value"),
        ("attention", [HIDDEN], {"heads": 3, "kv_heads": 2}, "2 does not divide 3"),
        ("attention", [HIDDEN] * 4, {"heads": 3}, "all heads add to their keys, too) but reads 4"),
        ("attention", [HIDDEN, {**TOKENS, "hidden": 4}], {"heads": 4}, "values need some, too"),
        ("attention", [HIDDEN], {"heads": 2, "window": -1}, "must be at least 0"),
        ("rotary", [HIDDEN], {"heads": 2, "touched": 3}, "from 1 to all 2 but are 3"),
        ("head_norm", [HIDDEN], {"heads": 5}, "heads must divide the features of its input"),
        ("glu", [{**TOKENS, "hidden": 3}], {}, "two halves but reads 3"),
        ("dispatch", [HIDDEN], {"experts": 4, "top_k": 5}, "from 1 to the 4 experts but is 5"),
        ("dispatch", [HIDDEN], {"experts": 4, "top_k": 1, "capacity": 0.0}, "capacity must be"),
        ("combine", [EXPERTS, HIDDEN], {}, "a score for each of the 4 experts but has 12"),
        ("tokens", [HIDDEN], {}, "must read positions of space"),
        ("take", [HIDDEN], {"axis": "width", "count": 1}, "but takes 1 of 'width'"),
        ("take", [HIDDEN], {"axis": "sequence", "count": 6}, "but takes 6 of 'sequence'"),
        ("embedding_tables", [FEATURES], {"rows": (3, 0), "filters": 2}, "at least 1 row"),
        ("interaction", [FEATURES, EXPERTS], {}, "but are 6 and 12"),
        ("add", [IMAGE, {**IMAGE, "width": 9}], {}, "must have the same shape"),
        ("concat", [IMAGE, {**IMAGE, "width": 9}], {}, "must agree in all but channels"),
        ("scale", [IMAGE, {**FEATURES, "channel": 5}], {}, "must have axes of the first"),
        ("batch_norm", [IMAGE], {"statistics": "global"}, "one of local, spatial, synchronised"),
        ("dropout", [IMAGE], {"rate": 1.0}, "rate must be at least 0 and less than 1"),
        ("upsample", [IMAGE], {"factor": 0}, "factor must be"),
    ],
)
def test_a_layer_that_does_not_fit_is_one_sentence(
    kind: str, shapes: list[dict[str, int]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        make(kind, *shapes, **options)
    assert message in str(caught.value)
    assert str(caught.value).startswith("layer 'layer': ")


def spec(name: str, kind: str, *inputs: str, **options: Any) -> LayerSpec:
    return LayerSpec(name=name, kind=kind, inputs=inputs, options=options)


DIAMOND = (
    spec("stem", "conv", "input", filters=6, kernel=3, padding=1),
    spec("left", "activation", "stem"),
    spec("right", "batch_norm", "stem"),
    spec("join", "add", "left", "right"),
    spec("pool", "global_pool", "join"),
    spec("head", "linear", "pool", filters=10),
    spec("loss", "loss", "head"),
)


def graph_of(*layers: LayerSpec, batch: int = 2, **input_shape: int) -> Graph:
    network = Network(name="net", input_shape=input_shape, layers=layers)
    return build_graph(network, batch)


def diamond(*layers: LayerSpec, batch: int = 2) -> Graph:
    return graph_of(*layers, batch=batch, channel=3, height=8, width=8)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_layers_may_be_given_in_any_order(seed: int) -> None:
    shuffled = list(DIAMOND)
    random.Random(seed).shuffle(shuffled)
    straight, graph = diamond(*DIAMOND), diamond(*shuffled)
    assert dict(graph.layers) == dict(straight.layers)
    assert set(graph.edges) == set(straight.edges)
    place = {name: i for i, name in enumerate(graph.layers)}
    assert all(place[edge.source] < place[edge.target] for edge in graph.edges)


def test_the_order_given_is_kept_where_it_can_be() -> None:
    assert list(diamond(*DIAMOND).layers) == ["input", *(s.name for s in DIAMOND)]


def test_edges_by_consumer_and_by_producer() -> None:
    graph = diamond(*DIAMOND)
    assert [(e.source, e.slot) for e in graph.producers["join"]] == [("left", 0), ("right", 1)]
    assert [e.target for e in graph.consumers["stem"]] == ["left", "right"]
    assert graph.producers["input"] == graph.consumers["loss"] == ()
    assert [layer.name for layer in graph.compute_layers] == [s.name for s in DIAMOND]
    into_data = [e for e in graph.edges if not graph.needs_input_gradient(e)]
    assert [(e.source, e.target) for e in into_data] == [("input", "stem")]


@given(batch=st.integers(1, 64))
def test_work_grows_with_the_batch_and_weights_do_not(batch: int) -> None:
    one, many = diamond(*DIAMOND, batch=1), diamond(*DIAMOND, batch=batch)
    assert many.macs == batch * one.macs
    assert many.parameters == one.parameters
    for name, layer in many.layers.items():
        assert layer.output.size == batch * one.layers[name].output.size


def test_attention_reads_its_input_twice() -> None:
    graph = graph_of(spec("attend", "attention", "input", heads=2), sequence=4, hidden=12)
    assert [(e.source, e.slot) for e in graph.edges] == [("input", 0), ("input", 1)]
    assert [view.extent("hidden") for view in graph.layers["attend"].inputs] == [4, 8]


def test_a_shared_weight_is_counted_once() -> None:
    tokens = spec("tokens", "embedding", "input", rows=9, filters=6)
    tied = spec("tied", "linear", "tokens", filters=9, bias=False, share="tokens")
    graph = graph_of(tokens, tied, sequence=4)
    assert graph.parameters == 9 * 6
    assert graph.layers["tied"].macs == 2 * 4 * 6 * 9
    assert graph.sharers == {"tokens": ("tied",)}


def test_sharing_leads_to_the_layer_that_has_the_weight() -> None:
    first = spec("a", "conv", "input", filters=3, kernel=1)
    second = spec("b", "conv", "a", filters=3, kernel=1, share="a")
    third = spec("c", "conv", "b", filters=3, kernel=1, share="b")
    graph = graph_of(first, second, third, channel=3, width=8)
    assert graph.sharers == {"a": ("b", "c")}
    assert graph.parameters == 9


def test_the_first_user_of_a_weight_counts_as_its_owner() -> None:
    options = {"filters": 3, "kernel": 1}
    first = spec("a", "conv", "input", share="b", **options)
    second = spec("b", "conv", "a", **options)
    third = spec("c", "conv", "b", share="a", **options)
    graph = graph_of(first, second, third, channel=3, width=8)
    # its gradient is complete with the last backward pass, which is that of the first layer
    assert graph.sharers == {"a": ("b", "c")}
    assert graph.layers["a"].shares_weight_with is None


def dims_shared(owner: LayerSpec, sharer: LayerSpec, **shape: int) -> object:
    graph = graph_of(owner, sharer, **shape)
    return shared_dims(graph.layers[owner.name], graph.layers[sharer.name])


def test_layers_of_unlike_kinds_hold_a_weight_by_the_same_axes() -> None:
    tokens = spec("tokens", "embedding", "input", rows=9, filters=6)
    tied = spec("tied", "linear", "tokens", filters=9, bias=False, share="tokens")
    # rows of the table are classes of the head, features of the table are what the head reads
    assert dims_shared(tokens, tied, sequence=4) == (("channel", "filter"), ("filter", "channel"))
    narrow = spec("narrow", "linear", "input", filters=4, bias=False)
    wide = spec("wide", "linear", "narrow", filters=8, bias=False, share="narrow")
    # a decoder whose weight is that of the encoder transposed
    assert dims_shared(narrow, wide, channel=8) == (("filter", "channel"), ("channel", "filter"))
    other = spec("narrow", "linear", "input", filters=8, bias=False)
    assert dims_shared(other, wide, channel=8) == (("filter", "filter"), ("channel", "channel"))


@pytest.mark.parametrize("shares", [("b", "a"), ("b", "b")])
def test_sharing_must_lead_to_a_weight(shares: tuple[str, str]) -> None:
    rows = [
        spec(n, "linear", "input", filters=4, share=s) for n, s in zip("ab", shares, strict=True)
    ]
    with pytest.raises(InputError, match="must share the weight of another one"):
        graph_of(*rows, channel=4)


def test_layers_that_share_a_weight_hold_it_in_one_shape() -> None:
    rows = [
        spec("a", "linear", "input", filters=6, bias=False),
        spec("flat", "linear", "a", filters=8, bias=False),
        spec("b", "linear", "flat", filters=3, bias=False, share="a"),
    ]
    with pytest.raises(InputError, match="'b' has filter 3 x channel 8 and 'a' filter 6 x channel"):
        graph_of(*rows, channel=4)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((), "must have layers but has none"),
        ((*DIAMOND, DIAMOND[0]), "'stem' is taken"),
        ((spec("a", "loss"),), "must read at least one layer"),
        ((spec("a", "loss", "inputt"),), "name one of input, a"),
        ((spec("a", "loss", "b"), spec("b", "loss", "a")), "must not form a cycle"),
        ((spec("a", "los", "input"),), "use one of loss, "),
        ((spec("a", "loss", "input", rate=3),), "unexpected keyword argument 'rate'"),
        ((spec("a", "scale", "input"),), "must read 2 tensor(s) but reads 1"),
        ((spec("a", "linear", "input", filters=2, share="b"),), "'b', which is no layer"),
    ],
)
def test_a_network_that_does_not_fit_is_one_sentence(
    layers: tuple[LayerSpec, ...], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        diamond(*layers)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_batch_and_an_input_must_make_sense() -> None:
    with pytest.raises(InputError, match="at least 1 sample but is 0"):
        diamond(*DIAMOND, batch=0)
    with pytest.raises(InputError, match="unknown axis 'heigth'; use one of height"):
        graph_of(spec("a", "loss", "input"), heigth=4)

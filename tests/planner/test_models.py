"""Built-in networks have the published counts; network files say the same as they do."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.errors import InputError, printable
from costmodels.graph import LayerSpec, Network, build_graph
from costmodels.graph.kinds import KINDS
from planner.models import (
    BUILT_IN,
    build,
    format_network,
    list_models,
    load_network,
    parse_network,
)

DOCS = Path(__file__).parents[2] / "docs" / "network-files.md"

# Parameters and multiply-adds in units of 1e9. torchvision's documentation ("num_params" and
# "GFLOPS" of the weights), but for those of GoogLeNet and Inception v3 without auxiliary
# classifiers; OpenAI's GPT-2; milesial/Pytorch-UNet with two classes.
PUBLISHED = {
    "alexnet": (61_100_840, 0.71),
    "vgg16": (138_357_544, 15.47),
    "vgg19": (143_667_240, 19.63),
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 4.09),
    "resnet101": (44_549_160, 7.80),
    "resnet152": (60_192_808, 11.51),
    "googlenet": (6_624_904, 1.50),
    "inception_v3": (23_834_568, 5.71),
    "densenet121": (7_978_856, 2.83),
    "densenet161": (28_681_000, 7.73),
    "mobilenet_v2": (3_504_872, 0.30),
    "efficientnet_b0": (5_288_548, 0.39),
    "unet": (31_037_698, None),
    "gpt2": (124_439_808, None),
}


def tiny(**changes: object) -> dict[str, object]:
    """A network file as an object, with some fields of its one convolution changed."""
    layer = {"name": "c", "kind": "conv", "inputs": ["input"], "filters": 4, "kernel": 3}
    layer |= changes
    layer = {key: value for key, value in layer.items() if value is not None}
    return {"name": "tiny", "input": {"channel": 3, "height": 8, "width": 8}, "layer": [layer]}


def error_of(content: object) -> str:
    with pytest.raises(InputError) as caught:
        parse_network(json.dumps(content), suffix=".json")
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(name: str) -> None:
    parameters, macs = PUBLISHED[name]
    graph = build_graph(build(name), 1)
    assert graph.parameters == parameters
    if macs is not None:
        assert graph.macs / 1e9 == pytest.approx(macs, abs=0.005)


def test_gpt2_arithmetic_is_twelve_blocks_and_the_head() -> None:
    hidden, sequence = 768, 1024
    block = sequence * 12 * hidden**2 + 2 * sequence**2 * hidden
    assert build_graph(build("gpt2"), 1).macs == 12 * block + sequence * hidden * 50257


@pytest.mark.parametrize("size", [512, 256, 128])
def test_cosmoflow_has_the_weights_of_the_table(size: int) -> None:
    graph = build_graph(build(f"cosmoflow-{size}"), 1)
    # 2,128,064 weights in the authors' own analysis, and the biases of the linear layers
    assert graph.parameters == 2_128_064 + 2048 + 256 + 4
    last = graph.layers["conv7"].output
    assert [axis.extent for axis in last.axes] == [1, 128, 1, 1, 1]


def test_cosmoflow_shapes_at_512_voxels() -> None:
    graph = build_graph(build("cosmoflow"), 1)
    extents = [graph.layers[f"conv{i}"].output.extent("depth") for i in range(1, 8)]
    assert extents == [510, 253, 62, 29, 13, 5, 1]


@pytest.mark.parametrize(("name", "convs"), [("mesh-1k", 3), ("mesh-2k", 5)])
def test_mesh_agrees_with_the_text(name: str, convs: int) -> None:
    layers = build_graph(build(name), 1).layers
    assert layers["input"].output.extent("channel") == 18
    for block in range(1, 7):
        strides = [layers[f"conv{block}_{i}"].windows["height"].stride for i in range(1, convs + 1)]
        assert strides == [2] + [1] * (convs - 1)
        assert f"conv{block}_{convs + 1}" not in layers


def test_mesh_2k_agrees_with_the_headers_of_the_figure() -> None:
    layers = build_graph(build("mesh-2k"), 1).layers
    for name, channels, extent, filters, kernel, padding in (
        ("conv1_1", 18, 2048, 128, 5, 2),
        ("conv6_1", 384, 64, 128, 3, 1),
    ):
        layer, window = layers[name], layers[name].windows["width"]
        # the input of block 6 is the output of block 5, at 1/32 of the side
        assert layer.dims["channel"] == channels
        assert layer.inputs[0].extent("width") == extent
        assert layer.dims["filter"] == filters
        assert (window.kernel, window.padding, window.stride) == (kernel, padding, 2)


def test_mesh_agrees_with_the_measured_times_and_memory() -> None:
    rates, held = {}, {}
    for name, seconds in (("mesh-1k", 0.403), ("mesh-2k", 2 * 0.247)):
        graph = build_graph(build(name), 1)
        rates[name] = 6 * graph.macs / seconds
        held[name] = sum(8 * layer.output.size for layer in graph.layers.values())
    assert all(10e12 < rate < 13e12 for rate in rates.values())
    assert rates["mesh-1k"] == pytest.approx(rates["mesh-2k"], rel=0.05)
    # outputs and their gradients in fp32: one of 1K fits in 16 GB, half of 2K does, no more
    assert 8e9 < held["mesh-1k"] < 16e9 < held["mesh-2k"] < 32e9


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_network_is_one_graph_that_ends_in_a_loss(name: str) -> None:
    network = build(name)
    graph = build_graph(network, 2)
    sinks = [layer for layer in graph.layers if not graph.consumers[layer]]
    # detectors end in the places and classes of boxes
    if not name.startswith(("ssd300", "retinanet", "mask_rcnn", "efficientdet")):
        assert sinks == ["loss"]
        assert graph.layers["loss"].kind == "loss"
    assert network.source
    assert BUILT_IN[name].description
    assert graph.macs == 2 * build_graph(network, 1).macs
    for edge in graph.edges:
        produced = graph.layers[edge.source].output
        read = graph.layers[edge.target].inputs[edge.slot]
        # these read some heads of a tensor that holds more
        if graph.layers[edge.target].kind not in ("attention", "rotary", "head_norm"):
            assert [(a.name, a.extent) for a in produced.axes] == [
                (a.name, a.extent) for a in read.axes
            ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_input_sizes(name: str) -> None:
    model = BUILT_IN[name]
    if model.sizes:
        smallest, wrong = min(model.sizes), min(model.sizes) + 1
    else:
        smallest, wrong = model.minimum, model.minimum - 1
    build_graph(build(name, smallest), 1)
    with pytest.raises(InputError, match=f"input size of {name} must be .* but is {wrong}"):
        build(name, wrong)


@pytest.mark.parametrize("name", [*(n for n in PUBLISHED if n != "gpt2"), "mesh-1k"])
def test_parameters_do_not_depend_on_the_input_size(name: str) -> None:
    model = BUILT_IN[name]
    larger = model.size + 64
    assert build_graph(build(name, larger), 1).parameters == build_graph(build(name), 1).parameters


def test_a_long_sequence_gets_a_longer_position_embedding() -> None:
    graph = build_graph(build("gpt2", 2048), 1)
    assert graph.parameters == 124_439_808 + 1024 * 768


def test_names_are_listed_and_the_nearest_is_named_first() -> None:
    assert list_models() == tuple(BUILT_IN)
    with pytest.raises(InputError, match="use one of resnet50, "):
        load_network("resnet05")


@pytest.mark.parametrize("suffix", [".toml", ".json"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_files_say_what_built_in_networks_say(name: str, suffix: str) -> None:
    network = build(name)
    assert parse_network(format_network(network, suffix=suffix), suffix=suffix) == network


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    text=st.text(max_size=20).map(lambda text: f"x{printable(text)}"),
    rate=st.floats(0, 1, exclude_max=True),
)
def test_any_text_survives_a_file(text: str, rate: float) -> None:
    network = Network(
        name=text,
        input_shape={"channel": 3},
        layers=(
            LayerSpec(name=text + "'", kind="dropout", inputs=("input",), options={"rate": rate}),
        ),
        notes=text,
    )
    for suffix in (".toml", ".json"):
        assert parse_network(format_network(network, suffix=suffix), suffix=suffix) == network


def test_files_on_disk(tmp_path: Path) -> None:
    network = build("resnet18")
    for name in ("network.toml", "network.json"):
        text = format_network(network, suffix=Path(name).suffix)
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert load_network(tmp_path / name) == network
        assert load_network(tmp_path / name, 256).input_shape == {
            "channel": 3,
            "height": 256,
            "width": 256,
        }
    with pytest.raises(InputError, match="must be readable but is not"):
        load_network(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(InputError, match="not UTF-8"):
        load_network(tmp_path / "latin.toml")


def test_the_documented_example_loads() -> None:
    block = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block
    graph = build_graph(parse_network(block[1], suffix=".toml"), 4)
    assert list(graph.layers) == ["input", "conv1", "relu1", "conv2", "join", "pool", "fc", "loss"]
    assert graph.parameters == 3 * 16 * 9 + 16 * 16 * 3 + 16 * 10 + 10
    assert graph.layers["conv2"].output.extent("height") == 32


def test_the_documented_calls_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block
    monkeypatch.chdir(tmp_path)
    exec(block[1], {})
    assert load_network("resnet50-256.toml").input_shape["height"] == 256


def test_the_documentation_names_every_kind_and_field() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {kind: text for kinds, text in rows for kind in re.findall(r"`(\w+)`", kinds)}
    for kind, function in KINDS.items():
        options = {
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }
        assert kind in documented
        assert set(re.findall(r"`(\w+)(?: = [^`]*)?`", documented[kind])) == options, kind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "convv"}, "unknown kind 'convv'; use one of conv, "),
        ({"kind": None}, "layer 'c' lacks the field 'kind'"),
        ({"name": None}, "lacks the field 'name'"),
        ({"filters": None}, "layer 'c' of kind 'conv' lacks the field 'filters'"),
        ({"kernl": 3}, "unknown field 'kernl'; use one of kernel, "),
        ({"filters": "four"}, "expected 'int', got 'str' in 'filters'"),
        ({"filters": 0}, "dim filter must have at least 1 position but has 0"),
        ({"kernel": 0}, "kernel must be a whole number of at least 1"),
        ({"kernel": [3, 3, 3]}, "one for each of the 2 spatial dims"),
        ({"kernel": 9}, "dim height must have at least 1 position but has 0"),
        ({"padding": "sam"}, "unknown padding 'sam'; use one of same"),
        ({"groups": 0}, "groups must divide"),
        ({"inputs": []}, "must read at least one layer"),
        ({"inputs": ["imput"]}, "name one of input"),
        ({"inputs": ["c"]}, "must not form a cycle"),
        ({"inputs": ["input", "input"]}, "must read 1 tensor"),
        ({"name": "input"}, "must be unique and not 'input'"),
    ],
)
def test_a_bad_layer_is_one_sentence(changes: dict[str, object], message: str) -> None:
    assert message in error_of(tiny(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": []}, "unknown field 'layers'; use one of layer, "),
        ({"layer": []}, "must have layers but has none"),
        ({"input": {"channel": 3, "hight": 8}}, "unknown axis 'hight'; use one of height, "),
        ({"input": {"channel": 0, "height": 8}}, "dim channel must have at least 1 position"),
        ({"input": {"channel": "3"}}, "expected 'int', got 'str'"),
        ({"name": 3}, "expected 'str', got 'int' in 'name'"),
    ],
)
def test_a_bad_file_is_one_sentence(changes: dict[str, object], message: str) -> None:
    assert message in error_of({**tiny(), **changes})


def test_text_that_is_no_toml_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"must be valid TOML but is not: .*line 1"):
        parse_network("name = ,", suffix=".toml")
    assert "expected 'object', got 'array'" in error_of([])


def test_a_cycle_is_shown() -> None:
    layers = [
        {"name": "p", "kind": "loss", "inputs": ["q"]},
        {"name": "q", "kind": "loss", "inputs": ["p"]},
    ]
    message = error_of({**tiny(), "layer": layers})
    assert "p -> q -> p" in message or "q -> p -> q" in message


@pytest.mark.parametrize(
    ("share", "message"), [("hed", "name one of head"), ("conv", "equally many parameters")]
)
def test_a_shared_weight_must_exist_and_fit(share: str, message: str) -> None:
    layers = [
        {"name": "conv", "kind": "conv", "filters": 4, "kernel": 1},
        {"name": "head", "kind": "linear", "filters": 5},
        {"name": "tied", "kind": "linear", "filters": 5, "share": share},
    ]
    assert message in error_of({**tiny(), "layer": layers})


def _layers(*rows: dict[str, object], **head: object) -> str:
    first = {"name": "fc", "kind": "linear", "inputs": ["input"], "filters": 4}
    network = {"name": "mine", "input": {"channel": 4}, "layer": [first, *rows], **head}
    return json.dumps(network)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_layers({"name": "a", "kind": "activation", "function": "mystery"}), "be one of relu, "),
        (_layers({"name": "a", "kind": "activation", "function": ""}), "be one of relu, "),
        (
            _layers({"name": "l", "kind": "loss"}, {"name": "d", "kind": "dropout"}),
            "a loss must be the last layer",
        ),
        (_layers({"name": "a", "kind": "add"}), "must read at least 2 layers but reads 1"),
        (
            _layers({"name": "b", "kind": "linear", "filters": 4, "share": "b"}),
            "share the weight of another one",
        ),
        (
            _layers(
                {"name": "b", "kind": "linear", "filters": 4, "share": "c"},
                {"name": "c", "kind": "linear", "filters": 4, "share": "b"},
            ),
            "share the weight of another one",
        ),
        (_layers(name=""), "name of a network must be text"),
        (_layers(name="\x1b"), "name of a network must be text"),
        (_layers(name="a\nb"), "name of a network must be text"),
        (_layers({"name": " ", "kind": "dropout"}), "name of a layer must be text"),
        (_layers(input={"height": 8, "width": 8}), "must have a channel"),
        (_layers({"name": "b", "kind": "linear", "filters": int("9" * 4000)}), "64 bits"),
    ],
)
def test_networks_that_nobody_can_mean_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_network(text, suffix=".json")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"name": ' + "9" * 5000 + "}"])
def test_what_no_parser_takes_is_refused(text: str) -> None:
    for suffix in (".json", ".toml"):
        with pytest.raises(InputError, match="must be valid"):
            parse_network(text if suffix == ".json" else f"a = {text}", suffix=suffix)


def test_tensors_have_a_size_that_can_be_counted() -> None:
    with pytest.raises(InputError, match="tensors must have at most"):
        build_graph(load_network("resnet18", 2**31), 1)


def test_a_path_of_code_is_no_name_of_a_network() -> None:
    with pytest.raises(InputError, match="name a module of PyTorch like"):
        build("folder/code.py:Net")

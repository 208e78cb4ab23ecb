"""ONNX files become the networks of the modules that they were made from; nothing is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch_extra
from click.testing import CliRunner

torch_extra.require("torch", "onnx", "onnxscript")

import onnx
import plain_models as plain
import plain_transformers as transformers
import torch
from onnx import TensorProto, helper

import planner
from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from planner.cli.command import planner_command
from planner.models.onnx.network import network_of_onnx
from planner.torch.source import network_of_source


class ResNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        self.maxpool = torch.nn.MaxPool2d(3, 2, 1)
        self.layer1 = torch.nn.Sequential(
            plain.Bottleneck(64, 64, 1, True), plain.Bottleneck(256, 64, 1, False)
        )
        self.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc = torch.nn.Linear(256, 1000)

    def forward(self, x):
        x = self.layer1(self.maxpool(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


CASES = {
    ResNet: (2, 3, 64, 64),
    plain.UNet3D: (2, 1, 16, 16, 16),
    plain.Mobile: (2, 3, 32, 32),
    transformers.GPT: (2, 16),
    transformers.Llama: (2, 16),
}


def exported(kind: type, folder: Path, **more: bool) -> tuple[Path, torch.Tensor]:
    shape = CASES[kind]
    tokens = kind in (transformers.GPT, transformers.Llama)
    sample = torch.zeros(shape, dtype=torch.int64 if tokens else torch.float32)
    path = folder / f"{kind.__name__}.onnx"
    options = {"optimize": False, **more}
    program = torch.onnx.export(
        kind().train(),
        (sample,),
        dynamo=True,
        verbose=False,
        dynamic_shapes=({0: "batch"},),
        **options,
    )
    program.save(path)
    return path, sample


class Files(dict[type, tuple[Path, torch.Tensor]]):
    """Files of modules, each exported when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, kind: type) -> tuple[Path, torch.Tensor]:
        self[kind] = exported(kind, self.folder)
        return self[kind]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files(tmp_path_factory.mktemp("onnx"))


def kinds(network: Network) -> list[tuple[str, object]]:
    return [(row.kind, row.options) for row in network.layers]


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_a_file_is_the_network_of_its_module(files, kind):
    path, sample = files[kind]
    network, module = network_of_onnx(path, None), network_of_source(kind, sample)
    graph, known = build_graph(network, 1), build_graph(module, 1)
    assert graph.parameters == known.parameters == sum(w.numel() for w in kind().parameters())
    assert graph.macs == known.macs
    assert kinds(network) == kinds(module)
    assert network.input_shape == module.input_shape
    pairs = zip(graph.compute_layers, known.compute_layers, strict=True)
    assert all(a.signature == b.signature for a, b in pairs)
    # names are those of modules; functions that are no module have one of their own
    own = {row.name for row in module.layers if row.kind in ("conv", "linear", "batch_norm")}
    assert own <= {row.name for row in network.layers}


@pytest.mark.slow
def test_the_plan_is_that_of_the_module(files):
    path, sample = files[ResNet]
    question = {"gpus": 8, "cluster": "lassen", "global_batch_size": 4, "cap": 16}
    plan = planner.optimize(path, **question)
    other = planner.optimize(ResNet, inputs=tuple(sample.shape), **question)
    assert plan.step_time == other.step_time
    rows = zip(plan.layers.values(), other.layers.values(), strict=True)
    assert all(a.distribution == b.distribution for a, b in rows)
    assert planner.simulate(planner.Plan.from_json(plan.to_json())).step_time == plan.step_time


def test_the_number_of_samples_is_open_and_other_extents_are_given(files):
    path, _ = files[transformers.GPT]
    assert network_of_onnx(path, "x=6,16") == network_of_onnx(path, None)
    assert network_of_onnx(path, [(1, 16)]) == network_of_onnx(path, {"x": (4, 16)})
    for given, words in (
        ("8,32", "as the file says"),
        ("8", "must have 2 extents"),
        ("y=8,16", "one of those of the model (x)"),
        ([(8, 16), (8, 16)], "one more"),
        ("8,0", "as the file says"),
        ("eight", "must be a shape"),
        ({"x": None}, None),
    ):
        if words is None:
            network_of_onnx(path, given)
            continue
        with pytest.raises(InputError) as error:
            network_of_onnx(path, given)
        assert words in str(error.value)


def test_weights_lie_elsewhere_and_are_not_read(files, tmp_path):
    path, _ = files[plain.Mobile]
    model = onnx.load(path)
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    (tmp_path / "weights").unlink()
    assert network_of_onnx(tmp_path / "m.onnx", None).layers == network_of_onnx(path, None).layers


def graph_of(
    nodes: list, inputs: list | None = None, weights: list = (), opset: int = 20
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", 3, 8, 8])] if inputs is None else inputs,
        [helper.make_tensor_value_info("y", 1, None)],
        initializer=list(weights),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def weight(name: str, *extents: int) -> onnx.TensorProto:
    """A weight whose numbers are not there."""
    return onnx.TensorProto(name=name, dims=extents, data_type=TensorProto.FLOAT)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_operators_of_others_are_opaque_and_listed(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], auto_pad="SAME_UPPER"),
        helper.make_node("Fold", ["a", "v"], ["b"], domain="mine", name="fold\x1b[31m\n1"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    model = graph_of(nodes, weights=[weight("w", 16, 3, 3, 3), weight("v", 5, 5)])
    model.graph.value_info.append(helper.make_tensor_value_info("b", 1, ["batch", 16, 8, 8]))
    network = network_of_onnx(saved(model, tmp_path), None)
    assert [row.kind for row in network.layers][:3] == ["conv", "opaque", "activation"]
    assert network.layers[1].options["weights"] == 25
    assert all(row.name.isprintable() for row in network.layers)
    plan = planner.evaluate(saved(model, tmp_path), gpus=2, cluster="lassen", strategy="data")
    assert any("opaque" in text for text in plan.fallbacks)


def test_zeros_at_the_ends_are_an_operator_of_their_own(tmp_path):
    ends = helper.make_node("Constant", [], ["ends"], value_ints=[0, 0, 1, 1, 0, 0, 1, 1])
    pad = helper.make_node("Pad", ["x", "ends"], ["a"])
    nodes = [ends, pad, helper.make_node("Conv", ["a", "w"], ["y"])]
    model = graph_of(nodes, weights=[weight("w", 16, 3, 3, 3)])
    found = kinds(network_of_onnx(saved(model, tmp_path), None))
    assert [kind for kind, _ in found] == ["opaque", "conv", "loss"]


def test_constants_make_shapes(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Constant", [], ["axes"], value_ints=[0]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["first"]),
        helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
        helper.make_node("Concat", ["first", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "b"], ["y"]),
    ]
    model = graph_of(nodes, weights=[weight("w", 192, 10), weight("b", 10)])
    network = network_of_onnx(saved(model, tmp_path), None)
    assert [row.kind for row in network.layers] == ["linear", "loss"]
    assert build_graph(network, 1).parameters == 1930


RELU = [helper.make_node("Relu", ["x"], ["y"])]
BRANCH = helper.make_graph([], "b", [], [])
BAD = {
    "control": (
        graph_of([helper.make_node("If", ["x"], ["y"], name="choose", then_branch=BRANCH)]),
        ("'choose' (If) chooses what runs",),
    ),
    "loop": (
        graph_of([helper.make_node("Loop", ["", "", "x"], ["y"], body=BRANCH)]),
        ("'y' (Loop) chooses what runs",),
    ),
    "opset": (graph_of(RELU, opset=999), ("must be of a version from 1 to", "999")),
    "unknown operator": (
        graph_of([helper.make_node("Fold", ["x"], ["y"], domain="mine")]),
        ("all shapes must be known", "'y' (Fold)"),
    ),
    "cycle": (
        graph_of(
            [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], "b")]
        ),
        ("written once, before it is read", "'a' (Add) reads 'b'"),
    ),
    "twice": (graph_of(RELU * 2), ("writes 'y', which is already there",)),
    "open extents": (
        graph_of(RELU, inputs=[helper.make_tensor_value_info("x", 1, ["n", 3, "h", "w"])]),
        ("must have known extents", "--input"),
    ),
    "no rank": (
        graph_of(RELU, inputs=[helper.make_tensor_value_info("x", 1, None)]),
        ("must be a tensor of known rank",),
    ),
    "depends on values": (
        graph_of([helper.make_node("NonZero", ["x"], ["y"])]),
        ("depends on the samples", "(NonZero)"),
    ),
    "does not fit": (
        graph_of([helper.make_node("MatMul", ["x", "w"], ["y"])], weights=[weight("w", 5, 5)]),
        ("'y' (MatMul) does not fit what it reads",),
    ),
    "nothing in": (graph_of(RELU, inputs=[]), ("inputs are none",)),
    "negative extents": (
        graph_of([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight("w", -5)]),
        ("must be at least 0",),
    ),
    "a claim": (
        graph_of(
            [helper.make_node("Gemm", ["f", "w"], ["y"])],
            inputs=[helper.make_tensor_value_info("f", 1, [2, 2**40])],
            weights=[weight("w", 2**40, 2**40)],
        ),
        ("must",),
    ),
    "a list as a tensor": (
        graph_of([helper.make_node("SequenceAt", [], ["y"])]),
        ("'y' (SequenceAt)",),
    ),
    "scalar": (
        graph_of(RELU, inputs=[helper.make_tensor_value_info("x", 1, [])]),
        ("the first extent of all inputs must be the samples",),
    ),
}


@pytest.mark.parametrize(
    ("name", "dims", "advice"),
    [
        ("x", ["n", 3, "h", "w"], "give --input x=8,3,224,224"),
        ("x", [4, "t", 64], "give --input x=4,128,64"),
        ("input ids", ["n", "t"], "give --input 8,128"),
        ("x", ["n", 0], "export it again"),
    ],
)
def test_what_to_give_has_as_many_numbers_as_the_input(name, dims, advice, tmp_path):
    """Four numbers were advised for inputs of three, and of ones that no option mends."""
    given = [helper.make_tensor_value_info(name, 1, dims)]
    model = graph_of([helper.make_node("Relu", [name], ["y"])], inputs=given)
    with pytest.raises(InputError) as error:
        network_of_onnx(saved(model, tmp_path), None)
    assert str(error.value).endswith(f"; {advice}")


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_planned_is_said_in_one_sentence(case, tmp_path):
    model, words = BAD[case]
    path = saved(model, tmp_path)
    with pytest.raises(InputError) as error:
        network_of_onnx(path, None)
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    done = CliRunner().invoke(planner_command, ["optimize", str(path), "--gpus", "4"])
    assert done.exit_code == 2


def test_functions_that_call_each_other_are_not_written_out(tmp_path):
    """Each calls the next twice: a few lines would be 2**60 operators."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    functions = [
        helper.make_function(
            "mine",
            f"f{n}",
            ["a"],
            ["b"],
            [
                helper.make_node(f"f{n + 1}", ["a"], ["c"], domain="mine"),
                helper.make_node(f"f{n + 1}", ["c"], ["b"], domain="mine"),
            ]
            if n < 60
            else [helper.make_node("Relu", ["a"], ["b"])],
            opsets,
        )
        for n in range(61)
    ]
    model = graph_of([helper.make_node("f0", ["x"], ["y"], domain="mine")])
    model.functions.extend(functions)
    with pytest.raises(InputError, match="at most 200000 operators"):
        network_of_onnx(saved(model, tmp_path), None)
    last = graph_of([helper.make_node("f60", ["x"], ["y"], domain="mine")])
    last.functions.extend(functions)
    (layer, *_) = network_of_onnx(saved(last, tmp_path), None).layers
    assert layer.kind == "activation"
    again = helper.make_function(
        "mine", "f", ["a"], ["b"], [helper.make_node("f", ["a"], ["b"], domain="mine")], opsets
    )
    model = graph_of([helper.make_node("f", ["x"], ["y"], domain="mine")])
    model.functions.append(again)
    with pytest.raises(InputError, match="must not call itself"):
        network_of_onnx(saved(model, tmp_path), None)


def test_files_that_are_none_are_refused(files, tmp_path):
    path, _ = files[plain.Mobile]
    whole = path.read_bytes()
    bad = {
        "cut short": whole[: len(whole) // 2],
        "text": b"name = 'net'\n" * 40,
        "empty": b"",
        "no text": whole.replace(b"stem", b"st\xffm"),
        # a graph that claims 2 GB, of which nothing is there
        "claim": b"\x3a\xff\xff\xff\xff\x07" + b"\x00" * 8,
        "nested": b"\x3a\x7f" * 200,
    }
    for name, content in bad.items():
        file = tmp_path / f"{name}.onnx"
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"must be (an ONNX model|text in UTF-8)"):
            network_of_onnx(file, None)
    with pytest.raises(InputError, match="must be readable but is not"):
        network_of_onnx(tmp_path / "missing.onnx", None)
    with pytest.raises(InputError, match="must be readable but is not"):
        network_of_onnx(tmp_path, None)


def test_without_onnx_one_sentence_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['onnx'] = None\n"
        "from planner.cli import main\n"
        "sys.argv = ['planner', 'optimize', 'model.onnx', '--gpus', '4']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "pip install 'planner[onnx]'" in done.stderr
    assert "Traceback" not in done.stderr

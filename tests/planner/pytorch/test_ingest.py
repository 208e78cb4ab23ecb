"""Modules of PyTorch become networks with the weights and products that PyTorch itself counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_extra
from click.testing import CliRunner

torch_extra.require("torch")

import plain_models as plain
import torch
from questions import SPLITS_ALONE
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import planner
from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from planner.cli.command import planner_command
from planner.models import build
from planner.torch.source import network_of_source

HERE = Path(__file__).parent
CASES = {
    plain.VGG: (2, 3, 32, 32),
    plain.UNet3D: (2, 1, 16, 16, 16),
    plain.Mobile: (2, 3, 32, 32),
    plain.Dense: (2, 3, 16, 16),
    plain.Signal: (2, 12, 64),
    plain.Regression: (4, 20),
    plain.Encoder: (2, 16),
    plain.WrittenOut: (2, 16),
    plain.Recurrent: (2, 16, 32),
    plain.Odd: (2, 16, 32),
}
OPAQUE = (plain.Recurrent, plain.Odd)


def inputs(kind: type) -> torch.Tensor:
    shape = CASES[kind]
    return plain.tokens(*shape) if kind in (plain.Encoder, plain.WrittenOut) else torch.empty(shape)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_weights_and_products_are_those_that_pytorch_counts(kind):
    network = network_of_source(kind, inputs(kind))
    batch = CASES[kind][0]
    graph = build_graph(network, batch)
    module = kind().train()
    assert graph.parameters == sum(weight.numel() for weight in module.parameters())
    opaque = [layer.name for layer in graph.compute_layers if layer.kind == "opaque"]
    assert bool(opaque) == (kind in OPAQUE)
    assert len({layer.name for layer in graph.compute_layers}) == len(graph.compute_layers)
    if kind in OPAQUE:
        return
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        kind().train()(inputs(kind).to("meta"))
    assert 2 * graph.macs == counter.get_total_flops()


@pytest.mark.slow
def test_a_resnet_written_out_is_the_built_in_one():
    network = network_of_source(plain.build, (8, 3, 224, 224))
    graph, known = build_graph(network, 1), build_graph(build("resnet50"), 1)
    assert round(graph.macs / 1e9, 3) == 4.089
    pairs = list(zip(graph.compute_layers, known.compute_layers, strict=True))
    assert [a.signature for a, _ in pairs] == [b.signature for _, b in pairs]
    edges = {(e.source, e.target, e.slot) for e in graph.edges}
    called = {b.name: a.name for a, b in pairs} | {"input": "input"}
    assert edges == {(called[e.source], called[e.target], e.slot) for e in known.edges}
    # and so is its plan, where layers are split in different ways
    question = {
        "gpus": 8,
        "cluster": "lassen",
        "global_batch_size": 4,
        "cap": 16,
        "forbid": SPLITS_ALONE,
    }
    plan = planner.optimize(plain.ResNet50(), inputs=(8, 3, 224, 224), **question)
    usual = planner.optimize("resnet50", **question)
    assert plan.step_time == usual.step_time
    rows = zip(plan.layers.values(), usual.layers.values(), strict=True)
    assert all(a.distribution == b.distribution for a, b in rows)
    assert len({str(layer.distribution) for layer in plan.layers.values()}) > 1


def test_names_are_those_of_the_modules():
    names = [row.name for row in network_of_source(plain.Encoder, inputs(plain.Encoder)).layers]
    assert names[0] == "embedding"
    assert "encoder.layers.1.linear1" in names
    assert names[-1] == "loss"


def test_opaque_layers_are_split_by_sample_only_and_listed_with_their_share():
    plan = planner.optimize(
        plain.Recurrent(), inputs=(2, 16, 32), gpus=4, cluster="lassen", global_batch_size=64
    )
    layer = plan.layers["lstm"]
    assert layer.kind == "opaque"
    assert set(layer.degrees) <= {"sample"}
    (said,) = [text for text in plan.fallbacks if "opaque" in text]
    spent = {name: row.forward_s + row.backward_s for name, row in plan.layers.items()}
    share = spent["lstm"] / sum(spent.values())
    assert f"lstm {share:.1%}" in said
    assert "costed by the bytes" in said


def test_the_masks_of_attention_are_told():
    rows = network_of_source(plain.WrittenOut, inputs(plain.WrittenOut)).layers
    (attention,) = [row for row in rows if row.kind == "attention"]
    assert attention.options == {"heads": 4, "fused": False, "causal": True}
    assert [row.options.get("share") for row in rows if row.name == "head"] == ["embedding"]


def test_what_runs_twice_is_counted_once():
    network = network_of_source(plain.Shared, (2, 16))
    graph = build_graph(network, 2)
    assert graph.parameters == sum(weight.numel() for weight in plain.Shared().parameters())
    shares = {row.name: row.options.get("share") for row in network.layers}
    assert (shares["step_2"], shares["unread_2"]) == ("step", "unread")
    # without the bias of its owner a weight is another one for the cost models
    assert [row.kind for row in network.layers if row.name == "linear"] == ["opaque"]


def test_parts_of_a_weight_are_counted_where_they_are_used():
    shapes = [(2, 6, 32), (2, 10, 32)]
    network = network_of_source(plain.Crossed, shapes)
    graph = build_graph(network, 2)
    assert graph.parameters == sum(weight.numel() for weight in plain.Crossed().parameters())
    assert "opaque" not in {row.kind for row in network.layers}
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        plain.Crossed()(*(torch.empty(shape) for shape in shapes))
    assert 2 * graph.macs == counter.get_total_flops()


def test_a_weight_of_a_constant_first_state_is_planned():
    network = network_of_source(plain.Cell, (2, 3, 4))
    (first, *again, _) = [row for row in network.layers if row.kind == "linear"]
    assert [row.options.get("share") for row in again] == [first.name] * 2
    build_graph(network, 2)


def test_inputs_of_several_shapes_labels_and_bags_of_words_are_planned():
    network = network_of_source(plain.Towers, [(2, 3, 8, 8), "ids=2,6", "target=2:int64"])
    assert [row.inputs for row in network.layers if row.name == "ids"] == [("input",)]
    assert [row.kind for row in network.layers if row.name == "words"] == ["opaque"]
    assert network.layers[-1].kind == "loss"


def test_modules_are_left_as_they_were():
    module = plain.VGG().eval()
    module.classifier[2].train()
    states = [each.training for each in module.modules()]
    network_of_source(module, (2, 3, 32, 32))
    assert [each.training for each in module.modules()] == states
    assert all(weight.device.type == "cpu" for weight in module.parameters())


def test_one_sample_is_enough_and_the_plan_carries_the_network():
    one, two = (network_of_source(plain.VGG, (n, 3, 32, 32)) for n in (1, 4))
    assert one == two
    plan = planner.evaluate(plain.VGG, inputs=[(1, 3, 32, 32)], gpus=2, global_batch_size=8)
    assert isinstance(plan.carried.network, Network)
    again = planner.Plan.from_json(plan.to_json())
    assert planner.simulate(again).step_time == plan.step_time


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "planner", *words],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_command_imports_from_the_folder_that_it_runs_in():
    question = ("--gpus", "4", "--strategy", "data", "--json")
    done = command("evaluate", "plain_models:build", "--input", "plain_models:sample", *question)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "ResNet50"


@pytest.mark.parametrize(
    ("kind", "shape", "words"),
    [
        (plain.Branches, (4, 8), ("must not depend on values", "if x.sum() > 0:")),
        (plain.Selects, (4, 8), ("depends on the samples", "return x[x > 0] * 2", "'index'")),
        (plain.Chooses, (4, 8), ("chooses among them", "torch.cond(")),
        (plain.Prints, (4, 8), ("RuntimeError: not today", 'raise RuntimeError("not today")')),
        (plain.VGG, (2, 4, 32, 32), ("cannot be traced", "plain_models.py, line")),
        (plain.VGG, (2, 3, 0, 32), ("must be at least 1",)),
        (plain.VGG, (), ("must be given",)),
        (plain.VGG, "8,3;224", ("must be a shape",)),
        (plain.VGG, "8,3,32,32:int99", ("such as int64",)),
        (plain.VGG, "y=8,3,32,32", ("must be an argument of VGG but that takes x",)),
        (plain.VGG, [(2, 3, 32, 32), (3, 3)], ("the first extent of all inputs",)),
        (plain.VGG, (2, 3, 4, 5, 6, 7, 8), ("cannot be traced", "Expected 3D")),
        (plain.broken, (2, 3, 32, 32), ("OSError: no such weights", "plain_models.py, line")),
        (len, (2, 3), ("failed with TypeError",)),
        (dict, (2, 3), ("must be a torch.nn.Module but is of type dict",)),
        ("plain_models:nothing", (2, 3), ("has no 'nothing'",)),
        ("no_such_module:build", (2, 3), ("there is no 'no_such_module'",)),
        ("plain_models.py:build", (2, 3), ("leave .py out: plain_models:build",)),
        ("sys:exit", (2, 3), ("calling 'sys:exit' failed with SystemExit",)),
        (plain.leaves, (2, 3), ("failed with SystemExit", "plain_models.py, line")),
        (plain.own_failure, (2, 3), ("failed with BaseException: of its own kind",)),
        (plain.Leaves, (4, 8), ("cannot be traced", "SystemExit: 0")),
        (plain.Holds, (4, 8), ("failed with RecursionError",)),
        (plain.SeveralLosses, (4, 8), ("a loss must be the last", "or end in one loss alone")),
        (plain.Nothing, (4, 8), ("its output must have values", "[4, 0]")),
        ("plain_models:property_of.network", (4, 8), ("OSError: no such weights",)),
        (plain.VGG, plain.leaves, ("the factory of inputs failed with SystemExit",)),
        (plain.VGG, plain.holds_itself, ("must not hold or make themselves",)),
        (plain.VGG, plain.makes_itself, ("must not hold or make themselves",)),
        (nn.Linear(8, 8), (10**15, 8), ("must be a tensor that PyTorch can make",)),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_sentence(kind, shape, words, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(HERE))
    with pytest.raises(InputError) as error:
        network_of_source(kind, shape)
    text = str(error.value)
    assert all(word in text for word in words), text
    if kind in (plain.Branches, plain.Selects, plain.Chooses, plain.Prints):
        assert "plain_models.py, line" in text
    assert "\n" not in text
    assert capsys.readouterr().err == ""


def test_what_a_module_prints_is_kept_from_standard_output(capsys):
    network_of_source(plain.says_much, (4, 8))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.split() == ["made", "run"]


def test_inputs_of_what_is_no_module_are_refused():
    done = CliRunner().invoke(
        planner_command, ["optimize", "resnet50", "--gpus", "4", "--input", "8,3,224,224"]
    )
    assert done.exit_code == 2
    assert "must be given for a PyTorch module or an ONNX file" in str(done.exception) + (
        done.output
    )


def test_without_pytorch_one_sentence_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from planner.cli import main\n"
        "sys.argv = ['planner', 'optimize', 'a.b:c', '--input', '8,3', '--gpus', '4']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "pip install 'planner[torch]'" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_a_plan_file_never_runs_code(tmp_path):
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\nbuild = None\n")
    plan = planner.evaluate("alexnet", gpus=2, cluster="lassen")
    document = {**json.loads(plan.to_json()), "model": "evil:build"}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    for words in (("simulate", "plan.json"), ("report", "plan.json")):
        subprocess.run(
            [sys.executable, "-m", "planner", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
            capture_output=True,
        )
    assert not (tmp_path / "ran").exists()

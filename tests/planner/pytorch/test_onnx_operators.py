"""What operators of ONNX files become: the layers of the modules that they were made from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch_extra

torch_extra.require("torch", "onnx", "onnxscript")

import onnx
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper

from costmodels.graph import Network, build_graph
from planner.cli.command import planner_command
from planner.models.onnx.network import network_of_onnx
from planner.models.traced.nodes import TracedNode
from planner.torch.source import network_of_source


class CrossAttention(torch.nn.Module):
    shapes = ((4, 16, 32), (4, 9, 32))

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = torch.nn.Linear(32, 5)

    def forward(self, x, memory):
        return self.head(self.attention(x, memory, memory, need_weights=False)[0])


class Recurrent(torch.nn.Module):
    """One linear layer and one norm, several times."""

    shapes = ((4, 8, 64),)

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.norm = torch.nn.LayerNorm(64)
        # not that of the other, which begins alike
        self.last = torch.nn.LayerNorm(64)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x):
        for _ in range(3):
            x = self.norm(torch.relu(self.linear(x)))
        return self.head(self.last(x))


class NormedSlopes(torch.nn.Module):
    """Slopes of channels behind a norm of groups of them, and one that all share."""

    shapes = ((4, 3, 8, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 4, 1)
        self.norm, self.slopes, self.slope = (
            torch.nn.GroupNorm(2, 8),
            torch.nn.PReLU(8),
            torch.nn.PReLU(),
        )

    def forward(self, x):
        x = self.slopes(self.norm(self.first(x)))
        return self.slope(self.second(x)).mean((2, 3))


class GroupNorms(torch.nn.Module):
    """Norms of groups: with weights, without, and one that is used again."""

    shapes = ((4, 3, 8, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 4, 1)
        self.norm, self.other = torch.nn.GroupNorm(2, 8), torch.nn.GroupNorm(8, 8)
        self.bare = torch.nn.GroupNorm(4, 8, affine=False)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.last(self.other(self.bare(self.norm(x)))).mean((2, 3))


class NormedParts(torch.nn.Module):
    """Channels that are put into groups for a norm with weights of its own, and what is added."""

    shapes = ((4, 8, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.InstanceNorm1d(2, affine=True)
        self.weight, self.more = (torch.nn.Parameter(torch.ones(8, 1)) for _ in range(2))

    def forward(self, x):
        x = self.norm(x.reshape(4, 2, 32)).reshape(4, 8, 8)
        return (x * self.weight + self.more).mean(2)


def both(module: torch.nn.Module, folder: Path, **more: bool) -> tuple[Network, Network]:
    """The networks of the file of a module, and of the module itself."""
    samples = tuple(torch.zeros(shape) for shape in module.shapes)
    path = folder / "model.onnx"
    options = {"dynamo": True, "optimize": False, "verbose": False, **more}
    if not options["dynamo"]:
        options |= {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    torch.onnx.export(module.train(), samples, path, **options)
    return network_of_onnx(path, None), network_of_source(module, samples)


def kinds(network: Network) -> list[str]:
    return [row.kind for row in network.layers]


def counts(network: Network) -> tuple[int, int]:
    graph = build_graph(network, 1)
    return graph.parameters, graph.macs


@pytest.mark.slow
def test_a_weight_that_is_cut_for_two_products_is_that_of_the_module(tmp_path):
    file, module = both(CrossAttention(), tmp_path)
    assert counts(file) == counts(module)
    assert counts(file)[0] == sum(one.numel() for one in CrossAttention().parameters())
    assert kinds(file) == kinds(module)


@pytest.mark.parametrize("options", [{}, {"dynamo": False}], ids=["dynamo", "script"])
def test_layers_that_are_used_again_count_their_weights_once(options, tmp_path):
    file, module = both(Recurrent(), tmp_path, **options)
    assert counts(file) == counts(module)
    assert counts(file) == (
        sum(one.numel() for one in Recurrent().parameters()),
        8 * (3 * 64 * 64 + 64 * 10),
    )
    assert kinds(file) == kinds(module)


def test_vectors_that_an_exporter_merged_stay_those_of_their_modules(tmp_path):
    file, _ = both(Recurrent(), tmp_path, optimize=True)
    norms = [row.options for row in file.layers if row.kind == "layer_norm"]
    assert norms == [{}, {"weights": 0}, {"weights": 0}, {}]


@pytest.mark.parametrize(
    "options", [{}, {"optimize": True}, {"dynamo": False}], ids=["dynamo", "optimised", "script"]
)
def test_norms_of_groups_are_one_layer_each(options, tmp_path):
    """What exporters write them out in were layers of their own, with copies around them."""
    file, module = both(GroupNorms(), tmp_path, **options)
    assert kinds(file) == kinds(module)
    found = [row.options for row in file.layers]
    if "optimize" in options:  # which keeps ones of all norms once, whether they are trained or not
        assert [one for one in found if one == {"weights": 0}] == [{"weights": 0}]
        return
    assert counts(file) == counts(module)
    assert found == [row.options for row in module.layers]


@pytest.mark.slow
def test_norms_with_weights_of_their_own_groups_stay_as_they_are(tmp_path):
    file, module = both(NormedParts(), tmp_path)
    assert counts(file)[0] == counts(module)[0] == 2 * 2 + 2 * 8
    assert kinds(file) == kinds(module)


def test_slopes_behind_a_norm_are_weights(tmp_path):
    file, module = both(NormedSlopes(), tmp_path)
    assert counts(file) == counts(module)
    assert counts(file)[0] == sum(one.numel() for one in NormedSlopes().parameters())


def test_slopes_of_features_are_weights(tmp_path):
    nodes = [helper.make_node("PRelu", ["x", "w"], ["y"])]
    path = written(nodes, {"w": (8,)}, (2, 5, 8), tmp_path)
    (layer, _) = network_of_onnx(path, None).layers
    assert (layer.kind, layer.options["weights"]) == ("pointwise", 1)


def written(
    nodes: list, weights: dict[str, tuple], x: tuple, folder: Path, y: tuple | None = None
) -> Path:
    """A file of operators that read "x" and weights, whose numbers are not there, and write "y"."""
    rows = [TensorProto(name=n, dims=s, data_type=TensorProto.FLOAT) for n, s in weights.items()]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", x), ("y", y))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializer=rows)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def convolved(folder: Path, x: tuple, kernel: tuple, **of: object) -> Network:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="/stem/Conv", **of)]
    return network_of_onnx(written(nodes, {"w": kernel}, x, folder), None)


def test_padding_that_is_not_alike_at_both_ends_keeps_products(tmp_path):
    image, kernel = (2, 3, 224, 224), (64, 3, 7, 7)
    alike = convolved(tmp_path, image, kernel, strides=[2, 2], pads=[3, 3, 3, 3])
    more = convolved(tmp_path, image, kernel, strides=[2, 2], pads=[2, 2, 3, 3])
    assert counts(more) == counts(alike)
    assert kinds(more) == ["conv", "loss"]
    automatic = convolved(tmp_path, image, kernel, strides=[2, 2], auto_pad="SAME_UPPER")
    assert more.layers == automatic.layers
    # more at the start, and another number for each dim
    first = convolved(tmp_path, image, kernel, strides=[2, 2], pads=[3, 5, 2, 1])
    zeros, conv, _ = first.layers
    assert counts(first) == counts(alike)
    assert (zeros.kind, zeros.name, zeros.options["axes"]) == (
        *("opaque", "pad"),
        {"channel": 3, "height": 225, "width": 228},
    )
    assert (conv.name, conv.options["padding"]) == ("stem", (2, 1))
    # what only reads earlier positions
    causal = convolved(tmp_path, (2, 4, 32), (8, 4, 3), dilations=[4], pads=[8, 0])
    assert counts(causal) == (96, 96 * 32)


def pooled(folder: Path, x: tuple, operator: str = "MaxPool", **of: object) -> Network:
    nodes = [helper.make_node(operator, ["x"], ["y"], name="/pool/Pool", **of)]
    return network_of_onnx(written(nodes, {}, x, folder), None)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_padding_that_is_not_alike_at_both_ends_keeps_pools(operator, tmp_path):
    """They were opaque layers, which are split by sample alone."""
    image, usual = (2, 8, 224, 224), {"kernel_shape": [3, 3], "strides": [2, 2]}
    last = pooled(tmp_path, image, operator, pads=[0, 0, 1, 1], **usual)
    first = pooled(tmp_path, image, operator, pads=[1, 1, 0, 0], **usual)
    for found, automatic, padding in ((last, "UPPER", 0), (first, "LOWER", 1)):
        assert kinds(found) == ["pool", "loss"]
        layer = build_graph(found, 2).layers["pool"]
        assert [axis.extent for axis in layer.output.axes] == [2, 8, 112, 112]
        assert {window.padding for window in layer.windows.values()} == {padding}
        same = pooled(tmp_path, image, operator, auto_pad=f"SAME_{automatic}", **usual)
        assert same.layers == found.layers
    # so much more at one end that windows lie there alone
    far = pooled(tmp_path, image, operator, kernel_shape=[2, 2], pads=[0, 1, 2, 1])
    zeros, pool, _ = far.layers
    assert (zeros.kind, zeros.name, zeros.options["axes"]) == (
        *("opaque", "pad"),
        {"channel": 8, "height": 226, "width": 224},
    )
    assert (pool.name, pool.options["padding"]) == ("pool", (0, 1))


ILL_FORMED = {
    "channels": (
        ("Conv", {}, (2, 4, 8, 8), (8, 3, 3, 3), None),
        "the weight of 'y' (Conv) of FILE must read 4 channels as its input has but is 3 (of the "
        "shape [8, 3, 3, 3] with 1 group); export it again, or correct --input",
    ),
    "groups": (
        ("Conv", {"group": 3}, (2, 9, 8, 8), (8, 3, 3, 3), None),
        "the groups of 'y' (Conv) of FILE must divide its 9 channels and its 8 filters but is 3",
    ),
    "transposed": (
        ("ConvTranspose", {}, (2, 4, 8, 8), (3, 8, 3, 3), None),
        "the weight of 'y' (ConvTranspose) of FILE must read 4 channels",
    ),
    "output": (
        ("Conv", {}, (2, 3, 8, 8), (8, 3, 3, 3), (2, 8, 9, 9)),
        "the output 'y' of FILE must have the extents [2, 8, 9, 9] that the file says but is "
        "[2, 8, 6, 6]; export it again",
    ),
    "operator": (
        ("Frob", {}, (2, 3), (8, 3), (2, 3)),
        "every operator must be one of version 20 of ONNX (opset_import) or of another set "
        "(domain) but 'y' (Frob) is neither; export it again",
    ),
}


@pytest.mark.parametrize("case", ILL_FORMED)
def test_what_no_such_file_may_hold_is_refused(case, tmp_path):
    (operator, of, x, kernel, y), words = ILL_FORMED[case]
    node = helper.make_node(operator, ["x", "w"], ["y"], **of)
    path = written([node], {"w": kernel}, x, tmp_path, y)
    done = CliRunner().invoke(planner_command, ["optimize", str(path), "--gpus", "4"])
    assert done.exit_code == 2
    assert words.replace("FILE", str(path)) in done.stderr
    assert done.stderr.count("\n") == 1


def test_outputs_of_files_with_open_inputs_may_be_those_of_a_sample(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"], domain="ai.onnx")
    path = written([node], {"w": (8, 3, 3, 3)}, ("n", 3, 8, 8), tmp_path, (1, 8, 6, 6))
    assert kinds(network_of_onnx(path, "4,3,8,8")) == ["conv", "loss"]


def test_operators_are_shown_without_what_they_read():
    """Each reads the one before it twice: written out, these would be 2**60 texts."""
    node = TracedNode(name="x")
    for number in range(60):
        node = TracedNode(name=f"n{number}", operator="add", arguments={"0": node, "1": node})
    assert repr(node) == "<add n59>"

"""What operators of ONNX files become: the layers of the modules that they were made from."""

from __future__ import annotations

from pathlib import Path

import torch_extra

torch_extra.require("torch", "onnx", "onnxscript")

import torch

from costmodels.graph import Network, build_graph
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


def both(module: torch.nn.Module, folder: Path, **more: bool) -> tuple[Network, Network]:
    """The networks of the file of a module, and of the module itself."""
    samples = tuple(torch.zeros(shape) for shape in module.shapes)
    path = folder / "model.onnx"
    options = {"dynamo": True, "optimize": False, "verbose": False, **more}
    torch.onnx.export(module.train(), samples, path, **options)
    return network_of_onnx(path, None), network_of_source(module, samples)


def counts(network: Network) -> tuple[int, int]:
    graph = build_graph(network, 1)
    return graph.parameters, graph.macs


def test_a_weight_that_is_cut_for_two_products_is_that_of_the_module(tmp_path):
    file, module = both(CrossAttention(), tmp_path)
    assert counts(file) == counts(module)
    assert counts(file)[0] == sum(one.numel() for one in CrossAttention().parameters())
    assert [row.kind for row in file.layers] == [row.kind for row in module.layers]


def test_operators_are_shown_without_what_they_read():
    """Each reads the one before it twice: written out, these would be 2**60 texts."""
    node = TracedNode(name="x")
    for number in range(60):
        node = TracedNode(name=f"n{number}", operator="add", arguments={"0": node, "1": node})
    assert repr(node) == "<add n59>"

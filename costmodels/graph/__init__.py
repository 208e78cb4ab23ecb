"""Networks as graphs of layers, each an iteration space."""

from costmodels.graph.fusion import FUSED_OPERATIONS, FUSIONS, apart, fused
from costmodels.graph.layer import (
    DIMS,
    SPATIAL_DIMS,
    Axis,
    Layer,
    Product,
    Statistics,
    Tensor,
    Window,
)
from costmodels.graph.network import (
    Edge,
    Graph,
    LayerSpec,
    Network,
    build_graph,
)

__all__ = [
    "DIMS",
    "FUSED_OPERATIONS",
    "FUSIONS",
    "SPATIAL_DIMS",
    "Axis",
    "Edge",
    "Graph",
    "Layer",
    "LayerSpec",
    "Network",
    "Product",
    "Statistics",
    "Tensor",
    "Window",
    "apart",
    "build_graph",
    "fused",
]

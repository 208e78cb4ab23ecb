"""Traced networks: operators of modules and of ONNX files as layers."""

from __future__ import annotations

from planner.models.traced.network import network_of_nodes, translated_nodes
from planner.models.traced.nodes import TracedNode

__all__ = ["TracedNode", "network_of_nodes", "translated_nodes"]

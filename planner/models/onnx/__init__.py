"""ONNX files as networks: nothing of them is run, and their weights are not read."""

from __future__ import annotations

from planner.models.onnx.network import is_onnx_file, network_of_onnx

__all__ = ["is_onnx_file", "network_of_onnx"]

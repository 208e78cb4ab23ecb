"""Time of a layer's local computation: measured tables, fitted surfaces and the roofline."""

from __future__ import annotations

from costmodels.compute.attention import ATTENTION_KERNELS
from costmodels.compute.model import ComputeModel, TimeSource
from costmodels.compute.slowest import SlowestCompute
from costmodels.compute.table import CostTable
from costmodels.compute.work import MatrixProduct, Work

__all__ = [
    "ATTENTION_KERNELS",
    "ComputeModel",
    "CostTable",
    "MatrixProduct",
    "SlowestCompute",
    "TimeSource",
    "Work",
]

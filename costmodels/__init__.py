"""What a layer costs on a machine under a distribution, in seconds and bytes.

The names below are what one may use; each is loaded when it is first asked for, so that importing
one part of the package loads no other.
"""

from __future__ import annotations

import importlib

# By module, what it offers. Submodules offer more: see the `__all__` of each.
_OFFERS = {
    "costmodels.errors": ("InputError",),
    "costmodels.notes": ("Note",),
    "costmodels.graph": ("Graph", "Layer", "Network", "build_graph"),
    "costmodels.cluster": ("Cluster", "Device", "Level", "load_cluster", "load_device"),
    "costmodels.communication.topology": ("Topology",),
    "costmodels.compute": ("ComputeModel", "CostTable", "Work"),
    "costmodels.distribution": ("Candidates", "Distribution", "enumerate_candidates"),
    "costmodels.step.training": ("Training",),
    "costmodels.step.machine": ("Machine",),
    "costmodels.step.timeline": ("LayerStep", "StepTime", "overlapped_step"),
    "costmodels.step.memory": ("LayerMemory", "PeakMemory", "liveness"),
    "costmodels.layers.layer_cost": ("LayerCosts", "layer_costs"),
    "costmodels.strategy": ("Description", "Schedule", "Stage", "Strategy", "build_strategy"),
    "costmodels.simulation": (
        "Behaviour",
        "Compiler",
        "Job",
        "Runtime",
        "SimulatedStep",
        "load_runtime",
        "run_graph",
    ),
    "costmodels.closed_form": ("ClosedForm", "closed_form_step"),
    "costmodels.input_pipeline": ("InputTime", "Loader", "input_time", "load_loader"),
    "costmodels.throughput": ("Predicted", "SimulatedThroughput", "WorkerClass", "WorkerProfile"),
}
_MODULE_OF = {name: module for module, names in _OFFERS.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    """A name of `__all__`, from where it is defined."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'costmodels' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return list(__all__)

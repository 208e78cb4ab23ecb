"""Simulation of a training step: what really happens, in which order, and what waits for what."""

from costmodels.simulation.compiler import Compiler, Job
from costmodels.simulation.execution import ExecutionGraph, Fusion, Queue, Role, Task
from costmodels.simulation.executor import Behaviour, Timeline, execute
from costmodels.simulation.measure import RoleUse, Simulated, measure, simulate
from costmodels.simulation.messages import LINK_MODELS
from costmodels.simulation.runtimes import Runtime, load_runtime, runtimes

__all__ = [
    "LINK_MODELS",
    "Behaviour",
    "Compiler",
    "ExecutionGraph",
    "Fusion",
    "Job",
    "Queue",
    "Role",
    "RoleUse",
    "Runtime",
    "Simulated",
    "Task",
    "Timeline",
    "execute",
    "load_runtime",
    "measure",
    "runtimes",
    "simulate",
]

"""Simulation of a training step: what happens, in which order, and what waits for what."""

from costmodels.simulation.compiler import Compiler
from costmodels.simulation.execution import ExecutionGraph, Fusion, Queue, Role, Task
from costmodels.simulation.executor import Behaviour, TaskTimes, execute
from costmodels.simulation.job import Job
from costmodels.simulation.measure import RoleUse, SimulatedStep, measure_step, run_graph
from costmodels.simulation.messages import LINK_MODELS
from costmodels.simulation.repeated import micro_batches_run, run_job
from costmodels.simulation.runtime_files import built_in_runtimes, load_runtime
from costmodels.simulation.runtimes import Runtime
from costmodels.simulation.uneven import UnevenCompiler

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
    "SimulatedStep",
    "Task",
    "TaskTimes",
    "UnevenCompiler",
    "built_in_runtimes",
    "execute",
    "load_runtime",
    "measure_step",
    "micro_batches_run",
    "run_graph",
    "run_job",
]

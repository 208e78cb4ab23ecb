"""The functions that programs call; `planner.request.inputs` describes their arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING

from costmodels.cluster import Cluster
from costmodels.graph import Network
from costmodels.simulation import Runtime
from planner.errors import InfeasibleError
from planner.joint.fronts import pareto_request
from planner.joint.requests import optimize_request, scale_request
from planner.plan import Plan
from planner.planning.evaluate import evaluate_request
from planner.request.documented import documented
from planner.request.parts import Degrees, Loading
from planner.request.request import Source, StrategySource, make_request
from planner.simulation.result import Simulation
from planner.simulation.run import simulate_request

if TYPE_CHECKING:
    from planner.distributed_sgd.result import Throughput


@documented("optimize")
def optimize(
    model: str | os.PathLike[str] | Network,
    *,
    gpus: int,
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    inputs: object = (),
    input_size: int | None = None,
    vocab_padding: int | None = None,
    expert_capacity: float | None = None,
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
    execution: str | None = None,
    launch_time: str | float | None = None,
    memory_model: str | None = None,
    halo_overlap: bool | None = None,
    always_cut: bool | None = None,
    gradient_overlap: bool | None = None,
    winograd: bool | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
    search: str = "auto",
    seed: int = 0,
    time_limit: float | None = None,
    cap: int | None = None,
    num_best: int = 4,
    tune_trials: int = 0,
    least_memory: bool = False,
    keep: str | None = None,
    forbid: str | None = None,
    framework: str | None = None,
    runtime: str | Runtime | None = None,
    dump_problem: str | os.PathLike[str] | None = None,
) -> Plan:
    """Find the fastest plan that fits in memory.

    Returns
    -------
    Plan
        The plan: how each layer is split, what a step costs and why, and how far it may be from
        the best.

    Raises
    ------
    InputError
        When an input cannot be used.
    InfeasibleError
        When no plan that fits was found; it says whether there is none.
    """
    return optimize_request(make_request("optimize", locals()))


@documented("pareto")
def pareto(
    model: str | os.PathLike[str] | Network,
    *,
    gpus: int | str | Sequence[int],
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    inputs: object = (),
    input_size: int | None = None,
    vocab_padding: int | None = None,
    expert_capacity: float | None = None,
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
    execution: str | None = None,
    launch_time: str | float | None = None,
    memory_model: str | None = None,
    halo_overlap: bool | None = None,
    always_cut: bool | None = None,
    gradient_overlap: bool | None = None,
    winograd: bool | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
    against: str = "memory",
    time_limit: float | None = None,
    keep: str | None = None,
    forbid: str | None = None,
    runtime: str | Runtime | None = None,
) -> list[Plan]:
    """Find plans of which none is both faster and smaller than another, the fastest first.

    Smaller is of less memory, or of fewer GPUs.

    Returns
    -------
    list of Plan
        Each needs less memory, or fewer GPUs, than the one before.

    Raises
    ------
    InputError
        When an input cannot be used.
    InfeasibleError
        When no plan that fits was found.
    """
    values = {**locals(), "gpus": [gpus] if isinstance(gpus, Integral) else gpus}
    return pareto_request(make_request("pareto", values))


@documented("evaluate")
def evaluate(
    model: str | os.PathLike[str] | Network,
    *,
    gpus: int,
    strategy: str | os.PathLike[str] | Plan = "data",
    degree: int | None = None,
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    inputs: object = (),
    input_size: int | None = None,
    vocab_padding: int | None = None,
    expert_capacity: float | None = None,
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
    execution: str | None = None,
    launch_time: str | float | None = None,
    memory_model: str | None = None,
    halo_overlap: bool | None = None,
    always_cut: bool | None = None,
    gradient_overlap: bool | None = None,
    winograd: bool | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
) -> Plan:
    """Cost one given strategy.

    With a plan, what is not given is as the plan was made.

    Returns
    -------
    Plan
        The strategy as a plan, whether or not it fits in memory.

    Raises
    ------
    InputError
        When an input cannot be used, or the strategy cannot be used with it.
    """
    return evaluate_request(make_request("evaluate", locals()))


@documented("scale")
def scale(
    model: str | os.PathLike[str] | Network,
    *,
    gpus: str | Sequence[int],
    strong: bool = False,
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    inputs: object = (),
    input_size: int | None = None,
    vocab_padding: int | None = None,
    expert_capacity: float | None = None,
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
    execution: str | None = None,
    launch_time: str | float | None = None,
    memory_model: str | None = None,
    halo_overlap: bool | None = None,
    always_cut: bool | None = None,
    gradient_overlap: bool | None = None,
    winograd: bool | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
    search: str = "auto",
    seed: int = 0,
    time_limit: float | None = None,
    cap: int | None = None,
    num_best: int = 4,
    tune_trials: int = 0,
    runtime: str | Runtime | None = None,
) -> Iterator[Plan | InfeasibleError]:
    """Find the best plan for each number of GPUs, one after the other.

    Returns
    -------
    Iterator
        For each number of GPUs the plan, or why there is none; each is searched for when it is
        asked for. After an interrupt the best of that search is the last.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    return scale_request(make_request("scale", locals()))


@documented("simulate")
def simulate(
    source: Source,
    *,
    gpus: int | None = None,
    strategy: StrategySource | None = None,
    degree: int | None = None,
    degrees: Degrees | None = None,
    dp: int | None = None,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    sequence_parallel: bool = False,
    uneven_heads: bool = False,
    micro_batches: int | None = None,
    micro_batch_size: int | None = None,
    schedule: str | None = None,
    chunks: int = 1,
    stage_blocks: str | Sequence[int] = "equal",
    max_in_flight: int | None = None,
    recompute: str | int | bool | Sequence[str | int] = "none",
    zero: int | None = None,
    fsdp: bool = False,
    shard_size: int | None = None,
    offload: str | Sequence[str] = (),
    cp_kind: str = "ring",
    axes: str | Sequence[str] = ("tp", "cp", "ep", "dp", "pp"),
    runtime: str | Runtime | None = None,
    servers: int | None = None,
    model: str = "simulate",
    overlap_factor: float | None = None,
    variation: float | None = None,
    congestion: float = 1.0,
    input: Loading | None = None,
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    inputs: object = (),
    input_size: int | None = None,
    vocab_padding: int | None = None,
    expert_capacity: float | None = None,
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
    execution: str | None = None,
    launch_time: str | float | None = None,
    memory_model: str | None = None,
    halo_overlap: bool | None = None,
    always_cut: bool | None = None,
    gradient_overlap: bool | None = None,
    winograd: bool | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
) -> Simulation:
    """Simulate a training step.

    What a plan or file says of the step holds unless an argument says otherwise.

    Returns
    -------
    Simulation
        The step: its time, peak memory, and what every device does.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    return simulate_request(make_request("simulate", locals()))


@documented("throughput")
def throughput(
    model: str | os.PathLike[str] | Network,
    *,
    workers: str | Sequence[int] | None = None,
    device: str = "v100",
    bandwidth: str | float = "10 Gbps",
    architecture: str = "ps",
    mode: str = "sync",
    models: str = "both",
    batch: int = 32,
    precision: str = "fp32",
    optimizer: str = "sgd",
    input_size: int | None = None,
    overlap: bool = True,
    flow_cap: str | float | None = None,
    gpus_per_host: int = 1,
    host: str | None = None,
    servers: int = 1,
    update_time: str | float | None = None,
    rule: str = "auto",
    utilisation_threshold: float = 0.6,
    steps: int | None = None,
    variation: float = 0.02,
    seed: int = 0,
    execution: str | None = None,
    launch_time: str | float | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
) -> Throughput:
    """Predict the throughput of distributed SGD for each number of workers.

    The models are those of Li et al. 2022: a closed queueing network, and a simulation of the
    transfers and computation of every layer.

    Returns
    -------
    Throughput
        What the models predict for each number of workers, and where throughput saturates.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    request = make_request("throughput", locals())
    from planner.distributed_sgd.predict import predict_throughput

    return predict_throughput(request)

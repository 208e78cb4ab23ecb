"""The functions that programs call; `planner.request.inputs` describes their arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodels.cluster import Cluster
from costmodels.graph import Network
from costmodels.simulation import Runtime
from planner.errors import InfeasibleError
from planner.plan import Plan
from planner.planning.answer import Answers
from planner.planning.evaluate import evaluate_request
from planner.planning.optimize import plan_for
from planner.planning.options import SearchOptions, Watch
from planner.request.documented import documented
from planner.request.inputs.question import BUCKET_BYTES, GLOBAL_BATCH_SIZE
from planner.request.parts import Degrees, Loading
from planner.request.request import Request, Source, StrategySource, make_request
from planner.request.setting import Setting, find_cluster, find_network, gpu_counts, resolve
from planner.simulation.result import Simulation
from planner.simulation.run import simulate_request
from search.problem.deadline import Deadline

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
    recompute: str | int | bool = "none",
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


def optimize_request(
    request: Request, watch: Watch | None = None, *, spent: float = 0, known: Answers | None = None
) -> Plan:
    """Answer a request for the fastest plan; what `optimize` does.

    Parameters
    ----------
    request
        The question.
    watch
        Told the phase, and the best step and the bound so far. [s]
    spent, known
        What has passed of the time limit already [s], and answers for fewer GPUs, to add this to.
    """
    deadline = Deadline(request.time_limit).earlier(spent)
    given = request.bucket_bytes
    options = SearchOptions(
        search=request.search,
        seed=request.seed,
        time_limit=request.time_limit,
        cap=request.cap,
        num_best=request.num_best,
        tune_trials=request.tune_trials,
        bucket_bytes=None if given is None else BUCKET_BYTES.quantity(given),
        least_memory=request.least_memory,
        all_reduce=request.all_reduce,
        watch=watch,
        dump_problem=request.dump_problem,
    )
    return plan_for(resolve(request), options, deadline, known)


def scale_request(request: Request, watch: Watch | None = None) -> Iterator[Plan | InfeasibleError]:
    """Answer a request for the best plan at each number of GPUs; what `scale` does."""
    cluster = find_cluster(request.cluster)
    counts = gpu_counts(request, cluster)
    if request.cluster is not None:
        request = replace(request, cluster=cluster)
    # files are read once, and not for each number of GPUs
    request = replace(request, source=find_network(request), counts=counts)
    setting = resolve(replace(request, gpus=counts[0]))
    return _plans_of_sizes(request, counts, setting, watch)


def _plans_of_sizes(
    request: Request, counts: Sequence[int], first: Setting, watch: Watch | None
) -> Iterator[Plan | InfeasibleError]:
    known: Answers = {}
    for count in counts:
        size = first.batch if request.strong else max(first.batch * count // first.gpus, 1)
        sized = replace(request, gpus=count, global_batch_size=size)
        try:
            answer: Plan | InfeasibleError = optimize_request(sized, watch, known=known)
        except InfeasibleError as error:
            answer = error
        if request.global_batch_size is None and isinstance(answer, Plan):
            chosen = GLOBAL_BATCH_SIZE.chose(batch=size, per_gpu=size / count)
            answer = replace(answer, defaults=(*answer.defaults, chosen))
        yield answer
        if was_interrupted(answer):
            return


def was_interrupted(answer: Plan | InfeasibleError) -> bool:
    """Whether an interrupt ended the search for an answer, so that no other is wanted."""
    stopped = answer.stopped_by if isinstance(answer, InfeasibleError) else answer.search.stopped_by
    return stopped == "interrupt"

"""The functions that programs call: optimize, evaluate, scale, simulate, throughput.

Each makes a `Request` of its arguments and answers it; the command line makes its own `Request`
and calls `optimize_request` and the like. `planner.request.inputs` has what there is to say of the
arguments, from where their descriptions are put into the docstrings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from costmodels.cluster import Cluster
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.simulation import Runtime
from costmodels.step.training import Training
from costmodels.strategy import Strategy
from planner.distributed_sgd.predict import predict_throughput
from planner.distributed_sgd.result import Throughput
from planner.errors import InfeasibleError
from planner.output import check_writable
from planner.plan import Plan, Recost, SearchSummary
from planner.planning.assemble import assemble_plan, infeasible_error
from planner.planning.costing import cost
from planner.planning.decide import recost
from planner.planning.find import Found, find
from planner.planning.formulate import Formulation, formulate
from planner.planning.problem_files import write_problem
from planner.planning.tuning import LARGEST_BUCKET, tune_buckets, tune_knobs
from planner.request.documented import documented
from planner.request.inputs.question import BUCKET_BYTES
from planner.request.parts import Degrees, Loading
from planner.request.plans import made_as, plan_distributions
from planner.request.request import Request, Source, StrategySource, make_request
from planner.request.setting import Setting, find_cluster, find_network, resolve
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions
from planner.simulation.result import Simulation
from planner.simulation.run import simulate_request


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
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
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
    full_space: bool = False,
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
        When no plan fits.
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
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
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
    gpus: Sequence[int],
    strong: bool = False,
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    input_size: int | None = None,
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
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
    full_space: bool = False,
) -> Iterator[Plan | InfeasibleError]:
    """Find the best plan for each number of GPUs, one after the other.

    Returns
    -------
    Iterator
        For each number of GPUs the plan, or why there is none; each is searched for when it is
        asked for.

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
    memory: str | float | None = None,
    all_reduce: str | None = None,
    bucket_bytes: str | float | None = None,
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
    return predict_throughput(make_request("throughput", locals()))


def optimize_request(request: Request) -> Plan:
    """Answer a request for the fastest plan; what `optimize` does."""
    setting = resolve(request)
    if request.dump_problem is not None:
        check_writable(request.dump_problem)
    return _plan_for(setting, request)


def evaluate_request(request: Request) -> Plan:
    """Answer a request for the cost of a strategy; what `evaluate` does."""
    strategy = request.strategy
    if isinstance(strategy, Strategy):
        raise InputError(
            "the strategy of an evaluation must be a name or a plan but is a strategy of stages; "
            "simulate it"
        )
    if strategy is not None and not isinstance(strategy, Plan):
        path = os.fspath(strategy)
        if path not in STRATEGIES and (path.endswith(".json") or Path(path).exists()):
            strategy = Plan.load(path)
    if isinstance(strategy, Plan):
        setting = resolve(made_as(strategy, request))
        return _plan_of_strategy(setting, plan_distributions(strategy, setting), "plan file")
    setting = resolve(request)
    name = os.fspath(strategy or "data")
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    rows = strategy_distributions(setting.graph, name, shape, host, request.degree)
    if isinstance(rows, Infeasible):
        raise InputError(
            f"strategy {name} cannot be used for {setting.model.name} on {setting.gpus} GPUs: "
            f"{rows.reason}; choose fewer GPUs, another degree or another strategy"
        )
    return _plan_of_strategy(setting, rows, name)


def scale_request(request: Request) -> Iterator[Plan | InfeasibleError]:
    """Answer a request for the best plan at each number of GPUs; what `scale` does."""
    if request.cluster is not None:
        request = replace(request, cluster=find_cluster(request.cluster))
    # files are read once, and not for each number of GPUs
    request = replace(request, source=find_network(request))
    first = request.counts[0]
    batch = resolve(replace(request, gpus=first)).batch
    for count in request.counts:
        size = batch if request.strong else max(batch * count // first, 1)
        try:
            yield optimize_request(replace(request, gpus=count, global_batch_size=size))
        except InfeasibleError as error:
            yield error


# --- to be moved to planner.planning

# Candidates of all layers that a search sees unless told otherwise: enough for layers to find their
# best splits together, few enough for an answer in about a second.
NUM_CANDIDATES = 12_000
FEWEST_A_LAYER = 64


def default_cap(setting: Setting) -> int:
    """Candidates that a layer of a network may keep by default. [items]"""
    return max(NUM_CANDIDATES // len(setting.graph.compute_layers), FEWEST_A_LAYER)


def prepare(request: Request) -> tuple[Setting, Formulation, list[tuple[int, ...]]]:
    """What `optimize` searches: the inputs, all costs, and the usual strategies as assignments."""
    setting = resolve(request)
    return setting, *_formulate(setting, _baselines(setting), request)


def _baselines(setting: Setting) -> dict[str, Mapping[str, Distribution] | Infeasible]:
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    return {name: strategy_distributions(setting.graph, name, shape, host) for name in STRATEGIES}


def _formulate(
    setting: Setting,
    usual: Mapping[str, Mapping[str, Distribution] | Infeasible],
    request: Request,
) -> tuple[Formulation, list[tuple[int, ...]]]:
    """The formulation, and the usual strategies as assignments of it."""
    usable = [d for d in usual.values() if not isinstance(d, Infeasible)]
    given = request.bucket_bytes
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=usable,
        cap=request.cap or default_cap(setting),
        full=request.full_space,
        bucket_bytes=LARGEST_BUCKET if given is None else BUCKET_BYTES.quantity(given),
    )
    return formulation, [formulation.choices(d) for d in usable]


def _plan_for(setting: Setting, request: Request) -> Plan:
    """The fastest plan of a setting."""
    usual = _baselines(setting)
    cap = request.cap or default_cap(setting)
    limit = request.time_limit
    deadline = None if limit is None else time.monotonic() + limit

    def attempt(training: Training) -> tuple[Formulation, Found]:
        trial = replace(setting, machine=replace(setting.machine, training=training))
        formulation, starts = _formulate(trial, usual, request)
        found = find(
            formulation,
            starts=starts,
            method=request.search,
            num_best=request.num_best,
            seed=request.seed,
            # trials share the time limit
            time_limit=None if deadline is None else max(deadline - time.monotonic(), 0.01),
        )
        return formulation, found

    formulation, found = attempt(setting.machine.training)
    if request.tune_trials:
        formulation, found = tune_knobs(
            attempt,
            (formulation, found),
            max_trials=request.tune_trials,
            seed=request.seed,
            time_limit=limit,
        )
    if found.best is None:
        raise infeasible_error(setting, found)
    training, best = formulation.machine.training, found.best
    simulated: tuple[Recost, ...] = ()
    try:
        if not request.tune_trials and request.bucket_bytes is None:
            training, best = tune_buckets(formulation, best)
        formulation = replace(formulation, machine=replace(formulation.machine, training=training))
        # the first of the ranking is the best, with the buckets that were tuned for it
        ranked = [best, *(costed for costed in found.ranked if costed.choices != best.choices)]
        recosted = recost(formulation, ranked[: request.num_best], training)
        if recosted.best.choices != best.choices:
            best = cost(formulation, recosted.best.choices)
        simulated = recosted.rows
        found.notes[:0] = recosted.notes
    except KeyboardInterrupt:
        found.stopped_by = "interrupt"
    bound = min(found.lower_bound, best.step.total)
    gap = (best.step.total - bound) / best.step.total
    summary = SearchSummary(
        solver=found.solver,
        status="optimal" if gap <= 1e-6 else "feasible",
        lower_bound_s=bound,
        proven_optimal=gap <= 1e-6,
        gap=gap,
        num_sensible=formulation.num_sensible,
        num_candidates=formulation.num_candidates,
        cap=cap,
        num_costed=found.num_costed,
        stopped_by=found.stopped_by,
    )
    notes = list(found.notes)
    if formulation.num_candidates < formulation.num_sensible:
        notes.append(
            f"search space clipped: {formulation.num_candidates} of "
            f"{formulation.num_sensible} candidates searched, at most about {cap} a layer "
            "(--cap); bound and optimality hold for those"
        )
    if found.stopped_by:
        notes.append(f"search stopped early by {found.stopped_by}: best plan so far")
    if request.dump_problem is not None:
        # none was kept where the first was interrupted
        problem = found.problem or formulation.problem()
        write_problem(request.dump_problem, problem, f"{setting.model.name} on {setting.gpus} GPUs")
    plan = assemble_plan(setting, formulation, best, summary, usual, notes)
    return replace(plan, simulated=simulated)


def _plan_of_strategy(
    setting: Setting, distributions: Mapping[str, Distribution], name: str
) -> Plan:
    """A strategy as a plan."""
    usual = _baselines(setting)
    usable = [d for d in usual.values() if not isinstance(d, Infeasible)]
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=[distributions, *usable],
        only_strategies=True,
        cap=10**9,
    )
    costed = cost(formulation, formulation.choices(distributions))
    summary = SearchSummary(
        solver=f"none: {name} was given",
        status="given",
        lower_bound_s=0.0,
        proven_optimal=False,
        gap=1.0,
        num_sensible=len(formulation.layers),
        num_candidates=len(formulation.layers),
        cap=1,
        num_costed=1,
    )
    return assemble_plan(setting, formulation, costed, summary, usual, [])

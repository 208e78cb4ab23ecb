"""The functions that programs call: optimize, evaluate, scale."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.step.training import Training
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
from planner.request.plans import options_of, plan_distributions
from planner.request.setting import Setting, resolve
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions

# Candidates of all layers that a search sees unless told otherwise: enough for layers to find their
# best splits together, few enough for an answer in about a second.
NUM_CANDIDATES = 12_000
FEWEST_A_LAYER = 64


def default_cap(setting: Setting) -> int:
    """Candidates that a layer of a network may keep by default. [items]"""
    return max(NUM_CANDIDATES // len(setting.graph.compute_layers), FEWEST_A_LAYER)


def _baselines(setting: Setting) -> dict[str, Mapping[str, Distribution] | Infeasible]:
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    return {name: strategy_distributions(setting.graph, name, shape, host) for name in STRATEGIES}


def _formulate(
    setting: Setting,
    usual: Mapping[str, Mapping[str, Distribution] | Infeasible],
    cap: int | None,
    full_space: bool,
    options: Mapping[str, Any],
) -> tuple[Formulation, list[tuple[int, ...]]]:
    """The formulation, and the usual strategies as assignments of it."""
    usable = [d for d in usual.values() if not isinstance(d, Infeasible)]
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=usable,
        cap=cap or default_cap(setting),
        full=full_space,
        bucket_bytes=options.get("bucket_bytes") or LARGEST_BUCKET,
    )
    return formulation, [formulation.choices(d) for d in usable]


def prepare(
    model: str | Network,
    *,
    gpus: int,
    cap: int | None = None,
    full_space: bool = False,
    **options: Any,
) -> tuple[Setting, Formulation, list[tuple[int, ...]]]:
    """What `optimize` searches: the inputs, all costs, and the usual strategies as assignments."""
    setting = resolve(model, gpus=gpus, **options)
    return setting, *_formulate(setting, _baselines(setting), cap, full_space, options)


def optimize(
    model: str | Network,
    *,
    gpus: int,
    search: str = "auto",
    seed: int = 0,
    time_limit: float | None = None,
    cap: int | None = None,
    full_space: bool = False,
    num_best: int = 4,
    tune_trials: int = 0,
    dump_problem: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Plan:
    """Find the fastest plan that fits in memory.

    Parameters
    ----------
    model
        A built-in network, the path of a network file, or a `costmodels.graph.Network`.
    gpus
        Number of GPUs. [items]
    search
        Solver: "auto" or a name in `search.SOLVERS`.
    seed
        Seed of solvers that need one.
    time_limit
        When to stop with the best plan so far. [s]
    cap
        Candidates that a layer may keep for the search; by default what makes about
        `NUM_CANDIDATES` in all. [items]
    full_space
        Also split levels across hosts over more than one dim besides the sample.
    num_best
        How many best distinct assignments are costed on the timeline. [items]
    tune_trials
        Settings of bucket size and all-reduce algorithm to try, each with a search of its own;
        without any, a few bucket sizes are tried on the plan found. [items]
    dump_problem
        Where to write the additive problem whose optimum bounds the plan's step from below, in the
        form of `search.files.contest`; of those solved for the plan, the one with the best bound.
    options
        As of `resolve`: cluster, global_batch_size, precision, optimizer, input_size, memory, ...

    Raises
    ------
    InputError
        When an input cannot be used.
    InfeasibleError
        When no plan fits.
    """
    from search import SOLVERS

    setting = resolve(model, gpus=gpus, **options)
    if search not in SOLVERS:
        raise InputError(
            f"the search must be one of {', '.join(SOLVERS)} but is '{search}'; choose one"
        )
    if dump_problem is not None:
        check_writable(dump_problem)
    usual = _baselines(setting)
    cap = cap or default_cap(setting)

    deadline = None if time_limit is None else time.monotonic() + time_limit

    def attempt(training: Training) -> tuple[Formulation, Found]:
        trial = replace(setting, machine=replace(setting.machine, training=training))
        formulation, starts = _formulate(trial, usual, cap, full_space, options)
        found = find(
            formulation,
            starts=starts,
            method=search,
            num_best=num_best,
            seed=seed,
            # trials share the time limit
            time_limit=None if deadline is None else max(deadline - time.monotonic(), 0.01),
        )
        return formulation, found

    formulation, found = attempt(setting.machine.training)
    if tune_trials:
        formulation, found = tune_knobs(
            attempt, (formulation, found), max_trials=tune_trials, seed=seed, time_limit=time_limit
        )
    if found.best is None:
        raise infeasible_error(setting, found)
    training, best = formulation.machine.training, found.best
    simulated: tuple[Recost, ...] = ()
    try:
        if not tune_trials and options.get("bucket_bytes") is None:
            training, best = tune_buckets(formulation, best)
        formulation = replace(formulation, machine=replace(formulation.machine, training=training))
        # the first of the ranking is the best, with the buckets that were tuned for it
        ranked = [best, *(costed for costed in found.ranked if costed.choices != best.choices)]
        recosted = recost(formulation, ranked[:num_best], training)
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
    if dump_problem is not None:
        # none was kept where the first was interrupted
        problem = found.problem or formulation.problem()
        write_problem(dump_problem, problem, f"{setting.model.name} on {gpus} GPUs")
    plan = assemble_plan(setting, formulation, best, summary, usual, notes)
    return replace(plan, simulated=simulated)


def evaluate(
    model: str | Network,
    *,
    gpus: int,
    strategy: str | Plan = "data",
    degree: int | None = None,
    **options: Any,
) -> Plan:
    """Cost one given strategy.

    Parameters
    ----------
    model, gpus, options
        As of `optimize`.
    strategy
        A name in `planner.request.usual_strategies.STRATEGIES`, the path of a plan file, or a plan.
    degree
        Ways of the dim that is not the sample in a hybrid; a host's devices by default. [ways]

    Raises
    ------
    InputError
        When an input cannot be used, or the strategy cannot be used with it.
    """
    if (
        isinstance(strategy, str)
        and strategy not in STRATEGIES
        and (strategy.endswith(".json") or Path(strategy).exists())
    ):
        strategy = Plan.load(strategy)
    if isinstance(strategy, Plan):
        options = options_of(strategy, options)
    setting = resolve(model, gpus=gpus, **options)
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    if isinstance(strategy, Plan):
        given: Mapping[str, Distribution] = plan_distributions(strategy, setting)
        name = "plan file"
    else:
        rows = strategy_distributions(setting.graph, strategy, shape, host, degree)
        if isinstance(rows, Infeasible):
            raise InputError(
                f"strategy {strategy} cannot be used for {setting.model.name} on {gpus} GPUs: "
                f"{rows.reason}; choose fewer GPUs, another degree or another strategy"
            )
        given, name = rows, strategy
    usual = _baselines(setting)
    usable = [d for d in usual.values() if not isinstance(d, Infeasible)]
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=[given, *usable],
        only_strategies=True,
        cap=10**9,
    )
    costed = cost(formulation, formulation.choices(given))
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


def scale(
    model: str | Network,
    *,
    gpus: Sequence[int],
    strong: bool = False,
    global_batch_size: int | None = None,
    **options: Any,
) -> Iterator[Plan | InfeasibleError]:
    """The best plan for each number of GPUs, one after the other.

    Parameters
    ----------
    model, options
        As of `optimize`, without `dump_problem`.
    gpus
        Numbers of GPUs. [items]
    strong
        Keep the global batch, instead of the samples of each GPU.
    global_batch_size
        Samples of a step at the first number of GPUs. [items]
    """
    first = resolve(model, gpus=gpus[0], global_batch_size=global_batch_size, **_inputs(options))
    for count in gpus:
        batch = first.batch if strong else max(first.batch * count // gpus[0], 1)
        try:
            yield optimize(model, gpus=count, global_batch_size=batch, **options)
        except InfeasibleError as error:
            yield error


def _inputs(options: Mapping[str, Any]) -> dict[str, Any]:
    searching = {"search", "seed", "time_limit", "cap", "full_space", "num_best", "tune_trials"}
    return {k: v for k, v in options.items() if k not in searching}

"""The functions that programs call: optimize, evaluate, scale."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Network
from planner.errors import InfeasibleError
from planner.plan import Plan
from planner.planning.optimize import plan_for, plan_of_strategy
from planner.planning.options import SearchOptions
from planner.request.plans import options_of, plan_distributions
from planner.request.setting import resolve
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions


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
        `planner.planning.prepare.NUM_CANDIDATES` in all. [items]
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
    setting = resolve(model, gpus=gpus, **options)
    return plan_for(
        setting,
        SearchOptions(
            search=search,
            seed=seed,
            time_limit=time_limit,
            cap=cap,
            full_space=full_space,
            num_best=num_best,
            tune_trials=tune_trials,
            bucket_bytes=options.get("bucket_bytes"),
            dump_problem=dump_problem,
        ),
    )


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
    return plan_of_strategy(setting, given, name)


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

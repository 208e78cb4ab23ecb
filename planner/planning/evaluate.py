"""The plan that costs one given strategy."""

from __future__ import annotations

from costmodels.errors import InputError
from costmodels.simulation import load_runtime
from planner.plan import Plan
from planner.planning.optimize import plan_of_strategy
from planner.planning.staged import simulate_stages, tried
from planner.planning.staged_plan import given_plan
from planner.request.by_degrees import (
    degree_distributions,
    samples_needed,
    splits_alone,
    with_default_micro_batches,
)
from planner.request.named_degrees import named_degrees, usual_runtime
from planner.request.placement import (
    given_strategy,
    named_distributions,
    place_network,
    refuse_degree,
)
from planner.request.plans import made_under, plan_distributions, strategy_setting
from planner.request.request import Request
from planner.request.setting import DEFAULT_RUNTIME, resolve


def evaluate_request(request: Request) -> Plan:
    """Answer a request for the cost of a strategy; what `evaluate` does."""
    named = request.strategy
    degrees = named_degrees(named) if isinstance(named, str) else None
    if degrees is not None:
        refuse_degree(request)
        runtime = load_runtime(usual_runtime(str(named), degrees) or DEFAULT_RUNTIME)
        setting = resolve(request, samples_needed(degrees, request.num_gpus))
        setting, degrees = with_default_micro_batches(setting, degrees)
        if splits_alone(degrees):
            return plan_of_strategy(setting, degree_distributions(setting, degrees), str(named))
        found, reason = tried(setting, degrees, runtime)
        if found is None:
            raise InputError(reason)
        return given_plan(found, str(named))
    given = given_strategy(named)
    if given is not None:
        refuse_degree(request)
    if isinstance(given, Plan) and (given.is_staged or given.runtime != DEFAULT_RUNTIME):
        placed = place_network(request)
        found = simulate_stages(placed, made_under(given))
        return given_plan(found, "plan file", placed.notes)
    if isinstance(given, Plan):
        setting, notes = strategy_setting(given, request)
        split = plan_distributions(given, setting)
        return plan_of_strategy(setting, split, "plan file", notes)
    if given is not None:
        placed = place_network(request)
        found = simulate_stages(placed, load_runtime(DEFAULT_RUNTIME))
        return given_plan(found, "strategy file", placed.notes)
    setting = resolve(request)
    name = "data" if request.strategy is None else str(request.strategy)
    return plan_of_strategy(setting, named_distributions(setting, name, request.degree), name)

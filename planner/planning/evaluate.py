"""The plan that costs one given strategy."""

from __future__ import annotations

from costmodels.errors import InputError
from planner.plan import Plan
from planner.planning.optimize import plan_of_strategy
from planner.request.by_degrees import degree_distributions, samples_needed
from planner.request.named_degrees import named_degrees
from planner.request.placement import given_strategy, named_distributions, refuse_degree
from planner.request.plans import plan_distributions, strategy_setting
from planner.request.request import Request
from planner.request.setting import resolve


def evaluate_request(request: Request) -> Plan:
    """Answer a request for the cost of a strategy; what `evaluate` does."""
    named = request.strategy
    degrees = named_degrees(named) if isinstance(named, str) else None
    if degrees is not None:
        refuse_degree(request)
        setting = resolve(request, samples_needed(degrees, request.num_gpus))
        return plan_of_strategy(setting, degree_distributions(setting, degrees), str(named))
    strategy = given_strategy(named)
    if strategy is not None:
        refuse_degree(request)
    if isinstance(strategy, Plan):
        setting, notes = strategy_setting(strategy, request)
        split = plan_distributions(strategy, setting)
        return plan_of_strategy(setting, split, "plan file", notes)
    if strategy is not None:
        raise InputError(
            "the strategy of an evaluation must be a name or a plan but is a strategy of stages; "
            "simulate it"
        )
    setting = resolve(request)
    name = "data" if request.strategy is None else str(request.strategy)
    return plan_of_strategy(setting, named_distributions(setting, name, request.degree), name)

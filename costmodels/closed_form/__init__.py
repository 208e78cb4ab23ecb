"""Simpler step models by name, to compare with and to see what each refinement is worth.

Closed forms from the literature that take a network, a distribution of every layer and a machine,
as the planner's own model does, and add everything up: nothing overlaps, every layer divides
evenly, and a link has one latency and one bandwidth. They refuse plans that they have no form for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodels.closed_form import paleo, paradl
from costmodels.closed_form.result import ClosedForm
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.step.machine import Machine

__all__ = ["CLOSED_FORMS", "ClosedForm", "closed_form_step"]

_MODELS: Mapping[str, Callable[[Graph, Mapping[str, Distribution], Machine], ClosedForm]] = {
    "paradl": paradl.paradl_step,
    "paleo": paleo.paleo_step,
}
CLOSED_FORMS = tuple(_MODELS)


def closed_form_step(
    model: str, graph: Graph, distributions: Mapping[str, Distribution], machine: Machine
) -> ClosedForm:
    """Time of a training step by the closed form of that name.

    Parameters
    ----------
    model
        One of `CLOSED_FORMS`.
    graph
        The network at the global batch.
    distributions
        How every layer but the inputs is split.
    machine
        Links, device and training options.

    Raises
    ------
    InputError
        When the model is unknown, or has no form for the plan.
    """
    if model not in _MODELS:
        raise InputError.rule(
            "the step model",
            f"be one of {', '.join(CLOSED_FORMS)}",
            f"'{model}'",
            "choose one",
        )
    return _MODELS[model](graph, distributions, machine)

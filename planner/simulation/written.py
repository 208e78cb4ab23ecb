"""A strategy that was simulated, as a file that can be changed and simulated again."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from msgspec.structs import replace

from costmodels.cluster import Cluster
from costmodels.errors import InputError
from planner.request.inputs.question import AUTO, DEFAULT_CLUSTER
from planner.request.request import Request
from planner.request.setting import Setting, find_cluster, find_network
from planner.request.strategy_files import strategy_text
from planner.request.strategy_tables import StrategyFile, parse_strategy
from planner.simulation.result import Simulation


def simulated_strategy(simulation: Simulation, source: str) -> StrategyFile:
    """What the file of a simulated strategy says.

    It names the network and the cluster as they were given, unless another command would not find
    them by that: a module, what a plan carries, the cluster of this machine.

    Parameters
    ----------
    simulation
        What was simulated.
    source
        The name or path that was given for it.
    """
    placed = simulation.subject
    setting = placed.setting
    text = strategy_text(
        placed.strategy,
        placed.graph,
        setting.cluster,
        setting.gpus,
        global_batch_size=setting.batch,
        precision=setting.machine.training.precision,
    )
    file = parse_strategy(text)
    return replace(file, model=_model_of(setting, source), cluster=_cluster_of(setting))


def _model_of(setting: Setting, source: str) -> str | None:
    """The name or path by which the network is found again, with the same options."""
    request = setting.request or Request(source=source)
    for name in (request.source, source, setting.model.name):
        if isinstance(name, str):
            with suppress(InputError):
                if find_network(dataclasses.replace(request, source=name)) == setting.model:
                    return name
    return None


def _cluster_of(setting: Setting) -> str | None:
    """The name or path by which the cluster is found again."""
    asked = setting.cluster if setting.request is None else setting.request.cluster
    if not isinstance(asked, Cluster):
        return None if asked == AUTO else asked or DEFAULT_CLUSTER
    with suppress(InputError):
        if find_cluster(asked.name) == asked:
            return asked.name
    return None

"""Words that a shell can complete: names of what is built in, and files that fit.

Click asks for them when the shell runs the program with `_PLANNER_COMPLETE` set. What is built in
is listed by who owns it, and only when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

Names: TypeAlias = Callable[[], Sequence[str]]
Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete(names: Names | None = None, suffixes: tuple[str, ...] = ()) -> Completer:
    """What completes a word to one of some names, or to a file.

    Parameters
    ----------
    names
        Gives the names, if it may be one.
    suffixes
        Of the files that it may be; none if it is no file.
    """

    def find(
        context: click.Context,
        parameter: click.Parameter,
        begun: str,
    ) -> list[CompletionItem]:
        known = [name for name in (names() if names else ()) if name.startswith(begun)]
        known += _fitting_files(begun, suffixes)
        # folders, and files of any name, are for the shell to find
        fallback = [CompletionItem(begun, type="file")] if suffixes else []
        return [CompletionItem(name) for name in known] or fallback

    return find


def _fitting_files(begun: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files with one of the suffixes whose paths begin so."""
    if not suffixes:
        return []
    folder, start = os.path.split(begun)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return []
    return [
        os.path.join(folder, name)
        for name in names
        if name.startswith(start) and name.endswith(suffixes) and name.isprintable()
    ]


def _models() -> Sequence[str]:
    from planner.models import list_models

    return list_models()


def _clusters() -> Sequence[str]:
    from costmodels.cluster import list_clusters

    return list_clusters()


def _machines() -> Sequence[str]:
    from planner.request.inputs.question import AUTO

    return (AUTO, *_clusters())


def _devices() -> Sequence[str]:
    from costmodels.cluster import list_devices

    return list_devices()


def _runtimes() -> Sequence[str]:
    from costmodels.simulation.runtime_files import built_in_runtimes

    return tuple(built_in_runtimes())


def _loaders() -> Sequence[str]:
    from costmodels.input_pipeline import list_loaders

    return list_loaders()


def _storages() -> Sequence[str]:
    from costmodels.input_pipeline import list_storages

    return list_storages()


def _solvers() -> Sequence[str]:
    from search import SOLVERS

    return tuple(SOLVERS)


def _precisions() -> Sequence[str]:
    from costmodels.cluster.device import PRECISIONS

    return PRECISIONS


def _all_reduces() -> Sequence[str]:
    from costmodels.communication.collectives import ALL_REDUCE_ALGORITHMS

    return ("auto", *ALL_REDUCE_ALGORITHMS)


def _memory_models() -> Sequence[str]:
    from costmodels.step.training import MEMORY_MODELS

    return MEMORY_MODELS


def _optimizers() -> Sequence[str]:
    from costmodels.step.training import OPTIMIZERS

    return OPTIMIZERS


def _strategies() -> Sequence[str]:
    from planner.request.usual_strategies import STRATEGIES

    return STRATEGIES


def _schedules() -> Sequence[str]:
    from costmodels.strategy import SCHEDULES

    return SCHEDULES


def _step_models() -> Sequence[str]:
    from planner.request.inputs.simulating import step_models

    return step_models()


def _of_sgd(name: str) -> Names:
    """A list of names of `planner.request.inputs.distributed`."""

    def names() -> Sequence[str]:
        from planner.request.inputs import distributed

        found: Sequence[str] = getattr(distributed, name)
        return found

    return names


def _frameworks() -> Sequence[str]:
    from planner.request.frameworks import FRAMEWORKS

    return tuple(FRAMEWORKS)


NETWORK_FILES, PLAN_FILES, CLUSTER_FILES = (".toml", ".json"), (".json", ".toml"), (".toml",)
complete_model = complete(_models, (*NETWORK_FILES, ".onnx"))
complete_built_in_model = complete(_models)
complete_built_in_cluster = complete(_clusters)
complete_solver = complete(_solvers)
# By field of a request, or of a part of it.
COMPLETERS: Mapping[str, Completer] = {
    "cluster": complete(_machines, CLUSTER_FILES),
    "host": complete(_clusters, CLUSTER_FILES),
    "strategy": complete(_strategies, PLAN_FILES),
    "runtime": complete(_runtimes, (".toml",)),
    "tables": complete(None, (".csv",)),
    "dump_problem": complete(None, (".json", ".gz")),
    "device": complete(_devices),
    "framework": complete(_frameworks),
    "search": complete_solver,
    "precision": complete(_precisions),
    "optimizer": complete(_optimizers),
    "all_reduce": complete(_all_reduces),
    "memory_model": complete(_memory_models),
    "schedule": complete(_schedules),
    "step_model": complete(_step_models),
    "against": complete(lambda: ("memory", "gpus")),
    "loader": complete(_loaders),
    "storage": complete(_storages),
    "architecture": complete(_of_sgd("ARCHITECTURES")),
    "mode": complete(_of_sgd("MODES")),
    "throughput_models": complete(_of_sgd("THROUGHPUT_MODELS")),
    "sharing_rule": complete(_of_sgd("SHARING_RULES")),
}

"""What a search of a plan starts from: the formulation, and the usual strategies as assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodels.distribution import Distribution
from planner.planning.formulate import Formulation, formulate
from planner.planning.options import SearchOptions
from planner.planning.tuning import LARGEST_BUCKET
from planner.request.setting import Setting
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions

# Candidates of all layers that a search sees unless told otherwise: enough for layers to find their
# best splits together, few enough for an answer in about a second. [items]
NUM_CANDIDATES = 12_000
# A layer keeps that many however many layers there are: fewer lose splits that matter. [items]
FEWEST_A_LAYER = 64
# More candidates than any layer has: none is left out. [items]
NO_CAP = 10**9

# By name how the strategy splits every layer, or why it cannot be used.
UsualStrategies = Mapping[str, Mapping[str, Distribution] | Infeasible]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """What a search works on.

    Parameters
    ----------
    formulation
        All candidates and their costs.
    starts
        The usual strategies that can be used, as assignments.
    """

    formulation: Formulation
    starts: tuple[tuple[int, ...], ...]


def default_cap(setting: Setting) -> int:
    """Candidates that a layer of a network may keep by default. [items]"""
    return max(NUM_CANDIDATES // len(setting.graph.compute_layers), FEWEST_A_LAYER)


def usual_strategies(setting: Setting) -> UsualStrategies:
    """The strategies that a plan is compared with."""
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    return {name: strategy_distributions(setting.graph, name, shape, host) for name in STRATEGIES}


def prepare(
    setting: Setting, options: SearchOptions, usual: UsualStrategies | None = None
) -> Prepared:
    """Cost what a search sees.

    Parameters
    ----------
    setting
        The question.
    options
        Of these the cap, the space and the bucket size.
    usual
        The usual strategies of the question, where they are known already.
    """
    usable = _usable(usual_strategies(setting) if usual is None else usual)
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=usable,
        cap=options.cap or default_cap(setting),
        full=options.full_space,
        bucket_bytes=options.bucket_bytes or LARGEST_BUCKET,
    )
    return Prepared(
        formulation=formulation, starts=tuple(formulation.choices(rows) for rows in usable)
    )


def formulate_given(
    setting: Setting, given: Mapping[str, Distribution], usual: UsualStrategies
) -> Formulation:
    """Cost one strategy and the usual ones, and nothing else.

    Parameters
    ----------
    setting
        The question.
    given
        How the strategy splits every layer.
    usual
        The usual strategies.
    """
    return formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=[given, *_usable(usual)],
        only_strategies=True,
        cap=NO_CAP,
    )


def _usable(usual: UsualStrategies) -> Sequence[Mapping[str, Distribution]]:
    return [rows for rows in usual.values() if not isinstance(rows, Infeasible)]

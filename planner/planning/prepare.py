"""What a search of a plan starts from: the formulation, and the usual strategies as assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from costmodels.distribution import Distribution
from planner.planning.loop_speed import turn_of_a_loop
from planner.planning.options import SearchOptions
from planner.planning.search_plan import GRACE
from planner.planning.space.formulate import Formulation, formulate
from planner.planning.space.layer_space import NO_CAP
from planner.planning.space.shuffles import TooManyCandidates
from planner.planning.tuning import LARGEST_BUCKET, buckets_to_try
from planner.request.setting import Setting
from planner.request.usual_strategies import STRATEGIES, Infeasible, strategy_distributions
from search.problem.deadline import Deadline, OutOfTime
from search.problem.notes import Note

# Candidates of all layers that a search sees unless told otherwise: enough for layers to find their
# best splits together, few enough for an answer in about a second. [items]
NUM_CANDIDATES = 12_000
# A layer keeps that many however many layers there are: fewer lose splits that matter. [items]
FEWEST_A_LAYER = 64
# What a layer keeps where time does not allow for more. [items]
FEW_A_LAYER = 16
# Part of the time left that may go into costing a space; the search needs the rest.
SPACE_SHARE = 0.5
# What a plan of the usual strategies alone takes a layer, in turns of a loop of Python: as much is
# kept for it. A chain of 10,003 layers took 3.0 to 4.2 s, a turn 1.1e-7 to 1.6e-7 s (2026-11-29).
# [turns]
PLAN_OF_USUAL = 2_600
# With no more layers they take less than that on any machine, and are waited for. [items]
FEW_LAYERS = 1000

ONLY_USUAL = Note.of("no-time-for-space")

# By name how the strategy splits every layer, or why it cannot be used.
UsualStrategies = Mapping[str, Mapping[str, Distribution] | Infeasible]


class Prepared(Struct, frozen=True, kw_only=True, eq=False):
    """What a search works on.

    Parameters
    ----------
    formulation
        All candidates and their costs.
    starts
        The usual strategies that can be used, as assignments.
    cap
        Candidates that a layer may keep, 0 where there was time for the usual strategies alone.
        [items]
    notes
        What the time limit left out.
    """

    formulation: Formulation
    starts: tuple[tuple[int, ...], ...]
    cap: int
    notes: tuple[Note, ...] = ()

    @property
    def only_usual(self) -> bool:
        """Whether there was no time for any but the usual strategies."""
        return self.cap == 0


def default_cap(setting: Setting) -> int:
    """Candidates that a layer of a network may keep by default. [items]"""
    return max(NUM_CANDIDATES // len(setting.graph.compute_layers), FEWEST_A_LAYER)


def usual_strategies(setting: Setting) -> UsualStrategies:
    """The strategies that a plan is compared with."""
    shape, host = setting.machine.topology.shape, setting.cluster.host_index
    return {name: strategy_distributions(setting.graph, name, shape, host) for name in STRATEGIES}


def prepare(
    setting: Setting,
    options: SearchOptions,
    usual: UsualStrategies | None = None,
    deadline: Deadline | None = None,
) -> Prepared:
    """Cost what a search sees, or as much of it as time allows.

    Parameters
    ----------
    setting
        The question.
    options
        Of these the cap, the space and the bucket size.
    usual
        The usual strategies of the question, where they are known already.
    deadline
        When a plan must be there. The space gets a part of the time until then; if that is not
        enough a smaller one, and at last the usual strategies alone.

    Raises
    ------
    OutOfTime
        When not even the usual strategies could be costed.
    """
    usable = _usable(usual_strategies(setting) if usual is None else usual)
    deadline = deadline or Deadline(None)
    cap = options.cap or default_cap(setting)
    tried = buckets_to_try(setting.graph, setting.machine.training)
    bucket = options.bucket_bytes or (LARGEST_BUCKET if options.tune_trials else max(tried))

    def formulated(cap: int, until: Deadline, *, only_strategies: bool = False) -> Formulation:
        return formulate(
            setting.graph,
            setting.cluster,
            setting.machine,
            strategies=usable,
            only_strategies=only_strategies,
            cap=cap,
            bucket_bytes=bucket,
            deadline=until,
        )

    def of_usual() -> Formulation:
        few_layers = len(setting.graph.compute_layers) <= FEW_LAYERS
        until = Deadline(None) if few_layers else deadline.earlier(-GRACE)
        return formulated(NO_CAP, until, only_strategies=True)

    notes: tuple[Note, ...] = ()
    few, kept = min(cap, FEW_A_LAYER), PLAN_OF_USUAL * len(setting.graph.compute_layers)
    space = deadline.earlier(kept * turn_of_a_loop())
    try:
        formulation = formulated(cap, space.part(SPACE_SHARE))
    except TooManyCandidates:
        try:
            formulation = formulated(few, space.part(SPACE_SHARE))
            cap, notes = few, (Note.of("no-time-for-candidates", cap=few),)
        except OutOfTime:
            formulation, cap, notes = of_usual(), 0, (ONLY_USUAL,)
    except OutOfTime:
        formulation, cap, notes = of_usual(), 0, (ONLY_USUAL,)
    return Prepared(
        formulation=formulation,
        starts=tuple(formulation.choices(rows) for rows in usable),
        cap=cap,
        notes=notes,
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
    )


def _usable(usual: UsualStrategies) -> Sequence[Mapping[str, Distribution]]:
    return [rows for rows in usual.values() if not isinstance(rows, Infeasible)]

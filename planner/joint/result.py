"""What a joint search came to."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from costmodels.simulation import Runtime
from planner.errors import ContradictionError
from planner.joint.choices import Choice
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate, Estimates
from planner.planning.staged import StagedStep
from planner.request.setting import Setting
from search.problem.notes import Note


class JointResult(Struct, frozen=True, kw_only=True, eq=False):
    """What a joint search came to.

    Parameters
    ----------
    best
        The fastest strategy that fits, None where none was found.
    simulated
        All strategies that were simulated.
    misfits
        By how much others were told not to fit before that, at least. [B]
    bound
        What no step of any choice takes less than. [s]
    any_split
        What none takes less than, however stages split their layers. [s]
    single_bound
        What no step of one stage and one micro-batch takes less than. [s]
    num_choices, num_wished
        Global choices there are, and those as wished for. [items]
    heavy
        Those of the latter that are known to hold more than a device has before they are costed.
    estimates
        Of those that can be among the best, the fastest first.
    passed
        Those that are slower than these by their passes alone.
    costs, floors
        What all of them cost, and take at least by computation alone.
    offloads
        Whether what does not fit may wait in the memory of the hosts.
    left_out
        Why ways of parallelism were left out that do not fit the network.
    stopped_by
        What cut the search short.
    refused
        Why what is held fixed and ruled out leaves nothing to search, None where it leaves some.
    runtime
        The name of the runtime that was asked for, None where none was.
    under
        Names of the runtimes under which it was searched.
    no_splits
        Why the splits of one stage were not searched layer by layer to the end, None where they
        were, or are not asked for.
    own_splits
        What was simulated beside these with layers that are each split in their own way.
    """

    best: StagedStep | None
    simulated: tuple[StagedStep, ...]
    bound: float
    single_bound: float
    num_choices: int
    num_wished: int
    heavy: tuple[Choice, ...] = ()
    estimates: tuple[Estimate, ...] = ()
    passed: tuple[Choice, ...] = ()
    costs: Estimates | None = None
    floors: PipelineBounds | None = None
    offloads: bool = False
    left_out: tuple[str, ...] = ()
    stopped_by: str = ""
    refused: ContradictionError | None = None
    any_split: float = 0.0
    runtime: str | None = None
    under: tuple[str, ...] = ()
    no_splits: Note | None = None
    own_splits: tuple[StagedStep, ...] = ()
    misfits: tuple[float, ...] = ()

    def beside(self, other: JointResult) -> JointResult:
        """What this and another search of the same question, under another runtime, came to.

        The best of this, and estimates of this, stay.
        """
        return replace(
            self,
            bound=min(self.bound, other.bound),
            simulated=(*self.simulated, *other.simulated),
            num_choices=self.num_choices + other.num_wished,
            num_wished=self.num_wished + other.num_wished,
            stopped_by=self.stopped_by or other.stopped_by,
            under=(*self.under, *other.under),
        )

    @property
    def tried_in_vain(self) -> frozenset[int]:
        """Numbers of micro-batches with which no layers split in their own ways fit. [items]"""
        fit = {True: set[int](), False: set[int]()}
        for one in self.own_splits:
            fit[one.fits].add(one.placed.strategy.schedule.micro_batches)
        return frozenset(fit[False] - fit[True])

    def without_splits(self, note: Note, least: float = math.inf) -> JointResult:
        """The same without the splits of one stage layer by layer.

        Parameters
        ----------
        note
            Why they are left out.
        least
            What none of them takes less than, where one may be faster than what was found. [s]
        """
        return replace(self, no_splits=note, bound=min(self.bound, least))

    @property
    def is_by_degrees(self) -> bool:
        """Whether the layers of the best are split by degrees, if there is one."""
        return self.best not in self.own_splits

    @property
    def waits_in_hosts(self) -> bool:
        """Whether the best fits only as some of it waits in the memory of the hosts."""
        degrees = None if self.best is None else self.best.degrees
        return degrees is not None and bool(degrees.offload)

    @property
    def every_step(self) -> tuple[StagedStep, ...]:
        """All that was simulated."""
        return *self.simulated, *self.own_splits


def estimates_like(
    setting: Setting,
    runtime: Runtime,
    *,
    like: JointResult | None,
    under_another: JointResult | None,
) -> Estimates:
    """Estimates of a question, with what is costed already.

    Parameters
    ----------
    setting, runtime, like, under_another
        As of `planner.joint.search.JointSearch`.
    """
    costs = None if like is None else like.costs
    found = Estimates(setting, runtime) if costs is None else costs.on(setting)
    if under_another is not None and under_another.costs is not None:
        found.plain = under_another.costs.plain
    return found

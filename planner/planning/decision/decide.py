"""Decide by simulation: one objective for all assignments that may be the best.

The fastest of the finalists that fits is the plan. Of those that are hardly slower the simplest is
taken, unless another one is faster with no more memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from planner.plan import Finalist
from planner.planning.decision.choice import EQUAL, undominated
from planner.planning.decision.finalists import Patterns
from planner.planning.decision.finals import (
    SIMPLER_WITHIN,
    Finals,
    TimeToDecide,
    simulate_smaller,
)
from planner.planning.decision.moves import MOVES, Moves
from planner.planning.decision.simulator import Choices, PlanSimulator, SimulatedChoices
from planner.planning.options import SearchOptions
from planner.planning.space.costing import Costed
from planner.planning.space.formulate import Formulation
from planner.planning.tuning import Attempt, buckets_to_try
from search.problem.deadline import Deadline
from search.problem.interrupts import held_back
from search.problem.notes import Note

# Notes of a decision on its order, which hold no longer where something else is chosen.
ORDER_NOTES = ("plan-does-not-fit", "simplest-chosen")


class Decision(Struct, frozen=True, kw_only=True, eq=False):
    """The assignment that becomes the plan.

    Parameters
    ----------
    formulation
        The network on the machine, with the options of the step that were decided on.
    best
        The assignment, costed with them.
    finalists
        The assignments that were simulated, the fastest first.
    notes
        What is worth knowing of the choice.
    stopped_by
        "time limit" or "interrupt" where the search or the decision was cut short, else empty.
    seconds
        The step as simulated, +inf where nothing was. [s]
    promised
        The least step of this and all answers for fewer devices: none for more is slower. [s]
    usual
        The usual strategies that were simulated, by their choices.
    """

    formulation: Formulation
    best: Costed
    seconds: float = math.inf
    promised: float = math.inf
    usual: Mapping[Choices, SimulatedChoices] = field(default_factory=dict)
    finalists: tuple[Finalist, ...] = ()
    notes: tuple[Note, ...] = ()
    stopped_by: str = ""

    def noted(self, *notes: Note) -> Decision:
        """The decision with further notes."""
        return replace(self, notes=(*self.notes, *notes))


class Judged(Struct, frozen=True, kw_only=True, eq=False):
    """What was simulated of a search.

    Parameters
    ----------
    finals
        What was simulated.
    patterns
        Of the formulation; None where there was no time to simplify.
    attempt
        The search.
    stopped_by
        What cut the search or the simulation short.
    """

    finals: Finals
    patterns: Patterns | None
    attempt: Attempt
    stopped_by: str

    @property
    def short(self) -> float:
        """What a device lacks for the smallest that was simulated, 0 where any fits. [B]"""
        finals = self.finals
        if finals.fits:
            return 0.0
        memory = finals.simulator.formulation.cluster.device.memory
        return min(trial.peak_memory for trial in finals.best_of.values()) - memory

    def decide(self, promised: float = math.inf) -> Decision:
        """Choose the fastest assignment, or a simpler one that is hardly slower.

        Parameters
        ----------
        promised
            The least step of answers for fewer devices, which a simpler one must keep to. [s]
        """
        if self.finals.best_of:
            with held_back() as interrupted:
                decision = _decision(self, promised)
            return replace(decision, stopped_by="interrupt") if interrupted.is_set() else decision
        best = self.attempt.result.best
        assert best is not None, "without an assignment that fits there is nothing to decide"
        return Decision(
            formulation=self.attempt.formulation,
            best=best,
            notes=tuple(_late_notes(self.finals)),
            stopped_by=self.stopped_by,
        )


def judge(attempt: Attempt, options: SearchOptions, deadline: Deadline | None = None) -> Judged:
    """Simulate what may be the fastest assignment.

    An interrupt leaves what was simulated until then; after one of the search only its best is
    simulated. Before the deadline only what is likely to end
    in time is begun.

    Parameters
    ----------
    attempt
        A search that found an assignment that fits.
    options
        How many assignments to simulate, and whether the bucket size is to be chosen still.
    deadline
        When the plan must be there.
    """
    result = attempt.result
    assert result.best is not None, "without an assignment that fits there is nothing to decide"
    formulation = attempt.formulation
    given = formulation.machine.training.bucket_bytes
    # the least memory was sought with the smallest buckets
    fixed = options.tune_trials or options.least_memory or options.bucket_bytes is not None
    training = formulation.machine.training
    tried = () if fixed else buckets_to_try(formulation.graph, training)
    finals = Finals(
        simulator=PlanSimulator(formulation),
        buckets=tuple(dict.fromkeys((given, *tried))),
        time=TimeToDecide(deadline=deadline or Deadline(None), pace=result.pace),
    )
    stopped_by, patterns = result.incumbent.stopped_by, None
    try:
        options.tell("simulating the best", result.incumbent.cost, result.incumbent.bound)
        finals.simulate([result.best.choices])
        go_on = stopped_by != "interrupt" and not options.least_memory
        if go_on and finals.time.allows(MOVES):
            patterns = Patterns(formulation)
            Moves.of(finals, patterns, attempt, options).simulate_finalists()
        if go_on and not finals.fits:
            simulate_smaller(finals, result.met)
    except KeyboardInterrupt:
        stopped_by = "interrupt"
    return Judged(finals=finals, patterns=patterns, attempt=attempt, stopped_by=stopped_by)


def begun_elsewhere(judged: Judged, options: SearchOptions) -> Judged:
    """What was judged, with what moves make of what is unlike it, if that may be faster.

    Parameters
    ----------
    judged
        What was simulated of a search.
    options
        As of `judge`.
    """
    if judged.patterns is not None and not judged.stopped_by:
        Moves.of(judged.finals, judged.patterns, judged.attempt, options).simulate_others()
    return judged


def _decision(judged: Judged, promised: float) -> Decision:
    """The decision on what was simulated; `promised` as of `Judged.decide`."""
    finals, patterns = judged.finals, judged.patterns
    simulator, fastest = finals.simulator, finals.fastest
    starts = dict.fromkeys(judged.attempt.starts)
    usual = [finals.best_of[start] for start in starts if start in finals.best_of]
    notes, winner = _late_notes(finals), fastest
    if not simulator.fits(fastest):
        notes.append(Note.of("plan-does-not-fit"))
    elif patterns is not None:
        limit = min([promised, *(trial.seconds for trial in usual if simulator.fits(trial))])
        winner = _simplest(finals, patterns, limit)
    if patterns is not None:
        notes += simpler_notes(
            winner.seconds / fastest.seconds - 1.0,
            *(patterns.changes(one.choices) for one in (winner, fastest)),
        )
    return Decision(
        formulation=simulator.with_bucket(winner.bucket_bytes),
        best=simulator.cost(winner),
        seconds=winner.seconds,
        promised=min(promised, winner.seconds),
        usual={trial.choices: trial for trial in usual},
        finalists=tuple(
            Finalist(
                step_time_s=trial.seconds,
                peak_memory_bytes=trial.peak_memory,
                chosen=trial is winner,
            )
            for trial in sorted(finals.best_of.values(), key=lambda trial: trial.seconds)
        ),
        notes=tuple(notes),
        stopped_by=judged.stopped_by,
    )


def _simplest(finals: Finals, patterns: Patterns, limit: float) -> SimulatedChoices:
    """Of the plans that are hardly slower than the fastest the one that changes its split least.

    Equal ones are told apart by time, then by memory, traffic and work done more than once. None is
    taken where another one is faster and needs no more memory.

    Parameters
    ----------
    finals
        What was simulated.
    patterns
        Of the formulation.
    limit
        A step that must be kept to: that of a usual strategy, or of fewer devices. [s]
    """
    fastest, fits = finals.fastest, finals.simulator.fits
    limit = min((1.0 + SIMPLER_WITHIN) * fastest.seconds, limit)
    slower = (one for one in finals.best_of.values() if fits(one) and one.seconds <= limit)
    near = [fastest, *(one for one in slower if one is not fastest)]

    def key(trial: SimulatedChoices) -> tuple[float, ...]:
        return (
            patterns.changes(trial.choices),
            round(trial.seconds / (EQUAL * fastest.seconds)),
            trial.peak_memory,
            trial.received,
            patterns.replicated(trial.choices),
        )

    return min(undominated(near), key=key)


def simpler_notes(slower: float, changes: int, others: int) -> list[Note]:
    """That a simpler plan was chosen; nothing where it only differs in what counts as equal.

    Parameters
    ----------
    slower
        Part of the fastest step that it takes more.
    changes, others
        How often it changes its split, and how often the fastest does. [items]
    """
    if changes == others:
        return []
    return [Note.of("simplest-chosen", slower=slower, changes=changes, others=others)]


def _late_notes(finals: Finals) -> list[Note]:
    """What there was no time to simulate."""
    done = len(finals.best_of)
    if done == finals.wanted:
        return []
    return [Note.of("no-time-to-simulate", simulated=done, wanted=finals.wanted)]

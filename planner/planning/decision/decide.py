"""Decide by simulation: one objective for all assignments that may be the best.

The fastest of the finalists that fits is the plan. Of those that are hardly slower the simplest is
taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodels.layers.layer_passes import SOURCES
from planner.plan import Finalist
from planner.planning.decision.finalists import Patterns
from planner.planning.decision.finals import (
    EQUAL,
    MOVES,
    SIMPLER_WITHIN,
    Finals,
    TimeToDecide,
    simulate_finalists,
)
from planner.planning.decision.simulator import Choices, PlanSimulator, SimulatedChoices
from planner.planning.options import SearchOptions
from planner.planning.space.costing import Costed
from planner.planning.space.formulate import Formulation
from planner.planning.tuning import Attempt, buckets_to_try
from search.problem.deadline import Deadline
from search.problem.interrupts import held_back
from search.problem.notes import Note

# Plans of fewer devices are looked for where one with all layers split alike is estimated to be at
# most so many times as slow as the best such one that has work for all devices.
IDLE_WITHIN = 1.2
# Notes of a decision on its order, which hold no longer where something else is chosen.
ORDER_NOTES = ("plan-does-not-fit", "simplest-chosen")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
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
    fewer_may_do
        Whether a plan that leaves devices without work of their own may be as fast.
    usual
        The usual strategies that were simulated, by their choices.
    """

    formulation: Formulation
    best: Costed
    seconds: float = math.inf
    fewer_may_do: bool = False
    usual: Mapping[Choices, SimulatedChoices] = field(default_factory=dict)
    finalists: tuple[Finalist, ...] = ()
    notes: tuple[Note, ...] = ()
    stopped_by: str = ""

    def noted(self, note: Note) -> Decision:
        """The decision with a further note."""
        return replace(self, notes=(*self.notes, note))


def decide(attempt: Attempt, options: SearchOptions, deadline: Deadline | None = None) -> Decision:
    """Choose the fastest assignment by simulation.

    An interrupt leaves what was decided until then; after one of the search only its best is
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
    tried: tuple[float, ...] = ()
    if not options.tune_trials and options.bucket_bytes is None:
        tried = buckets_to_try(formulation.graph, formulation.machine.training)
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
            simulate_finalists(finals, patterns, attempt, options.num_best)
    except KeyboardInterrupt:
        stopped_by = "interrupt"
    if not finals.best_of:
        return Decision(
            formulation=formulation,
            best=result.best,
            notes=tuple(_late_notes(finals)),
            stopped_by=stopped_by,
        )
    with held_back() as interrupted:
        decision = _decision(finals, patterns, attempt, stopped_by)
    return replace(decision, stopped_by="interrupt") if interrupted.is_set() else decision


def _computing_on_half(costed: Costed) -> float:
    """Computation of an assignment if half of the devices had to do it, more or less. [s]"""
    waiting = costed.sources.get(SOURCES[-1], 0.0)
    running = costed.compute - waiting
    # kernels that run for longer wait less for the next launch
    return 2.0 * running + max(waiting - running, 0.0)


def _decision(
    finals: Finals, patterns: Patterns | None, attempt: Attempt, stopped_by: str
) -> Decision:
    """The decision on what was simulated.

    Parameters
    ----------
    finals
        What was simulated.
    patterns
        Of the formulation; None where there was no time to simplify.
    attempt
        The search.
    stopped_by
        What cut the search or the decision short.
    """
    simulator, fastest = finals.simulator, finals.fastest
    usual = [finals.best_of[c] for c in dict.fromkeys(attempt.starts) if c in finals.best_of]
    notes, winner = _late_notes(finals), fastest
    if not simulator.fits(fastest):
        notes.append(Note.of("plan-does-not-fit"))
    elif patterns is not None:
        winner = _simplest(finals, patterns, usual)
    if winner is not fastest and patterns is not None:
        simple = Note.of(
            "simplest-chosen",
            slower=winner.seconds / fastest.seconds - 1.0,
            changes=patterns.changes(winner.choices),
            others=patterns.changes(fastest.choices),
        )
        notes.append(simple)
    return Decision(
        formulation=simulator.with_bucket(winner.bucket_bytes),
        best=simulator.cost(winner),
        seconds=winner.seconds,
        fewer_may_do=finals.idle_ratio <= IDLE_WITHIN
        or _computing_on_half(simulator.cost(fastest)) <= fastest.seconds,
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
        stopped_by=stopped_by,
    )


def _simplest(
    finals: Finals, patterns: Patterns, usual: Sequence[SimulatedChoices]
) -> SimulatedChoices:
    """Of the plans that are hardly slower than the fastest the one that changes its split least.

    Equal ones are told apart by time, then by memory, traffic and work done more than once. None is
    taken that is slower than a usual strategy.

    Parameters
    ----------
    finals
        What was simulated.
    patterns
        Of the formulation.
    usual
        The usual strategies among them.
    """
    fastest, fits = finals.fastest, finals.simulator.fits
    slowest = (1.0 + SIMPLER_WITHIN) * fastest.seconds
    limit = min([slowest, *(trial.seconds for trial in usual if fits(trial))])
    near = [trial for trial in finals.best_of.values() if fits(trial) and trial.seconds <= limit]

    def key(trial: SimulatedChoices) -> tuple[float, ...]:
        return (
            patterns.changes(trial.choices),
            round(trial.seconds / (EQUAL * fastest.seconds)),
            trial.peak_memory,
            trial.received,
            patterns.replicated(trial.choices),
        )

    return min(near, key=key)


def _late_notes(finals: Finals) -> list[Note]:
    """What there was no time to simulate."""
    done = len(finals.best_of)
    if done == finals.wanted:
        return []
    return [Note.of("no-time-to-simulate", simulated=done, wanted=finals.wanted)]

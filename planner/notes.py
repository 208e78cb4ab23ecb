"""The words of notes: the one place where facts of a kind become sentences."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.notes import Note as EstimateNote
from search.problem.notes import Note as AnswerNote

# By kind the sentence, with the facts of the note by their names.
WORDS: Mapping[str, str] = {
    # a sentence of a solver that has no kind of its own
    "said": "{words}",
    # the search of a plan
    "memory-unproven": (
        "problems under the memory limit were stopped before proof, after about {seconds:g} s or "
        "less each; the gap says how far the plan may be off"
    ),
    "space-clipped": (
        "search space clipped: {searched} of {sensible} candidates searched, at most about {cap} a "
        "layer (--cap); bound and optimality hold for those"
    ),
    "search-stopped": "search stopped early by {reason}: best plan so far",
    # the decision by simulation
    "order-changed": (
        "simulation changed the order: the plan is number {place} on the timeline, and "
        "{faster:.1%} faster than the first when both are simulated"
    ),
    "first-does-not-fit": (
        "simulation changed the order: what was fastest on the timeline does not fit in memory "
        "when it is simulated"
    ),
    "plan-does-not-fit": (
        "the plan does not fit in memory when it is simulated, though it does on the timeline"
    ),
    # the plan
    "memory-nearly-full": (
        "the peak is {part:.0%} of the memory, and the fragmentation of the framework's allocator "
        "is not modelled: try it before use"
    ),
}


def words(note: AnswerNote | EstimateNote) -> str:
    """The sentence of a note."""
    return WORDS[note.kind].format_map(dict(note.facts))

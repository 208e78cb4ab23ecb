"""Notes on an answer of the search, in words: a sentence for each kind.

Assumes: notes hold facts (`search.problem.notes`); only what shows them needs sentences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.problem.notes import Note

# What is said of each kind, with the names of its facts.
SENTENCES = {
    "stopped": "The solver {solver} was stopped by the {by}; this is a local optimum.",
    "presolve-cut-short": "Presolve was cut short by the time limit.",
    "ranking-cut-short": "Cut short after {assignments} assignments; better ones may exist.",
    "too-wide": (
        "Elimination would need tables of more than {elements:.3g} entries; the bound rests on"
        " message passing."
    ),
    "left-to-cp-sat": "Prices left {left} of {candidates} candidates to CP-SAT.",
    "paths-fixed": "Fixed {paths} longest paths in turn; a heuristic.",
    "dead-end": (
        "The paths fixed first leave no allowed candidates on the path from {node}; use the solver"
        " auto."
    ),
    "none-found": "No assignment within the usage limit was found.",
    "nothing-fits": "Nothing fits the usage limit.",
    "node-forbidden": (
        "Nothing is allowed: every candidate of {node} is forbidden, by itself or by what its"
        " neighbours allow; allow one of them."
    ),
    "pairs-forbidden": (
        "Nothing is allowed: forbidden pairs exclude one another along a cycle of edges."
    ),
    "shortage": (
        "Nothing fits: time step {time_step} needs at least {needed:.0f} bytes of {limit:.0f},"
        " {missing:.0f} too many; most is held by {holders}."
    ),
}
# Facts of a shortage before those on who holds how much.
_OF_SHORTAGE = 4


def words(note: Note) -> str:
    """A note as a sentence.

    Parameters
    ----------
    note
        The note; its kind must be one of `SENTENCES`.
    """
    facts = dict(note.facts)
    if note.kind == "shortage":
        facts = dict(note.facts[:_OF_SHORTAGE])
        held = (f"{name} ({usage:.0f} bytes)" for name, usage in note.facts[_OF_SHORTAGE:])
        facts["holders"] = ", ".join(held)
    return SENTENCES[note.kind].format(**facts)

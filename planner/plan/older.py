"""Plans of older versions, as plans of this one.

Version 1 stated the step of the timeline that the search thinks with, not the simulated one. Its
splits and options hold as ever; its figures are kept, and the plan says what they are.
"""

from __future__ import annotations

from typing import Any

from planner.notes import words
from search.problem.notes import Note

_STEP = ("compute", "update", "halo", "reduction", "shuffle")


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """What the file of a plan holds, as one of this version holds it.

    Raises
    ------
    KeyError, TypeError
        When it is no valid plan.
    """
    if document["version"] != 1:
        return document
    causes = document["breakdown_s"]
    known = {cause: causes[cause] for cause in _STEP}
    nothing = dict.fromkeys(("halo", "reduction", "shuffle", "parameter"), 0.0)
    baselines = [
        {name: value for name, value in row.items() if name != "simulated_s"}
        for row in _rows(document["baselines"])
    ]
    more = {
        "version": 2,
        "runtime": "ddp",
        "breakdown_s": {
            **known,
            "slowdown": 0.0,
            "parameter": 0.0,
            "gradient": causes["gradient_exposed"],
            "waiting": 0.0,
        },
        "hidden_s": {**nothing, "gradient": causes["gradient_hidden"]},
        "baselines": baselines,
        "fallbacks": [*document["fallbacks"], words(Note.of("older-plan"))],
    }
    return {**{k: v for k, v in document.items() if k != "simulated"}, **more}


def _rows(rows: object) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError("baselines must be a list of tables")
    return rows

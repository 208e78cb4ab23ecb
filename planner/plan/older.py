"""Plans of older versions, as plans of this one.

Version 1 stated the step of the timeline that the search thinks with, not the simulated one. Its
splits and options hold as ever; its figures are kept, and the plan says what they are. Up to
version 3 nothing was copied to the memory of the host.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from planner.notes import words
from search.problem.notes import Note

_STEP = ("compute", "update", "halo", "reduction", "shuffle")


def upgraded(document: Mapping[str, object]) -> dict[str, object]:
    """What the file of a plan holds, as one of this version holds it.

    Raises
    ------
    KeyError, msgspec.ValidationError
        When it is no valid plan.
    """
    if document["version"] != 1:
        parts = {what: document[what] for what in ("breakdown_s", "hidden_s")}
        known = {
            what: {"host": 0.0, **row} if isinstance(row, Mapping) else row
            for what, row in parts.items()
        }
        return {**document, **(known if document["version"] in (2, 3) else {})}
    causes = msgspec.convert(document["breakdown_s"], dict[str, float])
    rows = msgspec.convert(document["baselines"], list[dict[str, object]])
    said = msgspec.convert(document["fallbacks"], list[str])
    known = {cause: causes[cause] for cause in _STEP}
    nothing = dict.fromkeys(("halo", "reduction", "shuffle", "parameter"), 0.0)
    baselines = [
        {name: value for name, value in row.items() if name != "simulated_s"} for row in rows
    ]
    more = {
        "version": 2,
        "runtime": "ddp",
        "breakdown_s": {
            **known,
            "slowdown": 0.0,
            "parameter": 0.0,
            "gradient": causes["gradient_exposed"],
            "host": 0.0,
            "waiting": 0.0,
        },
        "hidden_s": {**nothing, "host": 0.0, "gradient": causes["gradient_hidden"]},
        "baselines": baselines,
        "fallbacks": [*said, words(Note.of("older-plan"))],
    }
    return {**{k: v for k, v in document.items() if k != "simulated"}, **more}

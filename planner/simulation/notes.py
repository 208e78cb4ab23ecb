"""What a simulated or costed step rests on."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.notes import Note
from costmodels.step.training import Training
from costmodels.units import format_seconds

# Sources of less than this part of the computation are not worth a sentence: they read "0.0%".
LEAST_SHARE = 0.0005
# What is noted of each source of estimates that is no measurement, in this order.
_KINDS = {
    "derived_surface": "estimated-by-surfaces",
    "roofline": "estimated-by-roofline",
    "interpolated": "interpolated",
    "launch": "waits-for-launches",
    "percent_of_peak": "estimated-by-percent-of-peak",
}


def estimate_notes(sources: Mapping[str, float], training: Training) -> tuple[Note, ...]:
    """How much of the computation is no measurement.

    Parameters
    ----------
    sources
        Time of computation by where its estimate comes from. [s]
    training
        Options of the step.
    """
    total = sum(sources.values())
    shares = {kind: sources.get(source, 0.0) / total for source, kind in _KINDS.items()}
    launch_time = format_seconds(training.launch_time)
    return tuple(
        Note.of(kind, share=share, launch_time=launch_time)
        for kind, share in shares.items()
        if share > LEAST_SHARE
    )

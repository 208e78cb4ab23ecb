"""What a simulated or costed step rests on, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.step.training import Training
from costmodels.units import format_seconds

# Sources of less than this part of the computation are not worth a sentence: they read "0.0%".
LEAST_SHARE = 0.0005


def estimate_notes(sources: Mapping[str, float], training: Training) -> list[str]:
    """How much of the computation is no measurement, a sentence each.

    Parameters
    ----------
    sources
        Time of computation by where its estimate comes from. [s]
    training
        Options of the step.
    """
    notes = []
    total = sum(sources.values())
    for name, text in (
        ("derived_surface", "surfaces transferred from akin measurements"),
        ("roofline", "the roofline, for want of measurements"),
        ("interpolated", "interpolation in the table"),
    ):
        share = sources.get(name, 0.0) / total
        if share > LEAST_SHARE:
            notes.append(f"{share:.1%} of the computation is estimated by {text}")
    waiting = sources.get("launch", 0.0) / total
    if waiting > LEAST_SHARE:
        notes.append(
            f"{waiting:.1%} of the computation waits for the launch of operations "
            f"({format_seconds(training.launch_time)} each, --launch-time), which captured graphs "
            "would save"
        )
    return notes

"""Which plans a simpler one may be chosen from, so that more memory never makes the choice slower.

A simpler plan may be a little slower than the fastest one. Were that all, the choice could get
slower as the memory grows: a simple plan that needs more memory would come within reach of one that
was chosen without it. So a plan is out where another one is faster and needs no more memory. Of
what is left, a slower plan needs less memory than a faster one. What is chosen with more memory was
then either a rival of what is chosen with less, or is faster.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.planning.decision.simulator import SimulatedChoices

# Times that differ by less than this part of the fastest are equal: what is below it comes from the
# order in which terms were added up, or from a bucket more or less.
EQUAL = 1e-3


def undominated(trials: Sequence[SimulatedChoices]) -> list[SimulatedChoices]:
    """Those for which no other one is faster, by more than what is equal, with no more memory."""
    found: list[SimulatedChoices] = []
    for trial in sorted(trials, key=lambda trial: trial.seconds):
        faster = (other for other in found if other.seconds < trial.seconds / (1.0 + EQUAL))
        if all(other.peak_memory > trial.peak_memory for other in faster):
            found.append(trial)
    return found

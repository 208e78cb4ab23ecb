"""What would make a step fit that does not, tried by simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costmodels.errors import InputError
from costmodels.strategy.blocks import is_transformer
from costmodels.units import format_bytes
from planner.request.named_degrees import with_named_degrees
from planner.request.parts import Degrees
from planner.request.request import Request
from planner.simulation.result import Simulation
from planner.simulation.run import simulate_request


def remedy(request: Request, found: Simulation) -> str | None:
    """The first option that makes a strategy of degrees fit, in a sentence; None without one.

    Parameters
    ----------
    request
        What was asked.
    found
        Its answer.
    """
    request = with_named_degrees(request)
    if found.fits is not False or request.degrees is None or not request.degrees.asked_for:
        return None
    for options, degrees in _cheaper(request.degrees, found):
        try:
            other = simulate_request(replace(request, degrees=degrees))
        except InputError:
            continue
        if other.fits and other.peak_memory is not None:
            return f"It would fit with {options}: {format_bytes(other.peak_memory)} a GPU."
    return None


def _cheaper(degrees: Degrees, found: Simulation) -> Iterator[tuple[str, Degrees]]:
    """Degrees that take less memory, what costs the least time first."""
    if not is_transformer(found.subject.graph):
        return
    strategy = found.subject.strategy
    divided: dict[str, object] = {}
    if degrees.tp > 1 and not degrees.sequence_parallel:
        divided = {"sequence_parallel": True}
        yield "--sequence-parallel", replace(degrees, **divided)  # type: ignore[arg-type]
    if degrees.sharding in (None, 0) and not strategy.memory:
        yield "--zero 1", replace(degrees, zero=1)
    one_by_one = replace(degrees, micro_batches=None, micro_batch_size=1)
    if degrees.micro_batch_size != 1:
        yield "--micro-batch-size 1", one_by_one
    if degrees.recompute == "none":
        for what in ("operations", "full"):
            yield f"--recompute {what}", replace(degrees, recompute=what)
    together = replace(one_by_one, recompute="full", **divided)  # type: ignore[arg-type]
    words = "--micro-batch-size 1 --recompute full"
    yield f"--sequence-parallel {words}" if divided else words, together

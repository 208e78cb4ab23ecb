"""What comparing a plan with one process found, in words and as facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from planner.torch.verify.found import Verification


def verification_facts(found: Verification) -> dict[str, object]:
    """All of it, under stable keys."""
    facts: dict[str, object] = msgspec.to_builtins(found)
    return {"holds": found.holds, "faults": found.faults, **facts}


def verification_lines(found: Verification) -> Iterator[str]:
    """The verdict, and what it rests on."""
    image = " x ".join(f"{axis} {extent}" for axis, extent in found.image.items())
    yield (
        f"{found.model} on {found.ranks} ranks, scaled down to {found.batch} samples of {image}, "
        "in float64"
    )
    yield ""
    for text, count in found.exercised.items():
        yield f"  {count:4} x {text}"
    for text in found.left_out:
        yield f"  not run: a split of {text}"
    yield ""
    apart = max(row[0] for row in found.gradients)
    largest = max(row[1] for row in found.gradients)
    yield f"loss of {len(found.losses)} steps differs by at most {max(found.losses):.1e}"
    yield f"gradients differ by at most {apart:.1e}, where the largest is {largest:.1e}"
    yield f"weights after these steps differ by at most {found.weights[0]:.1e}"
    yield f"{found.checked} local shapes compared, {len(found.shapes)} differ from the plan"
    for name, (count, numbers) in found.messages.items():
        yield f"{name}: {count} of layers, {numbers:.0f} numbers received by the busiest ranks"
    reasons: dict[str, int] = {}
    for one in found.differences:
        if one.reason:
            reasons[one.reason] = reasons.get(one.reason, 0) + 1
    sent = sum(count for count, _ in found.messages.values())
    if sent:
        same = max(sent - len(found.differences), 0)
        yield f"{same} of these are as large as the cost models charge"
    for reason, count in reasons.items():
        yield f"  {count} not: {reason}"
    yield ""
    for fault in found.faults:
        yield f"wrong: {fault}"
    yield (
        "the plan holds: it trains as one process does" if found.holds else "the plan does not hold"
    )

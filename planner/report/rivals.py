"""The usual strategies beside a plan, in figures and words."""

from __future__ import annotations

from msgspec import Struct

from costmodels.units import format_seconds
from planner.plan import Baseline, Plan
from planner.report.figures import much


class Rival(Struct, frozen=True, kw_only=True):
    """A usual strategy beside the plan.

    Parameters
    ----------
    name
        The strategy.
    time, memory
        Step and peak memory, None where it cannot be used. [s], [B]
    speed_up
        How many times faster the plan is, None without a time.
    fits
        Whether it could be used.
    remark
        Why it cannot be used, does not fit or has no figures.
    costed
        Whether there was time to find out.
    """

    name: str
    time: float | None
    memory: float | None
    speed_up: float | None
    fits: bool
    remark: str
    costed: bool

    @property
    def short(self) -> str:
        """The name without its degrees."""
        return self.name.partition(":")[0]

    @property
    def said(self) -> str:
        """Its degrees, and why it cannot be used."""
        degrees = self.name.partition(":")[2].replace(",", ", ").replace("_", " ")
        return "; ".join(text for text in (degrees, self.remark) if text)

    @property
    def verdict(self) -> str:
        """Whether it is a choice at all, in a few words."""
        if self.fits:
            return ""
        if not self.costed:
            return "not costed"
        return "cannot be used" if self.time is None else "does not fit"


def usual_rivals(plan: Plan) -> list[Rival]:
    """The usual strategies beside the plan."""

    def speed_up_over(baseline: Baseline) -> float | None:
        return None if baseline.step_time_s is None else baseline.step_time_s / plan.step_time_s

    return [
        Rival(
            name=b.name,
            time=b.step_time_s,
            memory=b.peak_memory_bytes,
            speed_up=speed_up_over(b),
            fits=b.fits,
            remark=b.reason,
            costed=b.costed,
        )
        for b in plan.baselines
    ]


def best_rival(plan: Plan) -> Rival | None:
    """The fastest usual strategy that fits."""
    usable = [r for r in usual_rivals(plan) if r.fits and r.time is not None]
    return min(usable, key=lambda r: r.speed_up or 0.0, default=None)


def rival_sentence(plan: Plan) -> str:
    """The plan beside the fastest usual strategy that fits."""
    rival = best_rival(plan)
    if rival is None or rival.speed_up is None or rival.time is None:
        return no_rival(plan)
    much_faster = much(rival.speed_up)
    time = "" if much_faster == "as fast as" else f" ({format_seconds(rival.time)})"
    return f"{much_faster} {rival.short}{time}, the best usual strategy that fits"


def no_rival(plan: Plan) -> str:
    """That no usual strategy stands beside the plan."""
    if all(one.costed for one in plan.baselines):
        return "none of the usual strategies can be used"
    if any(one.costed for one in plan.baselines):
        return "none of the usual strategies that were compared can be used"
    return "the usual strategies were not compared"


def called(strategy: str) -> str:
    """A usual strategy in a sentence: a way to split, or a framework's way to train."""
    name, _, degrees = strategy.partition(":")
    return f"the usual {name}" if degrees else f"{name} parallelism"

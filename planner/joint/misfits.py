"""What is told not to fit before its step is simulated."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from costmodels.strategy import Strategy
from planner.joint.activations import LeastOfStages
from planner.joint.choices import Choice
from planner.joint.estimate import ROUNDING
from planner.request.setting import Setting


class Misfits(Struct, kw_only=True, eq=False):
    """What of one question is not simulated, since it would not fit.

    Parameters
    ----------
    setting
        The question.
    least
        What stages hold at least, None for a network with attention.
    short
        By how much each of them holds more than a device has, at least. [B]
    """

    setting: Setting
    least: LeastOfStages | None
    short: dict[Choice, float] = field(default_factory=dict)

    def keeps_more(self, choice: Choice, strategy: Strategy) -> bool:
        """Whether weights and activations alone are known to be too much.

        Parameters
        ----------
        choice, strategy
            The choice, and what it comes to.
        """
        if self.least is None:
            return False
        device = self.setting.cluster.device
        held = self.least.of(choice, strategy.stages) * (1.0 - ROUNDING)
        return held > device.memory - device.reserved_memory

    def holds_more(self, choice: Choice, short: float) -> bool:
        """Whether a choice is known not to fit, which is kept in mind.

        Parameters
        ----------
        choice
            The choice.
        short
            By how much it holds more than a device has at least, negative below. [B]
        """
        if short <= 0.0:
            return False
        self.short[choice] = short
        return True

    def held(self, choice: Choice) -> float:
        """What a device would hold at least of one of them. [B]"""
        return self.setting.cluster.device.memory + self.short[choice]

    def smallest_first(self) -> Iterator[Choice]:
        """Those that hold the least before others, as long as nothing is known to hold less."""
        yield from sorted(self.short, key=self.short.__getitem__)

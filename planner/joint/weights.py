"""What every device holds at least of weights, gradients and optimizer state under a choice."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from costmodels.simulation import Runtime
from planner.joint.choices import Choice
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.request.parts import Degrees
from planner.request.setting import Setting


class LeastWeights:
    """What weights hold, by counts of parameters alone.

    Parameters
    ----------
    setting
        The question.
    """

    def __init__(self, setting: Setting) -> None:
        layers, runtime = setting.graph.compute_layers, searched_runtime(setting)
        self.experts = float(sum(one.parameters for one in layers if "expert" in one.dims))
        self.others = float(setting.graph.parameters) - self.experts
        device = setting.cluster.device
        self.usable = device.memory - device.reserved_memory
        self.sizes: Mapping[bool, tuple[float, float, float]] = {
            sharded: _bytes_each(setting, choice_runtime(runtime, 3 if sharded else 0))
            for sharded in (False, True)
        }

    @property
    def least_gradient(self) -> float:
        """Of a parameter, whatever its gradient is cut into. [B]"""
        return min(gradient for _, gradient, _ in self.sizes.values())

    def of(self, choice: Choice, waiting: Collection[str] | None = None) -> float:
        """What the fullest group of devices holds at least: the mean of all. [B]

        Parameters
        ----------
        choice
            The choice.
        waiting
            What waits in the memory of the hosts, if not as the choice says.
        """
        weight, gradient, state = self.sizes[choice.zero > 2]
        waiting = choice.offload if waiting is None else waiting
        weight *= "weights" not in waiting
        state *= "optimizer" not in waiting
        inside, most = choice.inside, choice.shard_size or math.inf
        ranks, total = choice.dp * inside.cp * inside.tp, 0.0
        for parameters, ways in self._rows(inside):
            same = max(min(ranks / ways, most), 1.0)
            each = weight / (same if choice.zero > 2 else 1.0)
            each += gradient / (same if choice.zero > 1 else 1.0)
            each += state / (same if choice.zero > 0 else 1.0)
            total += parameters / ways * each
        return total / choice.pp

    def least_parameters(self, choice: Choice) -> float:
        """Those of a device at least, as the mean of all groups, where no replica cuts them."""
        return sum(parameters / ways for parameters, ways in self._rows(choice.inside)) / choice.pp

    def _rows(self, inside: Degrees) -> tuple[tuple[float, int], tuple[float, int]]:
        """Parameters of a kind, and the ways that those are cut. [items], [ways]"""
        return (self.others, inside.tp), (self.experts, inside.ep * inside.ways_in_expert)

    def fit(self, choice: Choice, waiting: Collection[str] | None = None) -> bool:
        """Whether that is within the memory of a device."""
        return self.of(choice, waiting) <= self.usable


def _bytes_each(setting: Setting, runtime: Runtime) -> tuple[float, float, float]:
    training = setting.under(runtime).machine.training
    return training.weight_size, training.gradient_size, training.state_size

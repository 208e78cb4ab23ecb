"""What may wait in the memory of the hosts where a choice does not fit: copies, updates and room.

Copies run beside computation, unit of layers by unit, and what they take longer is waited for. The
processors of the hosts update the weights whose optimizer's state waits there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.compute.work import TRAFFIC
from costmodels.simulation.host_links import host_of
from planner.joint.choices import Choice
from planner.joint.micro_batch import MicroBatch
from planner.request.inputs.degrees import OFFLOADED
from planner.request.setting import Setting

Floats = NDArray[np.float64]
# Whatever may wait in the memory of the hosts, less of it first.
WAYS = tuple(names for count in (1, 2, 3) for names in itertools.combinations(OFFLOADED, count))
WAYS_WITHOUT_WEIGHTS = tuple(names for names in WAYS if "weights" not in names)
# Units of layers whose tensors are on the device although they wait in the host: in use, under way.
UNITS = 2


def offloaded(
    choice: Choice, fits: Callable[[Choice, tuple[str, ...]], bool] | None = None
) -> list[Choice]:
    """A choice with whatever may wait in the memory of the hosts.

    Parameters
    ----------
    choice
        Without.
    fits
        Whether it may fit with that in the hosts.
    """
    ways = ways_to_wait(choice)
    return [replace(choice, offload=names) for names in ways if fits is None or fits(choice, names)]


def ways_to_wait(choice: Choice) -> tuple[tuple[str, ...], ...]:
    """Whatever of a choice may wait in the memory of the hosts, less of it first."""
    return WAYS if _weights_can_wait(choice) else WAYS_WITHOUT_WEIGHTS


def most_waiting(choice: Choice) -> tuple[str, ...]:
    """All of a choice that may wait in the memory of the hosts."""
    return ways_to_wait(choice)[-1]


def can_wait(choice: Choice) -> bool:
    """Whether weights that wait in the hosts are cut like their optimizer's state."""
    return "weights" not in choice.offload or _weights_can_wait(choice)


def _weights_can_wait(choice: Choice) -> bool:
    return choice.zero in (0, 3)


def least_copied(setting: Setting, choice: Choice, parameters: float) -> float:
    """What copies of weights and of their gradients, and updates in the hosts take at least. [s]

    Parameters
    ----------
    setting, choice
        The question, and a choice of which some waits in the memory of the hosts.
    parameters
        Of a device whose weights are whole. [items]
    """
    rates = HostRates.mean(setting)
    ranks = choice.dp * choice.inside.cp
    cut = parameters / (ranks if choice.zero > 2 else 1)
    updated = parameters / (ranks if choice.zero else 1)
    found = 0.0
    if "weights" in choice.offload:
        found = choice.micro_batches * cut * rates.sent * rates.copy
    if "optimizer" in choice.offload:
        found = max(found, updated * rates.update)
    return found


class HostRates(Struct, frozen=True, kw_only=True):
    """What the memory of the hosts and the links to it take.

    Parameters
    ----------
    copy
        Of a byte in one direction, which all devices copy at once. [s/B]
    shared
        Of that in the memory of the host, which both directions and updates share. [s/B]
    update
        Of a parameter of each device. [s]
    sent
        Of a weight, as it is copied. [B]
    memory
        Of a host. [B]
    devices
        Of the question in a host. [items]
    """

    copy: float
    shared: float
    update: float
    sent: float
    memory: float
    devices: int

    @classmethod
    def of(cls, setting: Setting, devices: int) -> HostRates:
        """Where so many neighbouring devices at least do the same.

        Parameters
        ----------
        setting
            The question.
        devices
            How many. [items]
        """
        host = host_of(setting.cluster)
        on_link = float(min(devices, host.devices_per_link))
        return cls._shared(setting, on_link, min(devices, setting.cluster.devices_per_host))

    @classmethod
    def mean(cls, setting: Setting) -> HostRates:
        """Where all devices of a question do the same, whichever of them at a time.

        No link and no host is through before the mean of all.
        """
        gpus, host = setting.gpus, host_of(setting.cluster)
        on_link = gpus / math.ceil(gpus / host.devices_per_link)
        return cls._shared(
            setting, on_link, gpus / math.ceil(gpus / setting.cluster.devices_per_host)
        )

    @classmethod
    def _shared(cls, setting: Setting, on_link: float, in_host: float) -> HostRates:
        """Where some devices share a link to a host, and some its memory.

        Parameters
        ----------
        setting
            The question.
        on_link, in_host
            How many. [items]
        """
        cluster, training = setting.cluster, setting.machine.training
        host = host_of(cluster)
        each = in_host / host.memory_bandwidth
        _, _, traffic = TRAFFIC[f"{training.optimizer}_update", "forward"]
        return cls(
            copy=max(on_link / host.link_bandwidth, each),
            shared=each,
            update=traffic * each,
            sent=float(training.held.weights),
            memory=host.memory,
            devices=min(setting.gpus, cluster.devices_per_host),
        )

    def both_ways(self, out: Floats, into: Floats) -> Floats:
        """What copies in both directions take at once. [s]

        Parameters
        ----------
        out, into
            To the host and from it. [B]
        """
        found: Floats = np.maximum(np.maximum(out, into) * self.copy, (out + into) * self.shared)
        return found


class Copies(Struct, frozen=True, kw_only=True, eq=False):
    """What a device copies for each layer of the network.

    Parameters
    ----------
    forward_out, forward_in, backward_in
        In a micro-batch. [B]
    update_out, update_in
        Once a step, for the update. [B]
    updated
        Parameters that the hosts update. [items]
    """

    forward_out: Floats
    forward_in: Floats
    backward_in: Floats
    update_out: Floats
    update_in: Floats
    updated: Floats

    @classmethod
    def of(
        cls,
        choice: Choice,
        inside: MicroBatch,
        ranks: Floats,
        sent: float,
        units: Sequence[Sequence[int]],
    ) -> Copies:
        """Those of a choice.

        Parameters
        ----------
        choice, inside
            The choice, and what a micro-batch of it costs.
        ranks
            That hold the weight of each layer. [items]
        sent
            Of a weight, as it is copied. [B]
        units
            The layers of each unit.
        """
        nothing = np.zeros(len(inside.kept))
        kept = nothing
        if "activations" in choice.offload:
            # the backward pass follows at once, and begins with what is still there
            kept = inside.kept.copy()
            kept[[place for places in units[-UNITS:] for place in places]] = 0.0
        state = ranks if choice.zero else 1.0
        weights, updated, back = nothing, nothing, nothing
        if "weights" in choice.offload:
            weights = inside.numbers * sent / (ranks if choice.zero > 2 else 1.0)
        gradients = nothing
        if "optimizer" in choice.offload:
            updated, gradients = inside.parameters / state, inside.gradients / state
            back = nothing if "weights" in choice.offload else updated * sent
        else:
            # updated weights go back
            gradients = inside.parameters * (weights / np.maximum(inside.numbers, 1.0))
        return cls(
            forward_out=kept,
            forward_in=weights,
            backward_in=kept + weights,
            update_out=gradients,
            update_in=back,
            updated=updated,
        )

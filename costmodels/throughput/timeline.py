"""What a worker does on its own in a step, once it knows when its parameters come.

Computation of one worker is shared with nobody, so between two transfers nothing has to be
simulated: forward passes, backward passes and what happens inside a host of several GPUs are
chains, in which an operation starts when the one before it is over and what it waits for is there.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.throughput.profile import WorkerProfile

Floats = NDArray[np.float64]


def chain(ready: Floats, durations: Floats) -> Floats:
    """When each of operations that run one after the other ends. [s]

    Parameters
    ----------
    ready
        When what it waits for is there. [s]
    durations
        How long it takes. [s]
    """
    before = np.cumsum(durations) - durations
    ends: Floats = np.maximum.accumulate(ready - before) + before + durations
    return ends


class WorkerTimeline(Struct, frozen=True, kw_only=True, eq=False):
    """The chains of one kind of worker; arrays over layers with parameters.

    Parameters
    ----------
    profile
        The profile, merged.
    overlap
        Whether computation of a layer waits for that layer only, and its gradients for nothing
        else; otherwise phases follow one another.
    arrivals
        Bytes that have come when a layer is complete, in the order of the forward pass. [B]
    sizes, updates
        Gradients in the order in which they are sent, and what applying them takes. [B], [s]
    """

    profile: WorkerProfile
    overlap: bool
    arrivals: Floats
    sizes: Floats
    updates: Floats

    @classmethod
    def of(cls, profile: WorkerProfile, overlap: bool) -> WorkerTimeline:
        """The timeline of a profile, which need not be merged."""
        merged = profile.merged()
        sends = merged.num_bytes > 0
        return cls(
            profile=merged,
            overlap=overlap,
            arrivals=np.cumsum(merged.num_bytes),
            sizes=merged.num_bytes[sends][::-1],
            updates=merged.update[sends][::-1],
        )

    def releases(self, arrivals: Floats, factor: float = 1.0) -> tuple[Floats, float]:
        """When gradients can be sent, in that order, and when the backward pass is over. [s]

        Parameters
        ----------
        arrivals
            When the parameters of each layer have come. [s]
        factor
            Computation of this step relative to the profile.
        """
        one = self.profile
        ready = arrivals if self.overlap else np.full(len(arrivals), arrivals[-1])
        ready = chain(ready, one.broadcast)
        if not self.overlap:
            ready = np.full(len(ready), ready[-1])
        forward = chain(ready, factor * one.forward)[-1]
        done = forward + np.cumsum(factor * one.backward[::-1])
        if not self.overlap:
            done = np.full(len(done), done[-1])
        done = chain(done, one.reduce[::-1])
        if not self.overlap:
            done = np.full(len(done), done[-1])
        return done[one.num_bytes[::-1] > 0], float(done[-1])

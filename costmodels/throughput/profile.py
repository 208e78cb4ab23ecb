"""What one worker does in a step of distributed SGD, and the links by which workers exchange.

A step receives the parameters layer by layer, runs forward over the layers and backward in the
reverse order, and sends the gradients of each layer. Assumes, as Li et al. 2022 do, that a transfer
takes its bytes over its bandwidth (their Fig. 6), that gradients are as large as the parameters
that come back, and that computation of one worker does not disturb another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from costmodels.errors import InputError

Floats = NDArray[np.float64]

_ARRAYS = ("forward", "backward", "num_bytes", "update", "broadcast", "reduce")


def _nothing() -> Floats:
    return np.zeros(1)


class WorkerProfile(Struct, frozen=True, kw_only=True, eq=False):
    """One step of one kind of worker; arrays hold the layers in the order of the forward pass.

    Parameters
    ----------
    name
        What the worker is.
    samples
        Samples of a step of this worker. [samples]
    forward, backward
        Computation of each layer. [s]
    num_bytes
        Parameters of each layer, and so gradients; 0 where it has none. [B]
    update
        Applying the gradients of each layer of one worker; nothing by default. [s]
    broadcast, reduce
        Within a host of several GPUs: handing the parameters of a layer to the other GPUs, and
        all-reducing its gradients among them; nothing by default. [s]
    """

    name: str
    samples: float
    forward: Floats
    backward: Floats
    num_bytes: Floats
    update: Floats = field(default_factory=_nothing)
    broadcast: Floats = field(default_factory=_nothing)
    reduce: Floats = field(default_factory=_nothing)

    def __post_init__(self) -> None:
        count = np.size(self.forward)
        for name in _ARRAYS:
            value = np.asarray(getattr(self, name), dtype=float)
            if value.size not in (1, count):
                raise InputError(
                    f"the worker {self.name} must have one {name} for each of its {count} layers "
                    f"but has {value.size}; give as many"
                )
            array = np.array(np.broadcast_to(value, count))
            array.flags.writeable = False
            structs.force_setattr(self, name, array)
        if not (math.isfinite(self.samples) and self.samples > 0):
            raise InputError(
                f"the worker {self.name} must train on more than 0 samples a step but trains on "
                f"{self.samples:g}; raise its batch"
            )
        for name in _ARRAYS:
            values = getattr(self, name)
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise InputError(
                    f"the worker {self.name} must have a {name} of at least 0 in every layer but "
                    f"has {np.min(values):g}; correct it"
                )
        if not self.num_bytes.sum() > 0:
            raise InputError(
                f"the worker {self.name} must have parameters to exchange but has none; give a "
                "network that learns"
            )
        if not (self.forward.sum() > 0 and self.backward.sum() > 0):
            raise InputError(
                f"the worker {self.name} must take more than 0 s forward and backward but takes "
                f"{self.forward.sum():g} s and {self.backward.sum():g} s; give its computation"
            )

    @property
    def forward_time(self) -> float:
        """T_F: the whole forward pass. [s]"""
        return float(self.forward.sum())

    @property
    def backward_time(self) -> float:
        """T_B: the whole backward pass. [s]"""
        return float(self.backward.sum())

    @property
    def compute_time(self) -> float:
        """T_F + T_B. [s]"""
        return self.forward_time + self.backward_time

    @property
    def host_time(self) -> float:
        """All that happens inside a host but computation. [s]"""
        return float(self.broadcast.sum() + self.reduce.sum())

    @property
    def update_time(self) -> float:
        """T_S: applying all gradients of one worker. [s]"""
        return float(self.update.sum())

    @property
    def model_bytes(self) -> float:
        """M: all parameters. [B]"""
        return float(self.num_bytes.sum())

    def merged(self) -> WorkerProfile:
        """The same step with every layer without parameters joined to the one before it.

        Nothing is approximated: such a layer waits for no transfer, and its backward pass comes
        before that of the layer it joins. Layers before the first with parameters stay apart.
        """
        starts = np.flatnonzero(self.num_bytes > 0)
        if starts[0] > 0:
            starts = np.concatenate([[0], starts])
        joined: dict[str, Any] = {
            name: np.add.reduceat(getattr(self, name), starts) for name in _ARRAYS
        }
        return WorkerProfile(name=self.name, samples=self.samples, **joined)


class WorkerClass(Struct, frozen=True, kw_only=True):
    """Identical workers.

    Parameters
    ----------
    profile
        What each of them does.
    count
        How many there are. [items]
    """

    profile: WorkerProfile
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(
                f"there must be at least 1 worker of {self.profile.name} but there are "
                f"{self.count}; raise the number"
            )


class Links(Struct, frozen=True, kw_only=True):
    """How workers reach each other and the parameter servers.

    Every worker and every server has one link of the same bandwidth in each direction. Several
    servers hold equal parts of every layer, so a worker talks to all of them at once.

    Parameters
    ----------
    bandwidth
        B: one link in one direction. [B/s]
    flow_cap
        What one flow between a worker and a server is limited to, or None. [B/s]
    servers
        Number of parameter servers. [items]
    """

    bandwidth: float
    flow_cap: float | None = None
    servers: int = 1

    def __post_init__(self) -> None:
        for what, value in (("bandwidth", self.bandwidth), ("cap of a flow", self.flow_cap)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError.rule(
                    f"the {what}",
                    "be more than 0 and finite",
                    f"{value:g} B/s",
                    'give it like "10 Gbps"',
                )
        if self.servers < 1:
            raise InputError(
                f"there must be at least 1 parameter server but there are {self.servers}; raise "
                "the number"
            )

    @property
    def capacity(self) -> float:
        """What all servers can receive, or send, together. [B/s]"""
        return self.bandwidth * self.servers

    @property
    def worker_rate(self) -> float:
        """What one worker can send, or receive, at most: its own link and the cap. [B/s]"""
        if self.flow_cap is None:
            return self.bandwidth
        return min(self.bandwidth, self.flow_cap * self.servers)


def check_classes(classes: tuple[WorkerClass, ...]) -> float:
    """Bytes of the model, which all workers must agree in. [B]

    Raises
    ------
    InputError
        When there are no workers, or they train different models.
    """
    if not classes:
        raise InputError("there must be at least one kind of worker but there is none; give one")
    sizes = [one.profile.model_bytes for one in classes]
    if not np.allclose(sizes, sizes[0], rtol=1e-9):
        raise InputError(
            f"all workers must train one model but theirs have from {min(sizes):g} to "
            f"{max(sizes):g} bytes; give profiles of one model"
        )
    return sizes[0]

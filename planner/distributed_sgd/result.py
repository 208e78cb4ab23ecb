"""Predictions of distributed SGD: a row for each number of workers, and where throughput saturates.

Saturation has one definition for both models: it begins at the first number of workers from which
on every worker that is added brings less than a tenth of what a worker brings alone. Of numbers
that leave some out, the workers between two of them share what they add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from costmodels.throughput import Predicted, SimulatedThroughput

SATURATION = 0.1
"""Gain of a further worker, relative to one alone, below which throughput is saturated."""
PART = 0.1
"""Relative difference from which on the two models are said to part."""


class WorkerKind(Struct, frozen=True, kw_only=True):
    """One kind of worker as it is on its own.

    Parameters
    ----------
    device
        Its GPUs.
    gpus
        GPUs of its host. [items]
    samples
        Samples of a step of the worker. [samples]
    forward_s, backward_s, update_s
        Passes on a GPU, and applying its gradients. [s]
    host_s
        What handing parameters and gradients around within the host adds. [s]
    """

    device: str
    gpus: int
    samples: float
    forward_s: float
    backward_s: float
    update_s: float
    host_s: float


class ThroughputRow(Struct, frozen=True, kw_only=True):
    """Predictions for one number of workers.

    Parameters
    ----------
    workers, counts
        Workers, and of each kind. [items]
    coarse, fine
        What the models say; None for a model that was not asked for.
    fine_rule
        How flows shared links in the simulation: "processor-sharing", "first-come", "hybrid" (mean
        of both) or "".
    coarse_efficiency, fine_efficiency
        Throughput relative to that of the same workers each alone.
    """

    workers: int
    counts: tuple[int, ...]
    coarse: Predicted | None
    fine: SimulatedThroughput | None
    fine_rule: str
    coarse_efficiency: float | None
    fine_efficiency: float | None

    @property
    def difference(self) -> float | None:
        """The coarse throughput relative to the fine one, less one."""
        if self.coarse is None or self.fine is None:
            return None
        return self.coarse.throughput / self.fine.throughput - 1.0

    @property
    def part(self) -> bool:
        """Whether the models are more than a tenth apart."""
        return self.difference is not None and abs(self.difference) > PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Predicted throughput of distributed SGD: a row for each number of workers.

    Parameters
    ----------
    model
        The network.
    kinds
        The workers.
    architecture, mode, overlap
        The question.
    model_bytes
        Parameters that travel. [B]
    transfer_s
        One transfer of all of them to or from one worker alone. [s]
    bandwidth, flow_cap, servers
        The links. [B/s], [B/s], [items]
    rows
        Predictions, one for each number of workers.
    coarse_saturation, fine_saturation
        Number of workers from which on another one hardly pays; None if there is none among the
        rows, or the model was not asked for. [items]
    defaults, notes
        What was chosen and assumed, in sentences.
    """

    model: str
    kinds: tuple[WorkerKind, ...]
    architecture: str
    mode: str
    overlap: bool
    model_bytes: float
    transfer_s: float
    bandwidth: float
    flow_cap: float | None
    servers: int
    rows: tuple[ThroughputRow, ...]
    coarse_saturation: int | None
    fine_saturation: int | None
    defaults: tuple[str, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Everything, as plain data."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        for row, given in zip(facts["rows"], self.rows, strict=True):
            row["difference"], row["part"] = given.difference, given.part
        return facts


def efficiency(
    found: Predicted | SimulatedThroughput | None,
    alone: Sequence[Predicted | SimulatedThroughput | None],
    numbers: Sequence[int],
) -> float | None:
    """Throughput relative to that of the same workers, each alone; None where it is unknown.

    Parameters
    ----------
    found
        What a model says of all workers together.
    alone
        What it says of one worker of each kind.
    numbers
        Workers of each kind. [items]
    """
    if found is None:
        return None
    ideal = sum(n * one.throughput for n, one in zip(numbers, alone, strict=True) if one)
    return found.throughput / ideal


def saturation(rows: Sequence[ThroughputRow], model: str) -> int | None:
    """The first number of workers after which none adds a tenth of what it would alone. [items]"""
    if getattr(rows[0], model) is None:
        return None
    first = None
    for row, following in zip(rows[-2::-1], rows[:0:-1], strict=True):
        # throughput in workers that work alone
        here, there = (
            one.workers * getattr(one, f"{model}_efficiency") for one in (row, following)
        )
        if (there - here) / (following.workers - row.workers) >= SATURATION:
            break
        first = row.workers
    return first

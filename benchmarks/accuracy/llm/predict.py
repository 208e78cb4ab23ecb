"""Predictions of configurations of transformer training.

Rows of one configuration are predicted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.accuracy.llm.machines import llm_cluster
from benchmarks.accuracy.llm.networks import network_of
from benchmarks.accuracy.llm.rows import Configuration, Measurement, framework_entry
from benchmarks.accuracy.words import Skip
from costmodels.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted step.

    Parameters
    ----------
    seconds
        The step. [s]
    memory
        Peak of a device, with what is outside of the framework's allocator. [B]
    outside
        What of it is outside of the allocator. [B]
    capacity
        Memory of the device. [B]
    model_flops
        Of a step, without recomputation. [FLOPs]
    """

    seconds: float
    memory: float
    outside: float
    capacity: float
    model_flops: float


class Predictions:
    """Predictions by configuration."""

    def __init__(self) -> None:
        self._known: dict[Configuration, Prediction | str] = {}

    def of(self, measured: Measurement) -> Prediction:
        """The prediction of a row, or `Skip` with the reason why there is none."""
        asked = measured.configuration
        if asked not in self._known:
            try:
                self._known[asked] = predicted(asked)
            except Skip as error:
                self._known[asked] = str(error)
            except InputError as error:
                self._known[asked] = f"cannot be run: {error}"
        found = self._known[asked]
        if isinstance(found, str):
            raise Skip(found)
        return found


TEMP_CACHE = {}


def predicted(of: Configuration) -> Prediction:
    from planner.api import simulate
    from planner.request.parts import Degrees

    entry = framework_entry(of)
    cluster = llm_cluster(of.gpu, of.gpus, of.per_host, of.links, of.measured_links)
    m = of.global_batch // (of.micro_batch * of.dp)
    if of.global_batch % (of.micro_batch * of.dp):
        raise Skip("global batch is no multiple")
    rt = {"nanotron": "zero1" if of.zero else "ddp"}.get(
        entry["runtime"], "fsdp" if of.fsdp else ("zero1" if of.zero else "ddp")
    )
    net = network_of(of)

    def run(mm):
        s = simulate(
            net,
            gpus=of.gpus,
            cluster=cluster,
            precision=of.precision if of.precision != "fp8" else "bf16",
            optimizer="adam",
            global_batch_size=mm * of.micro_batch * of.dp,
            runtime=rt,
            degrees=Degrees(
                dp=of.dp,
                tp=of.tp,
                pp=of.pp,
                micro_batches=mm,
                chunks=of.chunks,
                schedule="interleaved" if of.chunks > 1 else "1f1b",
                recompute=of.recompute == "full",
            ),
        )
        return s

    unit = of.pp
    if m > 3 * unit:
        a, b = unit, 2 * unit
        sa, sb = run(a), run(b)
        t = sb.step_time + (m - b) * (sb.step_time - sa.step_time) / (b - a)
        fl = sb.summary()["model_flops"] / b * m
        s = sb
    else:
        s = run(m)
        t, fl = s.step_time, s.summary()["model_flops"]
    return Prediction(
        seconds=t,
        memory=s.peak_memory,
        outside=cluster.device.reserved_memory,
        capacity=cluster.device.memory,
        model_flops=fl,
    )

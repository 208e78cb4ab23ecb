"""Predictions of configurations of transformer training.

Rows of one configuration are predicted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.accuracy.llm.machines import buffers, checks, llm_cluster
from benchmarks.accuracy.llm.measurement import Configuration, Measurement, framework_entry
from benchmarks.accuracy.llm.networks import llm_network
from benchmarks.accuracy.words import Skip
from costmodels.cluster import Cluster
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.simulation import load_runtime
from costmodels.step.utilisation import model_flops
from planner.api import simulate
from planner.simulation.result import Simulation

# Micro-batches that are simulated, as multiples of the stages; more of them follow in proportion.
_SIMULATED = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmPrediction:
    """A predicted step.

    Parameters
    ----------
    seconds
        The step. [s]
    memory
        Peak of a device, with what is outside of the framework's allocator. [B]
    of_first
        The same of a device of the first stage. [B]
    outside
        What of it is outside of the allocator. [B]
    capacity
        Memory of the device. [B]
    lasting_short
        How much more a device would hold, were no memory given back in every step; negative where
        there is room. [B]
    model_flops
        Of a step, without recomputation. [FLOPs]
    """

    seconds: float
    memory: float
    of_first: float
    outside: float
    capacity: float
    lasting_short: float
    model_flops: float


class Predictions:
    """Predictions by configuration."""

    def __init__(self) -> None:
        self._known: dict[Configuration, LlmPrediction | str] = {}

    def of(self, measured: Measurement) -> LlmPrediction:
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


def predicted(of: Configuration, sustained: float | None = None) -> LlmPrediction:
    """The prediction of a configuration.

    Parameters
    ----------
    of
        What is trained, and how.
    sustained
        What the device holds under its limit on power, None for what is built in.

    Raises
    ------
    Skip
        When its machine is not known, or its batch is no multiple of what a step takes.
    InputError
        When it cannot be run.
    """
    each = of.micro_batch * of.dp
    if of.global_batch % each:
        raise Skip("the global batch is no multiple of micro-batch and data parallelism")
    cluster = llm_cluster(
        of.gpu, of.gpus, of.per_host, of.links, of.measured_links, of.fastest_links
    )
    if sustained is not None:
        cluster = replace(cluster, device=replace(cluster.device, sustained=sustained))
    count, network = of.global_batch // each, llm_network(of)
    # micro-batches follow each other at a steady pace once the pipeline is full
    few, more = (n * of.pp for n in _SIMULATED)
    first = _simulated(of, cluster, network, more if count > more else count)
    seconds = first.step_time
    if count > more:
        less = _simulated(of, cluster, network, few)
        seconds += (count - more) * (first.step_time - less.step_time) / (more - few)
    assert first.simulated is not None, "what is simulated has a peak"
    memory = first.simulated.peak.memory
    return LlmPrediction(
        seconds=seconds,
        memory=memory.total,
        of_first=first.simulated.roles[0].memory.total,
        # the context, and buffers of communicators, which frameworks do not count as theirs
        outside=memory.holders["reserved"],
        capacity=cluster.device.memory,
        lasting_short=first.simulated.lasting_short,
        model_flops=model_flops(first.subject.setting.graph)
        * of.global_batch
        / each
        / (more if count > more else count),
    )


def _simulated(of: Configuration, cluster: Cluster, network: Network, count: int) -> Simulation:
    """The simulation of a step of so many micro-batches.

    Parameters
    ----------
    of
        What is trained, and how.
    cluster, network
        The machine and the network.
    count
        Micro-batches. [items]
    """
    entry, recompute = framework_entry(of), of.recompute
    changes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in entry.get("changes", {}).items()
    }
    if recompute == "half":
        recompute = str(max(1, of.sizes.layers // (2 * of.pp)))
    return simulate(
        network,
        gpus=of.gpus,
        cluster=cluster,
        precision=of.precision,
        optimizer="adam",
        runtime=load_runtime(
            str(entry["runtime"]),
            **checks(cluster, of.measured_links, of.fastest_links, of.gpus),
            **buffers(of.measured_links),
            **changes,
        ),
        global_batch_size=count * of.micro_batch * of.dp,
        micro_batch_size=of.micro_batch,
        tp=of.tp,
        pp=of.pp,
        dp=of.dp,
        cp=of.cp,
        ep=of.ep,
        chunks=of.chunks,
        sequence_parallel=of.sequence_parallel,
        recompute=recompute,
        zero=None if of.fsdp else of.zero,
        fsdp=of.fsdp > 0,
        shard_size=of.fsdp if 0 < of.fsdp < of.dp else None,
    )

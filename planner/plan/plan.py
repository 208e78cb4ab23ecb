"""The plan itself, and its file.

The file is canonical: the same inputs and seed give the same bytes. Times are in seconds and
sizes in bytes, as the keys say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from costmodels.distribution import devices_at_work
from costmodels.errors import InputError
from costmodels.step.training import Training
from costmodels.step.utilisation import model_flops_utilisation
from costmodels.strategy import BatchShare, MemoryConfig, Schedule, Stage, Strategy
from costmodels.units.tables import parse_json, read_text
from planner.output import write_text
from planner.plan.carried import NOTHING_CARRIED, Carried, check_carried, leave_out_unsaid
from planner.plan.checks import COMMUNICATION, COMPUTATION, check_plan
from planner.plan.older import upgraded
from planner.plan.parts import Baseline, Finalist, LayerPlan, SearchSummary
from planner.plan.sharding import LayerSharding, Mesh, Sharding, known_sharding

VERSION = 4
FORMAT = "planner-plan"
# What an error about a file ends in.
ADVICE = "make it again with 'planner optimize -o'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan for one network on one machine.

    Parameters
    ----------
    model, input_shape, global_batch_size
        The network, the axes of one sample, and samples of a step. [items]
    cluster, device, gpus, shape, level_names, host_level
        The machine, the devices used, and members of each level from the inside out.
    training
        Options of the step.
    hashes
        SHA-256 of each input: network, cluster, options, measured tables.
    runtime
        The framework's runtime under which all steps are simulated, with the gradient buckets of
        the options.
    step_time_s
        The step as simulated. [s]
    breakdown_s
        The step by cause, see `planner.plan.checks.CAUSES`: they sum to it. [s]
    hidden_s
        Communication that the step does not wait for, by cause. [s]
    memory_bytes, memory_moment
        Peak memory of a device by holder, and when it is reached. [B]
    memory_capacity_bytes
        Memory of a device. [B]
    communication_bytes
        Bytes that a device receives in a step. [B]
    search
        How it was found.
    layers
        Every layer in the order of the forward pass, with its times over all micro-batches.
    idle_gpus, stages, schedule
        GPUs left without work; the pipeline, none for a single stage, and its micro-batches.
    gather_again, ring_attention, keep_products, offload, shares
        As of `costmodels.strategy.Strategy`.
    sharding
        Meshes of ranks, and where every tensor lies on them; None where an older plan says nothing.
    baselines
        The usual strategies.
    compute_sources_s
        Time of computation by where its estimate comes from. [s]
    provenance
        What those estimates are based on.
    fallbacks
        Every approximation and every fallback that was used, a sentence each.
    defaults
        Inputs that were not given, a sentence each.
    finalists
        The best assignments of the search, simulated, the fastest first.
    model_flops, device_peak_flops
        Model FLOPs of a step, and peak of a device at the precision; 0 where a plan does not say.
        [FLOP], [FLOP/s]
    command
        Command line that makes the plan, empty when it was made from Python.
    carried
        The network, cluster and tables that it was made with, where they are not built in.
    """

    model: str
    input_shape: Mapping[str, int]
    global_batch_size: int
    cluster: str
    device: str
    gpus: int
    shape: tuple[int, ...]
    level_names: tuple[str, ...]
    host_level: str
    training: Training
    hashes: Mapping[str, str]
    runtime: str
    step_time_s: float
    breakdown_s: Mapping[str, float]
    hidden_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    memory_moment: str
    memory_capacity_bytes: float
    communication_bytes: float
    search: SearchSummary
    layers: Mapping[str, LayerPlan]
    baselines: tuple[Baseline, ...]
    compute_sources_s: Mapping[str, float]
    provenance: Mapping[str, str]
    fallbacks: tuple[str, ...]
    defaults: tuple[str, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    model_flops: float = 0.0
    device_peak_flops: float = 0.0
    command: str = ""
    carried: Carried = NOTHING_CARRIED
    stages: tuple[Stage, ...] = ()
    schedule: Schedule = Schedule()  # noqa: RUF009 - it cannot be changed
    gather_again: bool = False
    ring_attention: bool = False
    keep_products: bool = False
    offload: tuple[str, ...] = ()
    shares: tuple[BatchShare, ...] = ()
    idle_gpus: int = 0
    sharding: Sharding | None = None
    format: str = FORMAT
    version: int = VERSION

    def __repr__(self) -> str:
        return (  # all of it would fill screens
            f"Plan({self.model!r}, gpus={self.gpus}, cluster={self.cluster!r}, "
            f"global_batch_size={self.global_batch_size}, step_time_s={self.step_time_s:.6g}, "
            f"peak_memory_bytes={self.peak_memory:.0f}, layers={len(self.layers)})"
        )

    @property
    def step_time(self) -> float:
        """Time of a step. [s]"""
        return self.step_time_s

    @property
    def gpus_at_work(self) -> int:
        """GPUs that have work of their own: the others repeat all of theirs. [items]"""
        strategy = self.strategy
        return sum(
            devices_at_work(strategy.distributions[name] for name in names)
            for names in strategy.layers_of_groups.values()
        )

    @property
    def num_groups(self) -> int:
        """Groups of GPUs that have stages of their own. [items]"""
        return len(self.strategy.groups)

    @property
    def time_of_groups(self) -> float:
        """The step, as often as there are groups: what times of all layers are parts of. [s]"""
        return self.step_time_s * self.num_groups

    @property
    def is_staged(self) -> bool:
        """Whether more than splits of layers: stages, micro-batches, sharding, recomputation."""
        cut = any(layer.sharded for layer in self.layers.values())
        more = self.gather_again or self.ring_attention or self.offload or self.shares or cut
        return bool(self.stages or self.schedule.micro_batches > 1 or more)

    @property
    def strategy(self) -> Strategy:
        """How the network is trained: stages, splits, micro-batches and sharding."""
        whole = Stage(layers=tuple(self.layers), first_device=0, shape=self.shape)
        return Strategy(
            stages=self.stages or (whole,),
            distributions={name: layer.distribution for name, layer in self.layers.items()},
            schedule=self.schedule,
            # what is cut, and nothing else, whatever the runtime cuts by itself
            memory={
                name: MemoryConfig(
                    **dict.fromkeys(layer.sharded, True), shard_size=layer.shard_size
                )
                for name, layer in self.layers.items()
                if layer.weights_bytes
            },
            gather_again=self.gather_again,
            ring_attention=self.ring_attention,
            keep_products=self.keep_products,
            offload=self.offload,
            shares=self.shares,
        )

    @property
    def mesh(self) -> Mesh:
        """All ranks as an array with named axes; an `InputError` where no axes fit all layers."""
        return known_sharding(self.sharding).mesh

    def placements(self, layer: str) -> LayerSharding:
        """Where the inputs, the weights and the output of a layer lie on its mesh."""
        return known_sharding(self.sharding).layer(layer)

    @property
    def throughput(self) -> float:
        """Samples in a second. [samples/s]"""
        return self.global_batch_size / self.step_time_s

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, from 0 to 1; None where the plan does not say."""
        if not self.device_peak_flops:
            return None
        return model_flops_utilisation(
            self.model_flops, self.step_time_s, self.gpus, self.device_peak_flops
        )

    @property
    def peak_memory(self) -> float:
        """Peak memory of a device. [B]"""
        return sum(self.memory_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether the peak is within the memory of a device."""
        return self.peak_memory <= self.memory_capacity_bytes

    def summary(self) -> dict[str, object]:
        """The figures that a script reads, under stable keys with their units."""
        causes = self.breakdown_s
        exposed = sum(causes[cause] for cause in COMMUNICATION)
        return {
            "model": self.model,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "idle_gpus": self.idle_gpus,
            "gpus_at_work": self.gpus_at_work,
            "global_batch_size": self.global_batch_size,
            "precision": self.training.precision,
            "step_time_s": self.step_time_s,
            "throughput_samples_per_s": self.throughput,
            "mfu": self.mfu,
            "model_flops": self.model_flops,
            "runtime": self.runtime,
            "bucket_bytes": self.training.bucket_bytes,
            "compute_s": sum(causes[cause] for cause in COMPUTATION),
            "communication_s": exposed + sum(self.hidden_s.values()),
            "exposed_communication_s": exposed,
            "breakdown_s": dict(causes),
            "hidden_s": dict(self.hidden_s),
            "peak_memory_bytes": self.peak_memory,
            "memory_capacity_bytes": self.memory_capacity_bytes,
            "memory_bytes": dict(self.memory_bytes),
            "fits": self.fits,
            "lower_bound_s": self.search.lower_bound_s,
            "proven_optimal": self.search.proven_optimal,
            "gap": self.search.gap,
            "finalists": [msgspec.to_builtins(row) for row in self.finalists],
            "solver": self.search.solver,
            "stopped_by": self.search.stopped_by,
            "fallbacks": list(self.fallbacks),
            "defaults": list(self.defaults),
            "baselines": [msgspec.to_builtins(baseline) for baseline in self.baselines],
            "layers": [_layer_summary(layer) for layer in self.layers.values()],
        }

    def to_json(self) -> str:
        """The canonical text of the plan."""
        # read back once, so that whole numbers in fields of floats are written as floats
        plan = msgspec.json.decode(_encoded(self), type=Plan)
        document = msgspec.json.decode(_encoded(plan))
        # layers keep the order of the forward pass, which sorting by name would lose
        document["layers"] = [msgspec.to_builtins(plan.layers[name]) for name in self.layers]
        leave_out_unsaid(document)
        return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan; the file appears whole or not at all."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan that `save` wrote.

        Raises
        ------
        InputError
            When the file is missing, is no plan, or is of a version that is not known.
        """
        return cls.of_document(read_plan_file(path), where=str(path))

    @classmethod
    def from_json(cls, text: bytes | str, *, where: str = "the text") -> Plan:
        """Read a plan from the text of a file.

        Parameters
        ----------
        text
            What `to_json` gave.
        where
            What the text is called in errors.

        Raises
        ------
        InputError
            When it is no plan, or one of another version.
        """
        read = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return cls.of_document(parse_json(read, where, ADVICE), where=where)

    @classmethod
    def of_document(cls, document: object, *, where: str) -> Plan:
        """A plan from what its file holds, parsed; otherwise as `from_json`."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"{where} is no plan: its 'format' must be '{FORMAT}'; {ADVICE}")
        if document.get("version") not in range(1, VERSION + 1):
            raise InputError(
                f"{where} is a plan of version {document.get('version')}, but this planner reads "
                f"versions 1 to {VERSION}; {ADVICE}"
            )
        try:
            current: dict[str, Any] = upgraded(document)
            layers = {layer["name"]: layer for layer in current["layers"]}
            plan = msgspec.convert({**current, "layers": layers}, cls)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise InputError(f"{where} is no valid plan ({error}); {ADVICE}") from None
        if len(layers) < len(document["layers"]):
            raise InputError(f"{where} is no valid plan (two layers have one name); {ADVICE}")
        check_plan(plan, where, ADVICE)
        check_carried(plan.carried, plan.hashes, plan.global_batch_size, where, ADVICE)
        return plan


def read_plan_file(path: str | os.PathLike[str]) -> object:
    """What a JSON file holds that should be a plan."""
    text = read_text(
        path,
        f"the plan file {path}",
        "give the path of a file that 'planner optimize -o' wrote",
    )
    return parse_json(text, str(path), f"correct it, or, where it is a plan, {ADVICE}")


def _layer_summary(layer: LayerPlan) -> dict[str, object]:
    times_and_sizes = {
        key: value
        for key, value in msgspec.to_builtins(layer).items()
        if key.endswith(("_s", "_bytes"))
    }
    split = {dim: list(degrees) for dim, degrees in sorted(layer.degrees.items())}
    return {"name": layer.name, "kind": layer.kind, "distribution": split, **times_and_sizes}


def _encoded(plan: Plan) -> bytes:
    # read-only mappings are all that msgspec does not know
    return msgspec.json.encode(plan, enc_hook=dict, order="deterministic")

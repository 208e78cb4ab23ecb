"""The figures of a plan in words and rows, the same for every kind of report.

Nothing is estimated here: every number is one of the plan or a quotient of two of them.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from costmodels.strategy import BatchShare
from costmodels.units import format_bytes, format_items, format_seconds
from planner.plan import Plan, given_solver
from planner.request.inputs.question import GLOBAL_BATCH_SIZE
from planner.request.usual_strategies import STRATEGIES
from planner.simulation.run import gradient_buckets

# Ratios from this on are said as times, smaller ones in per cent.
IN_TIMES = 1.1
COMMUNICATION = {
    "halo": "halo exchange",
    "reduction": "reductions",
    "shuffle": "shuffles",
    "parameter": "gathering of weights",
    "gradient": "gradient all-reduce",
    "host": "copies to and from the host",
}
CAUSES = {
    "compute": "compute",
    "update": "weight update",
    "slowdown": "slow-down by gradients",
    **{cause: f"{label}, exposed" for cause, label in COMMUNICATION.items()},
    "waiting": "waiting for slower GPUs",
}
HIDDEN = {cause: f"{label}, hidden" for cause, label in COMMUNICATION.items()}
UNRECORDED = (
    "The plan was made from Python, so the command is put together from its inputs; options that a "
    "plan does not hold, such as the input size, the search, or the degree or file of a strategy, "
    "may have differed."
)
LAYER_CAUSES = {
    "forward": "forward",
    "backward": "backward",
    "update": "weight update",
    "halo": "halo exchange",
    "reduction": "reductions",
    "shuffle": "shuffles",
}
SOURCES = {
    "table": "measured, exact entry of a table",
    "interpolated": "interpolated between measurements",
    "surface": "surface fitted to this device",
    "derived_surface": "surface carried over from akin measurements",
    "roofline": "roofline, without measurements",
    "launch": "waiting for the launch of operations",
}


class Figure(Struct, frozen=True, kw_only=True):
    """One figure of several that make up a whole.

    Parameters
    ----------
    key, label
        What it is, for programs and for people.
    value
        Time or size. [s] or [B]
    share
        Part of the whole, from 0 to 1.
    """

    key: str
    label: str
    value: float
    share: float


class GroupRow(Struct, frozen=True, kw_only=True):
    """The stages of a group of GPUs.

    Parameters
    ----------
    devices, stages
        Their numbers.
    layers, again
        How many it has, and how many of them are computed again for backward. [items]
    span
        First and last layers of its stages.
    time
        What a GPU works in a step, without gradient all-reduces. [s]
    """

    devices: str
    stages: str
    layers: int
    again: int
    span: str
    time: float


def sample_word(shape: Mapping[str, int]) -> str:
    """What samples with these axes are called, in the plural."""
    if "depth" in shape:
        return "volumes"
    if "height" in shape:
        return "images"
    return "sequences" if "sequence" in shape else "samples"


def percent(part: float) -> str:
    """A share such as "12.3 %"; never zero for what is there."""
    if 0.0 < abs(part) < 0.0005:
        return "< 0.1 %"
    return f"{100.0 * part:.1f} %"


def count(number: float) -> str:
    """A number to three digits, or whole with its thousands apart."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"


def seconds(value: float) -> str:
    """A duration, "0" where there is none."""
    return format_seconds(value) if value else "0"


def seconds_or_none(value: float | None) -> str:
    """A duration, "-" where it is not known."""
    return "-" if value is None else seconds(value)


def size(value: float) -> str:
    """An amount of memory, "0" where there is none."""
    return format_bytes(value) if value else "0"


def rate_words(
    throughput: float, gpus: int, shape: Mapping[str, int], utilisation: float | None
) -> str:
    """Throughput in all and of a GPU, and the part of the peak that it uses.

    Parameters
    ----------
    throughput
        Samples in a second. [samples/s]
    gpus
        Number of GPUs. [items]
    shape
        Axes of a sample.
    utilisation
        Model FLOPs utilisation, None where it is not known.
    """
    text = f"{count(throughput)} {sample_word(shape)}/s ({count(throughput / gpus)} a GPU)"
    if utilisation is None:
        return text
    why = " (above 100 % by Winograd's algorithm)" if utilisation > 1.0 else ""
    return f"{text}, {mfu_words(utilisation)}{why}"


def mfu_words(utilisation: float) -> str:
    """Model FLOPs utilisation, such as "MFU 41.2 %"."""
    return f"MFU {percent(utilisation)}"


def much(ratio: float) -> str:
    """How much faster something is, such as "3.1 % faster than" or "1.32x as fast as"."""
    if abs(ratio - 1.0) < 5e-4:
        return "as fast as"
    if ratio >= IN_TIMES:
        return f"{speed_up(ratio)} as fast as"
    if ratio <= 1.0 / IN_TIMES:
        return f"{speed_up(1.0 / ratio)} as slow as"
    return f"{percent(abs(ratio - 1.0))} {'faster' if ratio > 1.0 else 'slower'} than"


def speed_up(value: float | None) -> str:
    """How many times faster, such as "1.32x"."""
    if value is None:
        return "-"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f}x"


def chosen_batch(batch: int, gpus: int, defaults: Sequence[str]) -> tuple[str, ...]:
    """What one line says of a global batch that the planner chose; nothing of one that was given.

    Parameters
    ----------
    batch, gpus
        Global batch and number of GPUs. [samples], [items]
    defaults
        What was chosen, a sentence each.
    """
    chosen = GLOBAL_BATCH_SIZE.chose(batch=batch, per_gpu=batch / gpus)
    return (f"global batch {batch:,} (chosen)",) if chosen in defaults else ()


def machine_words(plan: Plan) -> str:
    """The devices and how they are joined, such as "8 x a100-80gb of dgx-a100 (host 8)"."""
    levels = zip(plan.level_names, plan.shape, strict=True)
    used = " x ".join(f"{name} {members}" for name, members in levels if members > 1)
    return f"{plan.gpus} x {plan.device} of {plan.cluster}" + (f" ({used})" if used else "")


def shape(plan: Plan) -> str:
    """Axes of one sample, such as "3 x 224 x 224"."""
    return " x ".join(str(extent) for extent in plan.input_shape.values())


def options(plan: Plan) -> list[tuple[str, str]]:
    """Options of the training step."""
    t, buckets = plan.training, gradient_buckets(plan)
    return [
        ("precision", t.precision),
        ("optimizer", t.optimizer),
        ("all-reduce algorithm", t.all_reduce),
        ("gradient buckets", format_bytes(buckets) if buckets else "one for each unit of layers"),
        ("halos behind the interior", "yes" if t.halo_overlap else "no"),
        ("launch of an operation", format_seconds(t.launch_time)),
        ("all-reduces behind the backward pass", "yes" if t.gradient_overlap else "no"),
        ("memory model", t.memory_model),
    ]


def step_rows(plan: Plan, *, zeros: bool = False) -> list[Figure]:
    """What the step is made of; the rows sum to it."""
    return [
        Figure(
            key=key,
            label=label,
            value=plan.breakdown_s[key],
            share=plan.breakdown_s[key] / plan.step_time_s,
        )
        for key, label in CAUSES.items()
        if plan.breakdown_s[key] or zeros
    ]


def hidden_rows(plan: Plan) -> list[tuple[str, str, float]]:
    """Communication behind computation or other communication: cause, label and time. [s]"""
    return [(cause, label, plan.hidden_s[cause]) for cause, label in HIDDEN.items()]


def memory_rows(plan: Plan, *, zeros: bool = False) -> list[Figure]:
    """What holds memory at the peak, most first, as parts of the capacity."""
    holders = sorted(plan.memory_bytes.items(), key=lambda item: (-item[1], item[0]))
    return [
        Figure(
            key=holder.replace(" ", "_"),
            label=holder,
            value=held,
            share=held / plan.memory_capacity_bytes,
        )
        for holder, held in holders
        if held or zeros
    ]


def source_rows(plan: Plan) -> list[Figure]:
    """Where the time of computation comes from, from the most to the least trustworthy."""
    total = sum(plan.compute_sources_s.values())
    known = [key for key in SOURCES if key in plan.compute_sources_s]
    known += [key for key in plan.compute_sources_s if key not in SOURCES]
    return [
        Figure(
            key=key,
            label=SOURCES.get(key, key.replace("_", " ")),
            value=plan.compute_sources_s[key],
            share=plan.compute_sources_s[key] / total if total else 0.0,
        )
        for key in known
    ]


def group_rows(plan: Plan) -> list[GroupRow]:
    """The groups of GPUs of a pipeline in the order of its first stages; none without one."""
    strategy = plan.strategy
    if len(strategy.groups) < 2:
        return []
    rows = []
    for first, end in strategy.groups:
        numbered = [(i, s) for i, s in enumerate(strategy.stages) if s.group == (first, end)]
        stages = [stage for _, stage in numbered]
        spans = [f"{stage.layers[0]} .. {stage.layers[-1]}" for stage in stages]
        rows.append(
            GroupRow(
                devices=(f"{first} to {end - 1}" if end - first > 1 else str(first))
                + hosts_words(plan, first, end),
                stages=", ".join(str(number) for number, _ in numbered),
                layers=sum(len(stage.layers) for stage in stages),
                span="; ".join(spans if len(spans) < 4 else [*spans[:2], "...", spans[-1]]),
                again=sum(len(rows) for stage in stages for rows in stage.recompute),
                time=sum(plan.layers[name].time for stage in stages for name in stage.layers),
            )
        )
    return rows


def shares_words(shares: Sequence[BatchShare]) -> str:
    """Samples of replicas that differ: micro-batches and samples of each."""
    rows = (
        f"{one.micro_batches:,} x {one.samples:,} a replica on group {one.group} "
        f"({one.replicas:,} of {format_items(one.num_devices // one.replicas, 'GPU')})"
        for one in shares
    )
    return f"shared out unevenly: {', '.join(rows)}"


def hosts_words(plan: Plan, first: int, end: int) -> str:
    """Which hosts some GPUs are of, where there are several kinds: such as " (new: h100)".

    Parameters
    ----------
    plan
        The plan, which carries such a cluster.
    first, end
        The first GPU, and the one after the last.
    """
    cluster = plan.carried.cluster
    if cluster is None or not cluster.groups:
        return ""
    groups = cluster.groups_of(first, end - first)
    return f" ({', '.join(f'{group.name}: {group.device.name}' for group in groups)})"


def provenance_rows(plan: Plan) -> list[tuple[str, str]]:
    """What estimates are based on; those with the same basis in one row."""
    together: dict[str, list[str]] = {}
    for what, basis in sorted(plan.provenance.items()):
        together.setdefault(basis, []).append(what.replace("_", " "))
    return [(", ".join(names), basis) for basis, names in together.items()]


def plan_hash(plan: Plan) -> str:
    """SHA-256 of the plan file."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()


def command(plan: Plan) -> tuple[str, bool]:
    """The command that makes the plan, and whether it is the recorded one.

    A plan made from Python has none; then one is put together from its inputs, without options
    that a plan does not hold.
    """
    if plan.command:
        return plan.command, True
    given = plan.search.status == "given"
    asked = plan.gpus + (0 if given else plan.idle_gpus)
    words = ["planner", "evaluate" if given else "optimize", plan.model, "--gpus", str(asked)]
    words += ["--cluster", plan.cluster, "--global-batch-size", str(plan.global_batch_size)]
    words += ["--precision", plan.training.precision, "--optimizer", plan.training.optimizer]
    if given:
        named = (name for name in STRATEGIES if plan.search.solver == given_solver(name))
        words += ["--strategy", next(named, "plan.json")]
    return shlex.join(words), False

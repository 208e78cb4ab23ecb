"""How fast do so many workers train together over a slow network, and from how many on in vain?

The models are those of `costmodels.throughput` (Li et al. 2022); here a network and a GPU become
the profile of a worker, costed on one GPU like every plan. A worker is a host, of one GPU unless
told otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.throughput import (
    FIRST_COME,
    PROCESSOR_SHARING,
    UTILISATION_THRESHOLD,
    VARIATION,
    Links,
    WorkerClass,
    WorkerProfile,
    check_effort,
)
from planner.distributed_sgd.mix import Mix, parse_bandwidth_of, parse_mix, parse_workers
from planner.distributed_sgd.profile import profile_worker
from planner.distributed_sgd.question import Question
from planner.distributed_sgd.result import (
    PART,
    Throughput,
    ThroughputRow,
    WorkerKind,
    efficiency,
    saturation,
)

ARCHITECTURES = ("ps", "all-reduce")
MODES = ("sync", "async")
THROUGHPUT_MODELS = ("coarse", "fine", "both")
RULES = ("auto", PROCESSOR_SHARING, FIRST_COME)


def throughput(
    model: str | Network,
    *,
    workers: str | Sequence[int] | None = None,
    device: str = "v100",
    bandwidth: str | float = "10 Gbps",
    architecture: str = "ps",
    mode: str = "sync",
    models: str = "both",
    batch: int = 32,
    precision: str = "fp32",
    overlap: bool = True,
    flow_cap: str | float | None = None,
    gpus_per_host: int = 1,
    host: str | None = None,
    servers: int = 1,
    update_time: float | None = None,
    rule: str = "auto",
    utilisation_threshold: float = UTILISATION_THRESHOLD,
    steps: int | None = None,
    variation: float = VARIATION,
    seed: int = 0,
    optimizer: str = "sgd",
    launch_time: float | None = None,
    input_size: int | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
) -> Throughput:
    """Predict the throughput of distributed SGD for each number of workers.

    Parameters
    ----------
    model
        A built-in network, the path of a network file, or a `costmodels.graph.Network`.
    workers
        Numbers of workers, as such or like "1-16" or "1,2,4"; several kinds keep their proportion.
    device
        A built-in device, or several kinds with their numbers like "v100:4,t4:2".
    bandwidth, flow_cap
        Link of a worker or server in one direction, and what one flow between them is limited to.
        [B/s]
    architecture
        "ps" (parameter servers) or "all-reduce" (a ring).
    mode
        "sync" or "async", the latter with parameter servers only.
    models
        "coarse", "fine" or "both".
    batch
        Samples of a step of one GPU. [samples]
    overlap
        Whether transfers overlap computation layer by layer.
    gpus_per_host
        GPUs of one worker, which all-reduce among themselves first. [items]
    host
        Cluster whose hosts tell how these GPUs are joined; by default one with the same GPUs.
    servers
        Parameter servers, each with an equal part of every layer. [items]
    update_time
        Applying the gradients of one worker; as costed on the GPU by default. [s]
    rule
        How flows share links: "auto" as the paper does, "processor-sharing" or "first-come".
    utilisation_threshold
        rho_T of equation 5.
    steps
        Steps of each worker in a simulation; by default enough. [items]
    variation
        Coefficient of variation of the computation of a step in simulations.
    seed
        Seed of simulations.
    precision, optimizer, launch_time, input_size, tables
        As of `planner.optimize`.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    for what, value, known in (
        ("architecture", architecture, ARCHITECTURES),
        ("mode", mode, MODES),
        ("model of throughput", models, THROUGHPUT_MODELS),
        ("rule by which flows share links", rule, RULES),
    ):
        if value not in known:
            raise InputError(f"the {what} must be one of {', '.join(known)} but is '{value}'")
    _check_numbers(mode, architecture, servers, batch, utilisation_threshold, seed)
    check_effort(steps, variation)
    links = Links(
        bandwidth=parse_bandwidth_of(bandwidth, "the bandwidth"),
        flow_cap=None if flow_cap is None else parse_bandwidth_of(flow_cap, "the cap of a flow"),
        servers=servers,
    )
    mix = parse_mix(device)
    counts = parse_workers(workers, mix)
    profiles: list[WorkerProfile] = []
    defaults = list(mix.notes)
    for name in mix.devices:
        profile, chosen = profile_worker(
            model,
            device=name,
            batch=batch,
            precision=precision,
            optimizer=optimizer,
            gpus_per_host=gpus_per_host,
            host=host,
            # one kind of server, whoever the workers are
            update_time=update_time if not profiles else profiles[0].update_time,
            launch_time=launch_time,
            input_size=input_size,
            tables=tables,
        )
        profiles.append(profile)
        defaults += [text for text in chosen if text not in defaults]
    question = Question(
        links=links,
        architecture=architecture,
        mode=mode,
        models=models,
        overlap=overlap,
        rule=rule,
        threshold=utilisation_threshold,
        steps=steps,
        variation=variation,
        seed=seed,
    )
    rows = _rows(question, profiles, mix, counts)
    size = profiles[0].model_bytes
    return Throughput(
        model=model if isinstance(model, str) else model.name,
        kinds=tuple(
            _kind(p, name, gpus_per_host) for p, name in zip(profiles, mix.devices, strict=True)
        ),
        architecture=architecture,
        mode=mode,
        overlap=overlap,
        model_bytes=size,
        transfer_s=size / (links.bandwidth if architecture == "all-reduce" else links.worker_rate),
        bandwidth=links.bandwidth,
        flow_cap=links.flow_cap,
        servers=servers,
        rows=rows,
        coarse_saturation=saturation(rows, "coarse"),
        fine_saturation=saturation(rows, "fine"),
        defaults=tuple(defaults),
        notes=tuple(_notes(question, rows)),
    )


def _check_numbers(
    mode: str, architecture: str, servers: int, batch: int, threshold: float, seed: int
) -> None:
    if architecture == "all-reduce" and mode == "async":
        raise InputError(
            "an all-reduce must be synchronous, since all workers take part in it, but the mode is "
            "async; choose mode sync or architecture ps"
        )
    if architecture == "all-reduce" and servers != 1:
        raise InputError(
            f"an all-reduce must go without parameter servers but there are {servers} servers; "
            "leave them out or choose architecture ps"
        )
    if batch < 1:
        raise InputError(f"the batch of a GPU must be at least 1 sample but is {batch}; raise it")
    if not 0.0 <= threshold <= 1.0:
        raise InputError(
            f"the utilisation threshold must be from 0 to 1 but is {threshold:g}; the paper uses "
            "0.6"
        )
    if seed < 0:
        raise InputError(f"the seed must be at least 0 but is {seed}; raise it")


def _kind(profile: WorkerProfile, device: str, gpus: int) -> WorkerKind:
    return WorkerKind(
        device=device,
        gpus=gpus,
        samples=profile.samples,
        forward_s=profile.forward_time,
        backward_s=profile.backward_time,
        update_s=profile.update_time,
        host_s=profile.host_time,
    )


def _rows(
    question: Question, profiles: Sequence[WorkerProfile], mix: Mix, counts: Sequence[int]
) -> tuple[ThroughputRow, ...]:
    singles = [(WorkerClass(profile=profile, count=1),) for profile in profiles]
    alone_coarse = [question.coarse(one) for one in singles]
    alone_fine = [question.fine(one) for one in singles]
    rows = []
    for count in counts:
        numbers = mix.counts(count)
        classes = tuple(
            WorkerClass(profile=p, count=n) for p, n in zip(profiles, numbers, strict=True)
        )
        coarse, fine = question.coarse(classes), question.fine(classes)
        rows.append(
            ThroughputRow(
                workers=count,
                counts=numbers,
                coarse=coarse,
                fine=fine,
                fine_rule="" if fine is None else question.fine_rule,
                coarse_efficiency=efficiency(coarse, alone_coarse, numbers),
                fine_efficiency=efficiency(fine, alone_fine, numbers),
            )
        )
    return tuple(rows)


def _notes(question: Question, rows: Sequence[ThroughputRow]) -> list[str]:
    notes = []
    if question.architecture == "all-reduce" and question.links.flow_cap is not None:
        notes.append(
            "the cap on flows does not bind an all-reduce, whose library opens several (Li et al. "
            "2022, section 4.4)"
        )
    if any(row.coarse is not None and row.coarse.exact is False for row in rows):
        notes.append(
            "mean value analysis is approximate (Bard, Schweitzer) where so marked: there are too "
            "many populations for the exact recursion"
        )
    parted = [str(row.workers) for row in rows if row.part]
    if parted:
        notes.append(f"the models are more than {PART:.0%} apart at {', '.join(parted)} workers")
    return notes

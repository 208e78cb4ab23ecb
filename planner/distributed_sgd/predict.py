"""How fast do workers train together over a slow network, and from how many on is another in vain?

The models are those of `costmodels.throughput` (Li et al. 2022); here a network and a GPU become
the profile of a worker, costed on one GPU like every plan. A worker is a host, of one GPU unless
told otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.throughput import Links, WorkerClass, WorkerProfile, check_effort
from planner.distributed_sgd.mix import Mix, parse_mix, parse_workers
from planner.distributed_sgd.predictor import Predictor
from planner.distributed_sgd.profile import profile_worker
from planner.distributed_sgd.result import (
    PART,
    Throughput,
    ThroughputRow,
    WorkerKind,
    efficiency,
    saturation,
)
from planner.request.inputs.distributed import BANDWIDTH, FLOW_CAP
from planner.request.request import Request


def predict_throughput(request: Request) -> Throughput:
    """Predict what a request asks for; what `planner.throughput` does.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    _check_servers(request)
    if request.host is not None and request.gpus_per_host == 1:
        raise InputError(
            "a host (--host) must join several GPUs of a worker but there is 1; raise "
            "--gpus-per-host or leave the host out"
        )
    check_effort(request.steps, request.computation_variation)
    cap = request.flow_cap
    links = Links(
        bandwidth=BANDWIDTH.quantity(request.bandwidth),
        flow_cap=None if cap is None else FLOW_CAP.quantity(cap),
        servers=request.parameter_servers,
    )
    mix = parse_mix(request.device)
    counts = parse_workers(request.workers, mix)
    profiles, chosen, notes = _profiles(request, mix)
    predictor = Predictor(links=links, request=request)
    rows = _predict_rows(predictor, profiles, mix, counts)
    size = profiles[0].model_bytes
    ring = request.architecture == "all-reduce"
    return Throughput(
        model=_network_name(request),
        kinds=tuple(
            _worker_kind(profile, name, request.gpus_per_host)
            for profile, name in zip(profiles, mix.devices, strict=True)
        ),
        architecture=request.architecture,
        mode=request.mode,
        overlap=request.transfer_overlap,
        model_bytes=size,
        transfer_s=size / (links.bandwidth if ring else links.worker_rate),
        bandwidth=links.bandwidth,
        flow_cap=links.flow_cap,
        servers=request.parameter_servers,
        rows=rows,
        coarse_saturation=saturation(rows, "coarse"),
        fine_saturation=saturation(rows, "fine"),
        defaults=tuple(dict.fromkeys((*mix.notes, *chosen))),
        notes=(*notes, *_prediction_notes(predictor, rows)),
    )


def _check_servers(request: Request) -> None:
    """Refuse what only parameter servers can do where there are none."""
    if request.architecture != "all-reduce":
        return
    if request.mode == "async":
        raise InputError(
            "an all-reduce must be synchronous, since all workers take part in it, but the mode is "
            "async; choose mode sync or architecture ps"
        )
    if request.parameter_servers != 1:
        raise InputError(
            f"an all-reduce must go without parameter servers but there are "
            f"{request.parameter_servers} servers; leave them out or choose architecture ps"
        )


def _profiles(request: Request, mix: Mix) -> tuple[list[WorkerProfile], list[str], list[str]]:
    """A worker of each kind, what was chosen for them, and what their times rest on."""
    profiles: list[WorkerProfile] = []
    chosen: list[str] = []
    rests: list[str] = []
    for name in mix.devices:
        # one kind of server, whoever the workers are
        time = request.update_time if not profiles else profiles[0].update_time
        profile, defaults, notes = profile_worker(replace(request, update_time=time), name)
        profiles.append(profile)
        chosen += defaults
        whose = f"{name}: " if len(mix.devices) > 1 else ""
        rests += [f"{whose}{note}" for note in notes]
    return profiles, chosen, rests


def _network_name(request: Request) -> str:
    source = request.source
    return source.name if isinstance(source, Network) else os.fspath(source)  # type: ignore[arg-type]


def _worker_kind(profile: WorkerProfile, device: str, gpus: int) -> WorkerKind:
    return WorkerKind(
        device=device,
        gpus=gpus,
        samples=profile.samples,
        forward_s=profile.forward_time,
        backward_s=profile.backward_time,
        update_s=profile.update_time,
        host_s=profile.host_time,
    )


def _predict_rows(
    predictor: Predictor, profiles: Sequence[WorkerProfile], mix: Mix, counts: Sequence[int]
) -> tuple[ThroughputRow, ...]:
    singles = [(WorkerClass(profile=profile, count=1),) for profile in profiles]
    alone_coarse = [predictor.coarse(one) for one in singles]
    alone_fine = [predictor.fine(one) for one in singles]
    rows = []
    for count in counts:
        numbers = mix.counts(count)
        classes = tuple(
            WorkerClass(profile=p, count=n) for p, n in zip(profiles, numbers, strict=True)
        )
        coarse, fine = predictor.coarse(classes), predictor.fine(classes)
        rows.append(
            ThroughputRow(
                workers=count,
                counts=numbers,
                coarse=coarse,
                fine=fine,
                fine_rule="" if fine is None else predictor.fine_rule,
                coarse_efficiency=efficiency(coarse, alone_coarse, numbers),
                fine_efficiency=efficiency(fine, alone_fine, numbers),
            )
        )
    return tuple(rows)


def _prediction_notes(predictor: Predictor, rows: Sequence[ThroughputRow]) -> list[str]:
    notes = []
    if predictor.request.architecture == "all-reduce" and predictor.links.flow_cap is not None:
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

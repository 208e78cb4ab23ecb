"""How long the next batch takes to be loaded: a step cannot be faster than its input.

Loading is a pipeline of its own that runs while devices compute (prefetching), so it takes as long
as its slowest stage: decoding on the cores, reading by a host, reading by all hosts from shared
storage, opening files, or scattering by a leader. What the device decodes is different: that time
is taken from the computation. Buffers are assumed to be deep enough to even the stages out, and the
cores to have nothing else to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from costmodels.errors import InputError
from costmodels.input_pipeline.loader import Host, Loader
from costmodels.input_pipeline.stragglers import expected_slowest
from costmodels.notes import Note
from costmodels.units import format_seconds

DECODING = "decoding on the host"
STORAGE = "storage"
FILES = "files of the shared file system"
SCATTER = "scatter from the leader"
MEASURED = "the measured rate of a host"
NONE = "none"
BOTTLENECKS = (DECODING, STORAGE, FILES, SCATTER, MEASURED, NONE)


class InputTime(Struct, frozen=True, kw_only=True):
    """Time of the input of one step.

    Parameters
    ----------
    hosts
        Hosts that load. [items]
    host_stages
        Time of every stage that more hosts would share. [s]
    shared_stages
        Time of every stage that all hosts wait for together. [s]
    device_seconds
        Time that loading takes from each device's computation. [s]
    """

    hosts: int
    host_stages: Mapping[str, float]
    shared_stages: Mapping[str, float]
    device_seconds: float

    @property
    def seconds(self) -> float:
        """Time of the slowest stage: no step is shorter. [s]"""
        return max([0.0, *self.host_stages.values(), *self.shared_stages.values()])

    @property
    def bottleneck(self) -> str:
        """What the slowest stage is: one of `BOTTLENECKS`."""
        stages = [*self.host_stages.items(), *self.shared_stages.items()]
        name, seconds = max(stages, key=lambda stage: stage[1], default=(NONE, 0.0))
        return name if seconds > 0 else NONE

    def hosts_needed(self, step_seconds: float) -> int | None:
        """Hosts' worth of loading that would be as fast as the step; None if no number is.

        Parameters
        ----------
        step_seconds
            Time of the step without its input. [s]
        """
        if not step_seconds > 0:
            raise InputError(
                f"a step must take longer than 0 s but takes {step_seconds:g} s; give its time"
            )
        if max(self.shared_stages.values(), default=0.0) > step_seconds:
            return None
        slowest = max(self.host_stages.values(), default=0.0)
        # what fits but for rounding fits
        return max(1, math.ceil(self.hosts * slowest / step_seconds * (1 - 1e-12)))

    def is_bottleneck(self, step_seconds: float) -> bool:
        """Whether a step of that time waits for its input."""
        return self.seconds > step_seconds

    def advice(self, step_seconds: float) -> Note:
        """Whether the input holds the step up, and what would help.

        Parameters
        ----------
        step_seconds
            Time of the step without its input. [s]
        """
        needed = self.hosts_needed(step_seconds)
        step = format_seconds(step_seconds)
        facts = {"step": step, "loading": format_seconds(self.seconds)}
        if not self.is_bottleneck(step_seconds):
            if self.bottleneck == NONE:
                return Note.of("input-free", step=step)
            return Note.of("input-hidden", **facts, bottleneck=self.bottleneck)
        facts["bottleneck"] = self.bottleneck
        if needed is None:
            factor = max(self.shared_stages.values()) / step_seconds
            return Note.of("input-shared-too-slow", **facts, factor=factor)
        factor = self.seconds / step_seconds
        return Note.of(
            "input-too-slow", **facts, hosts_needed=needed, hosts=self.hosts, factor=factor
        )


def input_time(
    loader: Loader,
    *,
    samples_per_host: float,
    samples_per_device: float,
    hosts: int,
    devices_per_host: int,
    host: Host | None = None,
) -> InputTime:
    """Time to load the samples of one step.

    How many devices share a sample follows from the counts: where 4 devices of a host work on 16
    samples each and the host on 16 in all, it is 4.

    Parameters
    ----------
    loader
        How samples are loaded.
    samples_per_host
        Different samples that a host's devices work on, its share where hosts share some. [items]
    samples_per_device
        Samples that a device works on, or on parts of. [items]
    hosts
        Hosts of the job. [items]
    devices_per_host
        Devices of a host that the job uses. [items]
    host
        What a host has; the default is that of `Host`.
    """
    _check_sample_counts(samples_per_host, samples_per_device, hosts, devices_per_host)
    cores = (host or Host()).cores
    group = samples_per_device * devices_per_host / samples_per_host
    lone = loader.staging == "each rank"
    # a leader loads for its whole group; its host is the one to wait for where groups span hosts
    instances = devices_per_host if lone else math.ceil(devices_per_host / group - 1e-9)
    everywhere = hosts * devices_per_host / (1.0 if lone else group)
    on_host, in_all = instances * samples_per_device, everywhere * samples_per_device
    device_seconds = samples_per_device * loader.device_time
    if loader.measured_rate is not None:
        stages = {MEASURED: on_host / loader.measured_rate}
        return _result(loader, hosts, stages, {}, device_seconds)
    threads = min(loader.workers, cores / instances)
    storage = loader.storage
    scattered = 0.0 if lone else (group - 1) / group * samples_per_device * loader.decoded_size
    read, opened = loader.stored_size, loader.files_per_sample
    host_stages = {
        DECODING: samples_per_device / (threads * loader.rate_per_core),
        STORAGE: on_host * read / storage.host_bandwidth,
        FILES: on_host * opened / storage.host_files,
        SCATTER: scattered / loader.scatter_bandwidth,
    }
    shared_stages = {
        STORAGE: in_all * read / storage.total_bandwidth,
        FILES: in_all * opened / storage.total_files,
    }
    return _result(loader, hosts, host_stages, shared_stages, device_seconds)


def _result(
    loader: Loader,
    hosts: int,
    host_stages: Mapping[str, float],
    shared_stages: Mapping[str, float],
    device_seconds: float,
) -> InputTime:
    """The stages of the slowest host, for which a step waits."""
    slowest = expected_slowest(1.0, loader.variation, hosts)
    return InputTime(
        hosts=hosts,
        host_stages={name: seconds * slowest for name, seconds in host_stages.items()},
        shared_stages=shared_stages,
        device_seconds=device_seconds,
    )


def _check_sample_counts(
    samples_per_host: float, samples_per_device: float, hosts: int, devices_per_host: int
) -> None:
    for what, value in (
        ("samples of a host", samples_per_host),
        ("samples of a device", samples_per_device),
        ("number of hosts", hosts),
        ("devices of a host", devices_per_host),
    ):
        if not (math.isfinite(value) and value > 0):
            raise InputError.rule(
                f"the {what}",
                "be greater than 0",
                f"{value:g}",
                "give those of one step",
            )
    if samples_per_host > samples_per_device * devices_per_host * (1 + 1e-9):
        raise InputError(
            f"a host must have at most the samples of its devices ({samples_per_device:g} on each "
            f"of {devices_per_host}) but has {samples_per_host:g}; correct one of them"
        )

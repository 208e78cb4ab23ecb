"""What a data loader, its storage and its host are, as far as they limit the rate of samples.

Rates hold for samples of the loader's own size; `Loader.for_sample` scales them to others.
"""

from __future__ import annotations

import math

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.errors import InputError, require_not_negative, require_positive

DECODES_ON = ("host", "device", "nowhere")
STAGING = ("each rank", "leader")
# Two processors of 24 cores, as a host of JUWELS Booster has (Aach et al. 2023).
DEFAULT_CORES = 48


class Host(Struct, frozen=True, kw_only=True):
    """One machine, as far as it loads samples.

    Parameters
    ----------
    cores
        Cores that loaders may use. [items]
    """

    cores: int = DEFAULT_CORES

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise InputError(
                f"a host must have at least 1 core for its loaders but has {self.cores}; give the "
                "number of cores of one host"
            )


class Storage(Struct, frozen=True, kw_only=True):
    """Where samples lie: what each host gets of it, and what all hosts together get.

    Parameters
    ----------
    name
        Name of the storage.
    host_bandwidth, total_bandwidth
        Rate of reading. [B/s]
    host_files, total_files
        Files that can be opened a second. [1/s]
    source
        Where the figures are from.
    """

    name: str
    host_bandwidth: float = math.inf
    total_bandwidth: float = math.inf
    host_files: float = math.inf
    total_files: float = math.inf
    source: str = ""

    def __post_init__(self) -> None:
        for what in ("host_bandwidth", "total_bandwidth", "host_files", "total_files"):
            require_positive(f"storage {self.name}: {what}", getattr(self, what), finite=False)


class Loader(Struct, frozen=True, kw_only=True):
    """A data loader.

    Parameters
    ----------
    name
        Name of the loader.
    storage
        Where it reads.
    decodes_on
        One of `DECODES_ON`; on the device, it takes time from the computation.
    rate_per_core
        Samples that one core gets ready. [1/s]
    workers
        Threads or processes of one loader instance. [items]
    device_time
        Time of the device that each sample takes. [s]
    stored_size, decoded_size
        Size of a sample as it is read, and as a device gets it. [B]
    files_per_sample
        Files to open for a sample; 0 for files that hold many. [items]
    staging
        "each rank" loads the samples it works on, even where others need the same ones; "leader"
        loads those of its group and scatters them (Kahira et al. 2021, section V.C).
    scatter_bandwidth
        Rate at which a leader sends. [B/s]
    variation
        Standard deviation of the time that a host takes to load, as part of its mean.
    measured_rate
        Samples that one host loads, when measured: stands for all of the model. [1/s]
    description, source
        One line that tells loaders apart, and where the figures are from.
    """

    name: str
    storage: Storage = field(default_factory=lambda: Storage(name="memory"))
    decodes_on: str = "host"
    rate_per_core: float = math.inf
    workers: int = 1
    device_time: float = 0.0
    stored_size: float = 0.0
    decoded_size: float = 0.0
    files_per_sample: float = 0.0
    staging: str = "each rank"
    scatter_bandwidth: float = math.inf
    variation: float = 0.0
    measured_rate: float | None = None
    description: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        label = f"loader {self.name}"
        for what, value, known in (
            ("decodes_on", self.decodes_on, DECODES_ON),
            ("staging", self.staging, STAGING),
        ):
            if value not in known:
                raise InputError.rule(
                    f"{label}: {what}",
                    f"be one of {', '.join(known)}",
                    f"'{value}'",
                    "choose one",
                )
        require_positive(f"{label}: rate_per_core", self.rate_per_core, finite=False)
        require_positive(f"{label}: workers", self.workers, finite=False)
        require_positive(f"{label}: scatter_bandwidth", self.scatter_bandwidth, finite=False)
        if self.measured_rate is not None:
            require_positive(
                f"{label}: the measured rate of a host", self.measured_rate, finite=False
            )
        for what in (
            "device_time",
            "stored_size",
            "decoded_size",
            "files_per_sample",
            "variation",
        ):
            require_not_negative(f"{label}: {what}", getattr(self, what))

    def with_rate(self, samples_per_second: float) -> Loader:
        """The loader at a rate that was measured: samples a second and host. [1/s]"""
        return replace(self, measured_rate=samples_per_second)

    def with_storage(self, storage: Storage) -> Loader:
        """The loader reading elsewhere."""
        return replace(self, storage=storage)

    def for_sample(self, *, stored_size: float, decoded_size: float) -> Loader:
        """The loader for samples of another size.

        Decoding is taken to cost in proportion to the bytes read, and what the device does to
        those it gets. A measured rate is dropped: it was for other samples.

        Parameters
        ----------
        stored_size, decoded_size
            Size of a sample as it is read, and as a device gets it. [B]
        """
        label = f"loader {self.name}"
        require_positive(f"{label}: stored_size", stored_size, finite=False)
        require_positive(f"{label}: decoded_size", decoded_size, finite=False)
        read = stored_size / self.stored_size if self.stored_size else 1.0
        got = decoded_size / self.decoded_size if self.decoded_size else 1.0
        return replace(
            self,
            stored_size=stored_size if self.stored_size else 0.0,
            decoded_size=decoded_size if self.decoded_size else 0.0,
            rate_per_core=self.rate_per_core / read,
            device_time=self.device_time * got,
            measured_rate=None,
        )

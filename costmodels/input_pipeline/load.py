"""Read the built-in loaders and storages; quantities carry their units and are converted here."""

from __future__ import annotations

import math
import tomllib
from functools import lru_cache
from importlib.resources import files

import msgspec

from costmodels.errors import InputError, closest
from costmodels.input_pipeline.loader import Loader, Storage
from costmodels.units import parse_bandwidth, parse_bytes, parse_seconds


class StorageFile(msgspec.Struct, forbid_unknown_fields=True):
    """A storage as it is written; what is left out sets no limit."""

    source: str
    host_bandwidth: str | None = None
    total_bandwidth: str | None = None
    host_files_per_second: float = math.inf
    total_files_per_second: float = math.inf


class LoaderFile(msgspec.Struct, forbid_unknown_fields=True):
    """A loader as it is written."""

    description: str
    source: str
    storage: str
    decodes_on: str
    staging: str
    rate_per_core: float = math.inf
    workers: int = 1
    device_time: str = "0 s"
    stored_size: str = "0 B"
    decoded_size: str = "0 B"
    files_per_sample: float = 0.0
    scatter_bandwidth: str | None = None
    variation: float = 0.0


class LoadersFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file of all of them."""

    storage: dict[str, StorageFile]
    loaders: dict[str, LoaderFile]


@lru_cache(maxsize=1)
def _file() -> LoadersFile:
    path = files("costmodels.input_pipeline") / "data" / "loaders.toml"
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), LoadersFile)


def list_loaders() -> tuple[str, ...]:
    """Names of the built-in loaders."""
    return tuple(_file().loaders)


def list_storages() -> tuple[str, ...]:
    """Names of the built-in storages."""
    return tuple(_file().storage)


def load_storage(name: str) -> Storage:
    """A built-in storage by its name."""
    if name not in _file().storage:
        raise InputError.rule(
            "the storage",
            "be a built-in one",
            f"'{name}'",
            f"use one of {closest(name, list_storages())}",
        )
    data = _file().storage[name]
    return Storage(
        name=name,
        host_bandwidth=_bandwidth(data.host_bandwidth, f"storage {name}: host_bandwidth"),
        total_bandwidth=_bandwidth(data.total_bandwidth, f"storage {name}: total_bandwidth"),
        host_files=data.host_files_per_second,
        total_files=data.total_files_per_second,
        source=data.source,
    )


def load_loader(name: str) -> Loader:
    """A built-in loader by its name."""
    if name not in _file().loaders:
        raise InputError.rule(
            "the data loader",
            "be a built-in one",
            f"'{name}'",
            f"use one of {closest(name, list_loaders())}",
        )
    data, label = _file().loaders[name], f"loader {name}"
    return Loader(
        name=name,
        storage=load_storage(data.storage),
        decodes_on=data.decodes_on,
        rate_per_core=data.rate_per_core,
        workers=data.workers,
        device_time=parse_seconds(data.device_time, what=label, allow_zero=True),
        stored_size=parse_bytes(data.stored_size, what=label, allow_zero=True),
        decoded_size=parse_bytes(data.decoded_size, what=label, allow_zero=True),
        files_per_sample=data.files_per_sample,
        staging=data.staging,
        scatter_bandwidth=_bandwidth(data.scatter_bandwidth, f"{label}: scatter_bandwidth"),
        variation=data.variation,
        description=data.description,
        source=data.source,
    )


def _bandwidth(text: str | None, what: str) -> float:
    return math.inf if text is None else parse_bandwidth(text, what=what)

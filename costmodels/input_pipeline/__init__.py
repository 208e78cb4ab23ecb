"""The input of a training step: loading, decoding and staging samples (see `times`)."""

from costmodels.input_pipeline.load import list_loaders, list_storages, load_loader, load_storage
from costmodels.input_pipeline.loader import Host, Loader, Storage
from costmodels.input_pipeline.stragglers import expected_slowest
from costmodels.input_pipeline.times import BOTTLENECKS, InputTime, input_time

__all__ = [
    "BOTTLENECKS",
    "Host",
    "InputTime",
    "Loader",
    "Storage",
    "expected_slowest",
    "input_time",
    "list_loaders",
    "list_storages",
    "load_loader",
    "load_storage",
]

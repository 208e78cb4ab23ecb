"""Networks: built in, and read from files."""

from planner.models.files import (
    format_network,
    load_network,
    network_of,
    parse_network,
    resized,
)
from planner.models.registry import BUILT_IN, BuiltInNetwork, build, list_models

__all__ = [
    "BUILT_IN",
    "BuiltInNetwork",
    "build",
    "format_network",
    "list_models",
    "load_network",
    "network_of",
    "parse_network",
    "resized",
]

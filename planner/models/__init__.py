"""Networks: built in, and read from files."""

from planner.models.adjusted import padded_vocabulary, with_capacity
from planner.models.built_in import BuiltInNetwork
from planner.models.configs import families, is_config
from planner.models.files import (
    format_network,
    load_network,
    network_of,
    network_of_tables,
    parse_network,
    resized,
)
from planner.models.registry import BUILT_IN, build, list_models

__all__ = [
    "BUILT_IN",
    "BuiltInNetwork",
    "build",
    "families",
    "format_network",
    "is_config",
    "list_models",
    "load_network",
    "network_of",
    "network_of_tables",
    "padded_vocabulary",
    "parse_network",
    "resized",
    "with_capacity",
]

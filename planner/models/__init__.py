"""Networks: built in, and read from files."""

from planner.models.files import dump_network, format_network, load_network, parse_network
from planner.models.registry import MODELS, Model, build, list_models

__all__ = [
    "MODELS",
    "Model",
    "build",
    "dump_network",
    "format_network",
    "list_models",
    "load_network",
    "parse_network",
]

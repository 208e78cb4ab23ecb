"""Networks that several tests of this folder read."""

from __future__ import annotations

import pytest

from costmodels.graph import Graph, build_graph
from planner.models import load_network


@pytest.fixture(scope="module")
def gpt() -> Graph:
    return build_graph(load_network("gpt2"), 16)


@pytest.fixture(scope="module")
def resnet() -> Graph:
    return build_graph(load_network("resnet50"), 16)

"""Messages of stages: what is known of one holds for all that lie on the same links."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.cluster import load_cluster
from costmodels.communication.topology import Topology
from costmodels.simulation import messages
from costmodels.simulation.messages import LINK_MODELS, StageLinks
from costmodels.strategy import Stage

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def _links(stage: int, **more: str) -> StageLinks:
    """Those of one of eight stages of 16 devices each, on two hosts."""
    place = Stage(layers=(), first_device=16 * stage, shape=(8, 2))
    return StageLinks(load_cluster("dgx-a100"), (8, 16), place, **more)


def test_the_links_of_a_part_of_a_cluster_are_made_once():
    cluster = load_cluster("dgx-a100")
    one = Topology.of(cluster, (8, 2))
    assert Topology.of(replace(cluster, name="another"), (8, 2)) is one
    assert Topology.of(cluster, (8, 4)) is not one
    slower = replace(cluster.levels[1], bandwidth=cluster.levels[1].bandwidth / 2)
    other = Topology.of(replace(cluster, levels=(cluster.levels[0], slower)), (8, 2))
    assert other.link_bandwidth[1] == one.link_bandwidth[1] / 2


@pytest.mark.parametrize("model", LINK_MODELS)
@pytest.mark.parametrize("group", [(2, 1), (8, 2), (1, 2)])
def test_a_collective_takes_as_long_in_every_stage_and_fills_its_own_links(model, group):
    for kind in KINDS:
        first, fourth = _links(0, links=model), _links(3, links=model)
        one, other = (each.collective(kind, group, 2.0**20) for each in (first, fourth))
        assert one[:2] == other[:2]
        assert one.ranks == other.ranks
        for (level, child, way), part in one.loads:
            # 48 devices further on
            assert ((level, child + (48, 6)[level], way), part) in other.loads
        assert len(one.loads) == len(other.loads)
        assert first.collective(kind, group, 2.0**21).time > one.time


def test_algorithms_and_models_of_links_are_told_apart():
    times = {
        (algorithm, model): _links(0, algorithm=algorithm, links=model)
        .collective("all_reduce", (8, 2), 1e6)
        .time
        for algorithm in ("ring", "tree")
        for model in ("shared", "nominal")
    }
    assert len(set(times.values())) >= 3


def test_no_more_collectives_are_remembered_than_that(monkeypatch):
    monkeypatch.setattr(messages, "MOST_KNOWN", 4)
    links = _links(0)
    known = messages._COLLECTIVES.setdefault(links.topology, {})
    known.clear()
    for size in range(1, 12):
        links.collective("all_gather", (8, 1), float(size))
        assert len(known) <= 4

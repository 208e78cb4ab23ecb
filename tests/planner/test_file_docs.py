"""What the documentation shows of cluster files and tables is read, and its commands are run."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import planner
from costmodels.cluster import load_cluster
from costmodels.cluster.files import (
    ClusterFile,
    GroupFile,
    HostFile,
    LevelFile,
    MixedClusterFile,
)
from costmodels.compute.table import COLUMNS, CostTable

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.S)


def documented(name: str) -> set[str]:
    rows = re.findall(r"^\| (`.*?) \| .* \|$", (DOCS / name).read_text(encoding="utf-8"), re.M)
    return {field for row in rows for field in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_clusters_shown_can_be_planned_for(number: int, tmp_path: Path) -> None:
    path = tmp_path / "my-cluster.toml"
    path.write_text(blocks("cluster-files.md", "toml")[number], encoding="utf-8")
    cluster = load_cluster(path)
    gpus = cluster.num_devices
    plan = planner.evaluate("resnet18", gpus=gpus, cluster=str(path), global_batch_size=4 * gpus)
    assert plan.gpus == gpus
    assert plan.cluster == cluster.name


def test_every_field_of_a_cluster_file_is_documented() -> None:
    fields = {
        f.name
        for kind in (ClusterFile, MixedClusterFile, GroupFile, HostFile, LevelFile)
        for f in msgspec.structs.fields(kind)
    }
    assert fields == documented("cluster-files.md")


def test_the_table_shown_is_read_and_used(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(blocks("tables.md", "csv")[0], encoding="utf-8")
    table = CostTable.load(path)
    assert len(table) == 3
    assert table.provenance["device"] == "V100-SXM2-16GB"
    plan = planner.evaluate(
        "resnet18", gpus=4, cluster="lassen", global_batch_size=128, tables=[path]
    )
    assert plan.layers["conv1"].forward_s == 0.00182


def test_every_column_of_a_table_is_documented() -> None:
    assert documented("tables.md") == set(COLUMNS)

"""No prediction gets worse unseen: a ceiling for the error of every table, kept in one file.

`accuracy_ceilings.toml` holds what is measured now and a point more. A table that vanishes, or that
counts fewer cells than it did, fails, too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.__main__ import PUBLISHED_TABLES, STATEMENTS
from benchmarks.accuracy.cells import Summary
from benchmarks.accuracy.llm.compare import compare_llm_files
from benchmarks.accuracy.measured import RowComparison, RowQuestion, compare_files, measured_files
from benchmarks.published import juwels, proteus
from benchmarks.published.congestion import congestion_findings

CEILINGS: Mapping[str, Any] = tomllib.loads(
    (Path(__file__).parent / "accuracy_ceilings.toml").read_text(encoding="utf-8")
)
DATA = Path("../shared/data")
# Most of their time goes into simulated flows, and into tables that others are like.
SLOW_TABLES = {"Dryden III", "Li, saturation", "Li, cap of a flow"}


def within(summary: Summary | None, ceiling: Mapping[str, float], what: str) -> None:
    assert summary is not None, f"{what} counts no cells any more"
    assert summary.count >= ceiling["cells"], f"{what} counts {summary.count} cells"
    assert summary.mean <= ceiling["mean"], f"{what}: mean error {summary.mean:.1%}"
    assert abs(summary.worst) <= ceiling["worst"], f"{what}: worst error {summary.worst:+.1%}"


def test_every_published_table_has_a_ceiling() -> None:
    assert set(CEILINGS["published"]) == set(PUBLISHED_TABLES)
    assert set(CEILINGS["stated"]) == set(STATEMENTS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW_TABLES else ())
        for name in CEILINGS["published"]
    ],
)
def test_published_tables_are_predicted_as_well_as_they_were(name: str) -> None:
    tables = {table.name: table for table in PUBLISHED_TABLES[name]()}
    assert set(tables) == set(CEILINGS["published"][name])
    for table, ceiling in CEILINGS["published"][name].items():
        within(tables[table].summary, ceiling, table)
        ranks = tables[table].ranks
        assert ranks.agreeing >= ceiling.get("pairs", 0), f"{table}: {ranks.swapped}"


def test_statements_of_juwels_hold() -> None:
    holding, statements = juwels.claims_held()
    assert holding >= CEILINGS["stated"]["JUWELS"]["holding"]
    assert statements == CEILINGS["stated"]["JUWELS"]["statements"]


@pytest.mark.parametrize("config", ["HC1", "HC2"])
def test_strategies_of_proteus_are_in_order(config: str) -> None:
    right, total = proteus.order(config, proteus.VARIANTS[0])
    assert [right, total] == CEILINGS["stated"]["Proteus"][config]


def test_statements_on_congestion_hold() -> None:
    found = congestion_findings()
    assert [f.counts[0] for f in found] == CEILINGS["stated"]["congestion"]["holding"]


def test_rows_that_lie_with_the_project_are_predicted_as_well_as_they_were() -> None:
    (table,) = compare_llm_files([Path("benchmarks/published/data/nemo_performance.csv")])
    found = table.summary
    ceiling = CEILINGS["transformers"][found.source]
    assert found.rows == ceiling["cells"]
    assert not found.left_out
    assert found.mean_error <= ceiling["mean"]
    assert abs(found.worst_error) <= ceiling["worst"]
    assert found.oom_false_alarms <= ceiling["false_alarms"]


@lru_cache(maxsize=1)
def _measured() -> RowComparison:
    return compare_files(measured_files(DATA), RowQuestion())


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="measured rows are not part of this project")
@pytest.mark.parametrize("source", list(CEILINGS["measured"]))
def test_measured_rows_are_predicted_as_well_as_they_were(source: str) -> None:
    tables = {table.name: table for table in _measured().tables}
    assert source in tables
    for kind, ceiling in CEILINGS["measured"][source].items():
        errors = [c.error for c in tables[source].cells if c.counts and c.kind == kind]
        within(Summary.of(errors), ceiling, f"{source}, {kind}")

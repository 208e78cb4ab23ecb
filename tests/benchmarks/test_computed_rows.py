"""Rows that were computed of parts are told from measured ones by their digits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy.llm.computed import COMPUTED, computed_sources, with_computed_marked
from benchmarks.accuracy.llm.measurement import Configuration, Measurement, Sizes
from benchmarks.accuracy.llm.predict import LlmPrediction
from benchmarks.accuracy.llm.report import LlmTable, print_llm_tables
from benchmarks.accuracy.llm.rows import read_llm_rows
from benchmarks.accuracy.llm.summary import LlmCell, summarised

FILE = Path("../shared/data/measured/llm_training.csv")
SIZES = Sizes(
    name="some", hidden=64, layers=4, heads=4, kv_heads=4, ffn=256, vocabulary=1000, sequence=128
)
CONFIGURATION = Configuration(
    sizes=SIZES,
    framework="any",
    gpu="A100",
    gpus=8,
    per_host=8,
    links="",
    measured_links=None,
    tp=1,
    pp=1,
    dp=8,
    cp=1,
    ep=1,
    chunks=1,
    zero=0,
    fsdp=0,
    micro_batch=1,
    global_batch=16,
    recompute="none",
    precision="fp16",
    sequence_parallel=False,
)


def rows(strategies: int = 12, batches: int = 3, noise: float = 0.0) -> list[Measurement]:
    """Steps of a constant and a time a micro-batch, printed to the nanosecond."""
    chance = random.Random(1)
    return [
        Measurement(
            source="a laboratory",
            workload=(n,),
            configuration=replace(CONFIGURATION, micro_batch=micro, global_batch=8 * micro * 2**n),
            seconds=round((0.00678 + 0.0428 * micro * 2**n) * (1 + noise * chance.random()), 9),
        )
        for micro in range(1, strategies + 1)
        for n in range(batches)
    ]


def test_steps_that_are_sums_to_the_last_digit_are_in_doubt():
    assert computed_sources(rows()) == {"a laboratory"}
    assert {row.doubt for row in with_computed_marked(rows())} == {COMPUTED}
    slow = [replace(row, doubt="slow") for row in rows()]
    assert {row.doubt for row in with_computed_marked(slow)} == {"slow"}


@pytest.mark.parametrize(
    "given", [rows(noise=1e-5), rows(strategies=9), rows(batches=2), [*rows(), *rows(3, 3, 0.01)]]
)
def test_what_a_clock_may_have_measured_is_not(given):
    assert computed_sources(given) == frozenset()
    assert with_computed_marked(given) == tuple(given)


@pytest.mark.skipif(not FILE.exists(), reason="needs the measured rows")
def test_steps_of_vtrain_on_one_host_are_computed_and_no_others():
    found = read_llm_rows([FILE]).measurements
    assert len({row.source for row in found}) > 5
    [source] = {row.source for row in found if row.doubt == COMPUTED}
    assert source.endswith("ground_truth_single.csv")
    assert sum(row.source == source for row in found) == 720


def test_a_doubt_is_printed_with_what_its_rows_would_come_to(capsys):
    [row, *_] = with_computed_marked(rows())
    assert row.seconds is not None
    prediction = LlmPrediction(
        seconds=1.25 * row.seconds,
        memory=1.0,
        of_first=1.0,
        outside=0.0,
        capacity=2.0,
        lasting_short=-1.0,
        model_flops=1.0,
    )
    cell = LlmCell(measurement=row, prediction=prediction)
    table = LlmTable(cells=(cell,), summary=summarised(row.source, [cell], {}, 0))
    assert table.summary.mean_error is None
    print_llm_tables([table], Console(width=200), markdown=True, every_row=False)
    [line] = [line for line in capsys.readouterr().out.splitlines() if COMPUTED in line]
    assert "25.0%" in line

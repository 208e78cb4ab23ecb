"""Some hostile files and command lines; `run.py` runs as many as one likes."""

from __future__ import annotations

import sys

import pytest
from fuzz_campaign import known, prepare, run_cases, unknown

SEED, CASES, PARTS = 1, 160, 5

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits and rights are set in Linux's way"
)


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_hostile_gets_through(part: int) -> None:
    found = run_cases(SEED, range(part, CASES, PARTS))
    new = set(unknown(one.failure.cause for one in found))
    shown = [
        f"case {one.number}: {one.failure.cause} | {one.failure.detail[:200]} | "
        f"planner {one.command} | {'; '.join(one.changes)}"
        for one in found
        if one.failure.cause in new
    ]
    assert not shown, "\n".join(shown)


def test_a_case_is_made_again_from_its_numbers() -> None:
    runner = prepare()
    first, again = (runner.run(SEED, 7)[0] for _ in range(2))
    assert first.arguments() == again.arguments()
    assert [file.data() for file in first.files] == [file.data() for file in again.files]


def test_known_causes_say_why() -> None:
    assert all(reason for _, reason in known())

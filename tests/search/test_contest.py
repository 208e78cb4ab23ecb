"""Problem files: read as meant, refused in one sentence, written so that they read back."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problem_files import BAD, BEST_CHOICES, BEST_COST, BEST_PEAK, GOOD, ZIPPED, changed, put
from random_problems import assert_one_sentence, problems

from search import CostEdge, Problem, ProblemError, costs_and_peaks, solve
from search.files.contest import read_problem
from search.files.contest_output import finest_unit, problem_bytes, solution_text

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, data: bytes) -> Problem:
    path = folder / "problem"
    path.write_bytes(data)
    return read_problem(path).problem


def equal(one: Problem, other: Problem, tolerance: float = 0.0) -> None:
    """Fail unless every assignment costs and uses the same in both."""
    everything = itertools.islice(itertools.product(*(range(s) for s in one.sizes)), 300)
    choices = np.array(list(everything))
    assert one.sizes == other.sizes
    for ours, theirs in zip(
        costs_and_peaks(one, choices), costs_and_peaks(other, choices), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=tolerance)


@pytest.mark.parametrize("data", [GOOD, ZIPPED], ids=["plain", "gzipped"])
@pytest.mark.parametrize("name", ["small.json", "small.json.gz"])
def test_a_file_is_read_whatever_its_name(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    file = read_problem(path)
    problem = file.problem
    assert file.name == "small"
    assert problem.intervals == ((0, 4), (3, 9), None)
    assert [c.tolist() for c in problem.costs] == [[1, 5], [1, 7, math.inf], [0]]
    assert [u.tolist() for u in problem.usages] == [[3, 4], [5, 5, 0], [1000]]
    assert problem.usage_limit == 8
    (edge,) = problem.edges
    assert (edge.source, edge.target) == (1, 0)
    assert edge.matrix.tolist() == [[20, 2], [4, 9], [0, 0]]


def test_the_small_file_has_the_solution_worked_by_hand(tmp_path: Path) -> None:
    answer = solve(read(tmp_path, GOOD))
    assert list(answer.choices) == [*BEST_CHOICES, 0]
    assert (answer.cost, answer.lower_bound, answer.peak_usage) == (BEST_COST, BEST_COST, BEST_PEAK)
    free = solve(read(tmp_path, changed(lambda p: p.pop("usage_limit"))))
    assert (free.choices, free.cost) == ((1, 0, 0), 8)


def test_equal_lists_become_one_array(tmp_path: Path) -> None:
    content = json.loads(GOOD)["problem"]
    content["nodes"] = {
        "intervals": [[0, 1]] * 4,
        "costs": [[1, 2], [1, 2], [1, 2], [3]],
        "usages": [[1, 2], [1, 2], [4, 4], [1]],
    }
    content["edges"] = {
        "nodes": [[0, 1], [1, 2], [1, 2], [0, 3], [3, 1]],
        "costs": [[1, 2, 3, 4], [1, 2, 3, 4], [9, 2, 3, 4], [1, 2], [1, 2]],
    }
    problem = read(tmp_path, json.dumps({"problem": content}).encode())
    assert problem.costs[0] is problem.costs[1] is problem.costs[2]
    assert problem.usages[0] is problem.usages[1] is not problem.usages[2]
    first, again, other, column, row = (edge.matrix for edge in problem.edges)
    assert first is again
    assert first is not other
    assert (column.shape, row.shape) == ((2, 1), (1, 2))
    for array in (*problem.costs, *problem.usages, first, column, row):
        assert not array.flags.writeable


def test_parallel_edges_in_both_directions_add_up(tmp_path: Path) -> None:
    def change(inner: dict[str, dict[str, list[list[int]]]]) -> None:
        inner["edges"]["nodes"] += [[1, 0], [0, 1]]
        inner["edges"]["costs"] += [[1, 1, 1, 1, 1, 1], [100, 200, 300, 400, 500, 600]]

    problem = read(tmp_path, changed(change))
    costs, _ = costs_and_peaks(problem, np.array([[0, 1, 0], [1, 0, 0]]))
    assert costs.tolist() == [12 + 1 + 200, 8 + 1 + 400]


@pytest.mark.parametrize("empty", [[], [5, 5], [0, 0]])
def test_a_node_with_an_empty_interval_uses_nothing(empty: list[int], tmp_path: Path) -> None:
    problem = read(tmp_path, put("nodes", "intervals", 0, value=empty))
    assert problem.intervals[0] is None
    assert costs_and_peaks(problem, np.array([[1, 0, 0]]))[1] == [5]


@pytest.mark.parametrize(
    ("cost", "value"),
    [
        (2**53 - 1, 2.0**53 - 1),
        (1 - 2**53, 1 - 2.0**53),
        (10**18, math.inf),
        (2**63 - 1, math.inf),
    ],
)
def test_costs_up_to_the_edges_of_the_range_are_exact(
    cost: int, value: float, tmp_path: Path
) -> None:
    problem = read(tmp_path, put("nodes", "costs", 0, value=[0, cost]))
    assert problem.costs[0].tolist() == [0.0, value]


def test_no_limit_may_be_null_and_what_is_unknown_is_left_alone(tmp_path: Path) -> None:
    assert read(tmp_path, put("usage_limit", value=None)).usage_limit is None
    assert read(tmp_path, put("comment", value={"by": [1.5]})).usage_limit == 8


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    data, says = BAD[kind]
    with pytest.raises(ProblemError, match=re.escape(says)) as caught:
        read(tmp_path, data)
    message = str(caught.value)
    assert message.startswith(f"in {tmp_path / 'problem'}, ")
    assert_one_sentence(message)
    assert len(message) < 600


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(ProblemError, match="cannot be read"):
            read_problem(path)


@SAME_FOLDER
@given(
    data=st.sampled_from([GOOD, ZIPPED]),
    place=st.integers(0, 10**6),
    cut=st.integers(0, 3),
    new=st.binary(max_size=2) | st.sampled_from([b"-", b"9" * 5000, b"[", b'"', b"\\", b"null"]),
)
def test_a_damaged_file_is_read_or_refused_but_never_a_crash(
    data: bytes, place: int, cut: int, new: bytes, tmp_path: Path
) -> None:
    place %= len(data)
    with contextlib.suppress(ProblemError):
        read(tmp_path, data[:place] + new + data[place + cut :])


@SAME_FOLDER
@given(problem=problems(limited=True) | problems(limited=False), compressed=st.booleans())
def test_what_is_written_reads_back(problem: Problem, compressed: bool, tmp_path: Path) -> None:
    unit = 0.125
    data = problem_bytes(problem, name="random", unit=unit, compressed=compressed)
    again = read(tmp_path, data)
    assert data.startswith(b"\x1f\x8b") == compressed
    assert again.usage_limit == problem.usage_limit
    scaled = Problem(
        costs=tuple(c * unit for c in again.costs),
        edges=tuple(
            CostEdge(source=e.source, target=e.target, matrix=e.matrix * unit) for e in again.edges
        ),
        usages=again.usages if problem.usages else (),
        intervals=again.intervals,
        usage_limit=again.usage_limit,
    )
    terms = len(problem.costs) + len(problem.edges)
    equal(problem, scaled, tolerance=terms * unit / 2)
    once_more = problem_bytes(again, name="random", compressed=compressed)
    assert once_more == data, "whole costs are written as they are"


def test_names_and_units_of_a_written_problem(tmp_path: Path) -> None:
    problem = Problem(
        costs=([0.5e-9, math.inf], [-3e-9]),
        edges=(CostEdge(source=0, target=1, matrix=np.array([[2.4e-9], [2.6e-9]])),),
        usages=([7.0, 1.5], [2]),
        intervals=((-2, 1), None),
        usage_limit=9,
        names=("first", "second"),
    )
    data = problem_bytes(problem, name="two, costs in 1e-9 s", unit=1e-9)
    assert json.loads(data)["problem"] == {
        "name": "two, costs in 1e-9 s",
        "nodes": {
            "intervals": [[0, 3], [0, 0]],
            "costs": [[0, 10**18], [-3]],
            "usages": [[7, 2], [2]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[2, 3]]},
        "usage_limit": 9,
    }
    zipped = problem_bytes(problem, name="two, costs in 1e-9 s", unit=1e-9, compressed=True)
    assert gzip.decompress(zipped) == data
    assert read(tmp_path, zipped).usage_limit == 9


@pytest.mark.parametrize(
    ("unit", "says"),
    [(1e-20, "use a larger unit"), (0.0, "above 0"), (-1.0, "above 0"), (math.inf, "finite")],
)
def test_units_that_cannot_be_used_are_refused(unit: float, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        problem_bytes(Problem(costs=([0.001],)), name="", unit=unit)


@given(
    costs=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5),
    scale=st.sampled_from([1.0, 1e-3, 1e-9, 1e-30]),
)
def test_the_finest_unit_keeps_sums_exact_and_is_no_coarser_than_need_be(
    costs: list[float], scale: float
) -> None:
    problem = Problem(
        costs=tuple(np.array([c * scale, math.inf]) for c in costs),
        edges=(CostEdge(source=0, target=1, matrix=np.full((2, 2), costs[0] * scale)),)
        if len(costs) > 1
        else (),
    )
    unit = finest_unit(problem)
    terms = [*costs, *([costs[0]] if len(costs) > 1 else [])]
    total = math.fsum(abs(c) * scale for c in terms)
    if total > 1e-250:
        assert 2.0**53 / 25 < total / unit < 2.0**53
    problem_bytes(problem, name="", unit=unit)


def test_a_solution_is_a_list_of_whole_numbers() -> None:
    assert json.loads(solution_text((3, 0, 12))) == [3, 0, 12]
    assert solution_text(()).strip() == "[]"

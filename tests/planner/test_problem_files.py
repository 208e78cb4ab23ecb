"""`planner solve` and `planner optimize --dump-problem`: answers, files, and how they fail."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from problem_files import BAD, BEST_CHOICES, GOOD, ZIPPED, changed, put
from questions import SPLITS_ALONE

from planner.cli.command import planner_command
from planner.plan import Plan
from planner.planning import answer
from planner.planning.options import SearchOptions
from planner.planning.prepare import prepare
from planner.planning.problem_files import write_problem
from planner.planning.search_plan import search_plan
from planner.request.request import Request
from planner.request.setting import resolve
from search import Assignment, Note, Problem, Status, cost_and_peak
from search.files.contest import read_problem
from search.problem.deadline import OutOfTime

QUESTION = ["alexnet", "--gpus", "8", "--cluster", "lassen", "--global-batch-size", "256"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, list(arguments))


def rows(result: Result) -> dict[str, str]:
    """The figures of an answer by their labels."""
    assert result.exit_code == 0, result.output
    pairs = (re.split(r"  +", line.strip(), maxsplit=1) for line in result.stdout.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def one_line(result: Result, status: int) -> str:
    """The message of a failure, which is all that there is."""
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert "defect" not in result.stderr
    return result.stderr


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_bytes(GOOD)
    return path


def test_solve_says_what_it_found_and_how_good_it_is(problem: Path) -> None:
    result = run("solve", str(problem))
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[:2] == ["small", "  3 nodes with 6 candidates, 1 edge"]
    found = rows(result)
    assert found["Status"] == "proven optimal"
    assert (found["Cost"], found["Lower bound"], found["Gap"]) == ("12", "12", "0.0 %")
    assert found["Peak memory"] == "8 of 8 bytes (100.0 %)"
    assert "presolve" in found["Path"]
    assert re.fullmatch(r"[\d.]+ s to read, [\d.]+ s to solve", found["Time"])
    assert max(map(len, lines)) <= 80


def test_the_example_of_the_document_gives_what_it_says(problem: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "problem-files.md").read_text()
    example, shown = re.search(
        r"```json\n(.+?)```.+?```\n(small\n.+?)\n  Time", text, re.S
    ).groups()
    problem.write_text(example)
    assert json.loads(example) == json.loads(GOOD)
    assert run("solve", str(problem)).stdout.startswith(shown)


def test_numbers_have_their_thousands_apart_and_no_limit_is_said(problem: Path) -> None:
    problem.write_bytes(put("nodes", "costs", 2, value=[7_000_000_000]))
    assert rows(run("solve", str(problem)))["Cost"] == "7,000,000,012"
    problem.write_bytes(changed(lambda p: p.pop("usage_limit")))
    found = rows(run("solve", str(problem)))
    assert (found["Cost"], found["Peak memory"]) == ("8", "9 bytes, without a limit")


def test_the_name_of_a_problem_cannot_write_to_the_terminal(problem: Path) -> None:
    problem.write_bytes(put("name", value="\x1b[2J two\nlines"))
    assert run("solve", str(problem)).stdout.splitlines()[0] == "[2J two lines"


@pytest.mark.parametrize("data", [GOOD, ZIPPED], ids=["plain", "gzipped"])
def test_the_solution_is_written_as_a_list(data: bytes, problem: Path, tmp_path: Path) -> None:
    problem.write_bytes(data)
    solution = tmp_path / "solution.json"
    result = run("solve", str(problem), "-o", str(solution))
    assert result.stdout.endswith(f"\nsolution written to {solution}\n")
    assert json.loads(solution.read_text()) == [*BEST_CHOICES, 0]
    assert sorted(tmp_path.iterdir()) == [problem, solution]


@pytest.mark.parametrize("solver", ["auto", "cp-sat", "exhaustive"])
def test_exact_solvers_and_seeds_agree(solver: str, problem: Path, tmp_path: Path) -> None:
    solutions = []
    for seed in ("0", "7"):
        path = tmp_path / f"{seed}.json"
        result = run("solve", str(problem), "--solver", solver, "--seed", seed, "-o", str(path))
        assert rows(result)["Cost"] == "12"
        solutions.append(path.read_bytes())
    assert solutions[0] == solutions[1]


def test_options_reach_the_solver(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def fake(problem: Problem, **options: Any) -> Assignment:
        options.pop("watch")(10.0, 9.0)
        seen.append(options)
        cost, peak = cost_and_peak(problem, (0, 1, 0))
        return Assignment(
            choices=(0, 1, 0),
            cost=cost,
            lower_bound=10.25,
            status=Status.FEASIBLE,
            peak_usage=peak,
            solver="fake",
            notes=(Note.of("nothing-fits"), Note.of("paths-fixed", paths=3)),
            stopped_by="time limit",
        )

    monkeypatch.setattr("search.solve", fake)
    result = run("solve", str(problem), "--seed", "3", "--time-limit", "9", "--solver", "cp-sat")
    assert seen == [{"solver": "cp-sat", "time_limit": 9.0, "seed": 3}]
    found = rows(result)
    assert (found["Status"], found["Lower bound"], found["Gap"]) == ("feasible", "10.2", "14.6 %")
    assert "stopped early by time limit: the best solution so far" in result.stdout
    fixed = "Fixed 3 longest paths in turn; a heuristic."
    assert f"  - Nothing fits the usage limit.\n  - {fixed}\n" in result.stdout
    run("solve", str(problem))
    assert seen[1] == {"solver": "auto", "time_limit": 60.0, "seed": 0}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_problem_is_status_1_and_writes_nothing(
    kind: str, problem: Path, tmp_path: Path
) -> None:
    problem.write_bytes(BAD[kind][0])
    result = run("solve", str(problem), "-o", str(tmp_path / "solution.json"))
    assert BAD[kind][1] in one_line(result, 1)
    assert list(tmp_path.iterdir()) == [problem]


def test_a_problem_that_is_not_there_is_status_1(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.json"):
        message = one_line(run("solve", str(path), "-o", str(tmp_path / "solution.json")), 1)
        assert "cannot be read" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--time-limit", "0"],
        ["--time-limit", "nan"],
        ["--time-limit", "soon"],
        ["--seed", "-1"],
        ["--solver", "luck"],
        ["-o", ""],
        ["-o", "."],
        ["-o", "no/such/folder/solution.json"],
    ],
    ids=" ".join,
)
def test_options_that_cannot_be_used_are_status_2_before_the_file_is_read(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "nowhere" not in one_line(run("solve", "nowhere.json", *options), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_found_before_the_search(
    problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("search.solve", lambda *_, **__: pytest.fail("solved in vain"))
    message = one_line(run("solve", str(problem), "-o", str(problem.parent / "s.json")), 2)
    assert "may not be written" in message


def test_a_solver_that_refuses_the_problem_is_status_2(problem: Path) -> None:
    message = one_line(run("solve", str(problem), "--solver", "shortest-path"), 2)
    assert "shortest-path" in message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (put("usage_limit", value=2), "time step 3 needs at least 8 bytes of 2"),
        (put("nodes", "costs", 2, value=[10**18]), "node 2"),
        (put("edges", "costs", 0, value=[10**18] * 6), "nothing is allowed"),
    ],
    ids=["memory", "candidate", "pairs"],
)
def test_no_solution_is_status_3_and_writes_nothing(
    data: bytes, says: str, problem: Path, tmp_path: Path
) -> None:
    problem.write_bytes(data)
    message = one_line(run("solve", str(problem), "-o", str(tmp_path / "solution.json")), 3)
    assert says in message
    assert ("raise the usage limit" in message) == ("bytes" in says)
    assert list(tmp_path.iterdir()) == [problem]


def nothing(stopped_by: str) -> Assignment:
    return Assignment(
        choices=(),
        cost=float("inf"),
        lower_bound=0.0,
        status=Status.UNKNOWN,
        peak_usage=float("nan"),
        solver="fake",
        stopped_by=stopped_by,
    )


def test_nothing_found_in_time_is_status_4(
    problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.solve", lambda *_, **__: nothing("time limit"))
    arguments = ["solve", str(problem), "--time-limit", "2.5", "-o", str(tmp_path / "s.json")]
    assert "within 2.5 s" in one_line(run(*arguments), 4)
    assert list(tmp_path.iterdir()) == [problem]


def test_an_interrupt_without_an_answer_is_status_130(
    problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place, act in (
        ("search.solve", interrupt),
        ("search.solve", lambda *_, **__: nothing("interrupt")),
        ("search.files.contest.read_problem", interrupt),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, act)
            result = run("solve", str(problem), "-o", str(tmp_path / "solution.json"))
        assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == [problem]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OutOfTime])
def test_an_interrupted_search_shows_and_writes_the_best_so_far(
    stop: type[BaseException], problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise stop

    problem.write_bytes(changed(lambda p: p.pop("usage_limit")))
    monkeypatch.setattr("search.solvers.elimination.eliminate", interrupt)
    solution = tmp_path / "solution.json"
    result = run("solve", str(problem), "--solver", "elimination", "-o", str(solution))
    assert result.exit_code == 0, result.output
    assert "stopped early by" in result.stdout
    assert len(json.loads(solution.read_text())) == 3


def dumped(tmp_path: Path, *options: str, name: str = "dump.json.gz") -> tuple[Plan, Path, Result]:
    plan, path = tmp_path / "plan.json", tmp_path / name
    arguments = ["optimize", *QUESTION, *options, "-o", str(plan), "--dump-problem", str(path)]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return Plan.load(plan), path, result


def unit_of(path: Path) -> float:
    return float(re.fullmatch(r".*, costs in (1e-\d+) s", read_problem(path).name).group(1))


def test_the_optimum_of_a_dumped_problem_is_the_bound_of_the_plan(tmp_path: Path) -> None:
    plan, path, result = dumped(tmp_path)
    assert f"problem written to {path}" in result.stdout
    assert path.read_bytes().startswith(b"\x1f\x8b")
    assert read_problem(path).name.startswith("alexnet on 8 GPUs, costs in 1e-")
    found = rows(run("solve", str(path)))
    assert found["Status"] == "proven optimal"
    seconds = int(found["Cost"].replace(",", "")) * unit_of(path)
    assert seconds == pytest.approx(plan.search.lower_bound_s, rel=1e-9)
    assert seconds <= plan.step_time_s


def test_no_plan_is_cheaper_in_a_dumped_problem_than_its_solution(tmp_path: Path) -> None:
    plan, path, _ = dumped(tmp_path, "--cap", "30", name="dump.json")
    problem, unit = read_problem(path).problem, unit_of(path)
    solution = tmp_path / "solution.json"
    rows(run("solve", str(path), "-o", str(solution)))
    best, _ = cost_and_peak(problem, json.loads(solution.read_text()))
    setting = resolve(Request(source="alexnet", gpus=8, cluster="lassen", global_batch_size=256))
    prepared = prepare(setting, SearchOptions(cap=30))
    # candidates that come back lie behind those that the search began with
    formulation = search_plan(prepared.formulation, starts=prepared.starts).formulation
    assert problem.sizes == formulation.problem().sizes
    choices = formulation.choices({n: layer.distribution for n, layer in plan.layers.items()})
    cost, _ = cost_and_peak(problem, choices)
    assert best <= cost
    # what the plan costs in the file bounds its step from below
    assert cost * unit <= plan.step_time_s * (1 + 1e-9)


def test_rounding_is_below_a_billionth_of_the_step(tmp_path: Path) -> None:
    plan, path, _ = dumped(tmp_path, name="dump.json")
    problem = read_problem(path).problem
    terms = problem.num_nodes + len(problem.edges)
    assert terms * unit_of(path) / 2 <= 1e-9 * plan.step_time_s


@pytest.mark.slow
def test_where_memory_binds_the_limit_is_dumped_too(tmp_path: Path) -> None:
    batch = ("--global-batch-size", "1024")
    free, path, _ = dumped(tmp_path, *batch)
    assert read_problem(path).problem.usage_limit is None
    plan, path, _ = dumped(tmp_path, *batch, "--memory", f"{free.peak_memory / 2**30 * 0.95} GiB")
    problem = read_problem(path).problem
    assert problem.usage_limit is not None
    assert problem.usage_limit <= plan.memory_capacity_bytes
    solved = rows(run("solve", str(path)))
    assert solved["Status"] == "proven optimal"
    seconds = int(solved["Cost"].replace(",", "")) * unit_of(path)
    assert seconds >= plan.search.lower_bound_s * (1 - 1e-9)


@pytest.mark.slow
def test_a_dump_changes_no_plan_and_is_the_same_every_time(tmp_path: Path) -> None:
    contents: list[list[bytes]] = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        # a problem is of splits alone
        _, path, _ = dumped(folder, "--forbid", SPLITS_ALONE)
        contents.append([(folder / "plan.json").read_bytes(), path.read_bytes()])
    assert contents[0] == contents[1]
    plain = tmp_path / "plain.json"
    words = ("--forbid", SPLITS_ALONE, "-q", "-o", str(plain))
    assert run("optimize", *QUESTION, *words).exit_code == 0
    assert plain.read_bytes() == contents[0][0]


@pytest.mark.parametrize("path", ["", ".", "no/such/folder/dump.json"])
def test_a_dump_that_cannot_be_written_is_status_2_before_the_search(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(answer, "search_plan", lambda *_, **__: pytest.fail("searched in vain"))
    arguments = ["optimize", *QUESTION, "-o", "plan.json", "--dump-problem", path]
    assert "cannot be written" in one_line(run(*arguments), 2)
    assert list(tmp_path.iterdir()) == []


def test_no_plan_no_dump(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    arguments = ["optimize", "mesh-2k", "--gpus", "1", "--cluster", "lassen"]
    one_line(run(*arguments, "--global-batch-size", "4", "--dump-problem", str(path)), 3)
    assert not path.exists()


def test_an_interrupted_search_still_dumps_its_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.planning.bounds.additive_search.SOLVERS", {"auto": interrupt})
    plan, path, _ = dumped(tmp_path)
    assert read_problem(path).problem.num_nodes == len(plan.layers)


@pytest.mark.parametrize("name", ["p.json", "p.json.gz", "P.GZ"])
def test_problems_are_gzipped_by_the_name_of_the_file(name: str, tmp_path: Path) -> None:
    problem = Problem(costs=(np.array([0.25, np.inf]),))
    write_problem(tmp_path / name, problem, "one")
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.lower().endswith("gz") else data
    inner = json.loads(text)["problem"]
    assert inner["name"] == "one, costs in 1e-16 s"
    assert inner["nodes"]["costs"] == [[25 * 10**14, 10**18]]

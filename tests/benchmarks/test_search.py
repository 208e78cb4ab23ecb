"""The benchmark of the search: its own evaluator, what is known, runs and tables."""

from __future__ import annotations

import gzip
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from problem_files import BEST_CHOICES, BEST_COST, BEST_PEAK, small
from rich.console import Console

import search
from benchmarks.search import __main__ as benchmark_module
from benchmarks.search import worker as search_worker
from benchmarks.search.__main__ import benchmark, parser
from benchmarks.search.check import FORBIDDEN, cost_of, disagreements, peak_of, read_raw
from benchmarks.search.known import (
    BadInput,
    Instance,
    Known,
    contest_limit,
    find_instances,
    read_known,
)
from benchmarks.search.runs import RunInterrupted, SolverRun, best_known, make_run, run
from benchmarks.search.tables import cells, markdown, remarks, show_runs
from search.files.contest import read_problem

CHOICES = [*BEST_CHOICES, 0]
RIGHT = {"cost": BEST_COST, "bound": 12.0, "peak": BEST_PEAK}


def random_raw(seed: int) -> dict[str, Any]:
    """A small problem with everything that files can hold."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(2, 7))]

    def costs(count: int) -> list[int]:
        return [FORBIDDEN if rng.random() < 0.05 else rng.randint(-9, 99) for _ in range(count)]

    def interval() -> list[int]:
        start = rng.randint(0, 9)
        return [] if rng.random() < 0.1 else [start, start + rng.randint(0, 5)]

    pairs = [rng.sample(range(len(sizes)), 2) for _ in range(rng.randint(0, 9))]
    raw = {
        "nodes": {
            "intervals": [interval() for _ in sizes],
            "costs": [costs(size) for size in sizes],
            "usages": [[rng.randint(0, 50) for _ in range(size)] for size in sizes],
        },
        "edges": {"nodes": pairs, "costs": [costs(sizes[a] * sizes[b]) for a, b in pairs]},
    }
    return raw | ({"usage_limit": 60} if rng.random() < 0.7 else {})


def test_the_evaluator_agrees_with_that_of_the_search(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    allowed = forbidden = 0
    for seed in range(60):
        path.write_text(json.dumps({"problem": random_raw(seed)}))
        raw, problem = read_raw(path), read_problem(path).problem
        rng = random.Random(seed)
        for _ in range(20):
            choices = [rng.randrange(size) for size in problem.sizes]
            cost, peak = search.cost_and_peak(problem, choices)
            assert peak_of(raw, choices) == peak
            if cost < float("inf"):
                allowed += 1
                assert cost_of(raw, choices) == cost
            else:
                forbidden += 1
                assert cost_of(raw, choices) >= FORBIDDEN
    assert allowed > 100
    assert forbidden > 100


def test_the_evaluator_by_hand(tmp_path: Path) -> None:
    zipped = tmp_path / "p"
    zipped.write_bytes(gzip.compress(json.dumps(small()).encode()))
    raw = read_raw(zipped)
    assert (cost_of(raw, CHOICES), peak_of(raw, CHOICES)) == (BEST_COST, BEST_PEAK)
    assert cost_of(raw, [0, 2, 0]) >= FORBIDDEN
    assert disagreements(raw, CHOICES, **RIGHT) == []
    assert disagreements(raw, CHOICES, **RIGHT, trace=[(0.1, 13.0, 3.0), (0.2, 12.0, 12.0)]) == []


@pytest.mark.parametrize(
    ("choices", "said", "message"),
    [
        (CHOICES, {"cost": 11.0, "bound": 3.0}, "the cost is 12, not 11"),
        (CHOICES, {"cost": 12.5}, "the cost is 12, not 12.5"),
        (CHOICES, {"cost": float("inf")}, "the cost is 12, not inf"),
        (CHOICES, {"peak": 7.0}, "the peak usage is 8 B, not 7 B"),
        (CHOICES, {"bound": 12.5}, "bound of 12.5 lies above the cost of 12"),
        (CHOICES, {"trace": [(0.1, 13.0, 12.5)]}, "bound of 12.5 lies above the cost of 12"),
        (CHOICES, {"feasible": 11}, "bound of 12 lies above the cost of 11"),
        (CHOICES, {"trace": [(0.1, 11.0, 3.0)]}, "a cost of 11 was announced, but 12"),
        ([1, 0, 0], {"cost": 8, "peak": 9, "bound": 8}, "usage of 9 B exceeds the limit of 8 B"),
        ([0, 2, 0], {}, "contains what is forbidden"),
        ([0, 1], {}, "2 choices for 3 nodes"),
        ([0, 3, 0], {}, "node 1 has no candidate 3"),
        ([0, -1, 0], {}, "node 1 has no candidate -1"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(
    choices: list[int], said: dict[str, Any], message: str
) -> None:
    (wrong,) = disagreements(small()["problem"], choices, **(RIGHT | said))
    assert message in wrong


def test_costs_beyond_float64_are_compared_as_closely_as_it_can() -> None:
    raw = {"nodes": {"intervals": [[]] * 3, "costs": [[2**52 + 1]] * 3, "usages": [[0]] * 3}}
    raw["edges"] = {"nodes": [], "costs": []}
    true = 3 * 2**52 + 3
    assert disagreements(raw, [0] * 3, cost=float(true), bound=0.0, peak=0.0) == []
    assert disagreements(raw, [0] * 3, cost=true * (1 + 1e-9), bound=0.0, peak=0.0) != []


HEAD = "instance,time_limit_s,best_contest_cost,best_team,winner_team01_cost,xla_cost\n"


def test_known_costs_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "known.csv"
    path.write_text(HEAD + "A,60,100,team02,110,250\nB,,,,,\nC,30\n")
    assert read_known(path) == {
        "A": Known(time_limit=60.0, best=100, best_team="team02", winner=110, xla=250),
        "B": Known(),
        "C": Known(time_limit=30.0),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("instance,time_limit_s\nA,60\n", "lacks best_contest_cost"),
        (HEAD + "A,60,many,,,\n", "line 2"),
        (HEAD + "A,,,,,\nB,-5,,,,\n", "line 3"),
        (HEAD + "A,,,,,\nA,,,,,\n", "was there before"),
        (HEAD + ",60,,,,\n", "is empty"),
    ],
)
def test_what_is_known_is_refused_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "known.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_known(path)


def test_instances_by_their_files(tmp_path: Path) -> None:
    for name in ("asplos-2025-iopddl-A.json", "asplos-2025-iopddl-A.json.gz", "mine.json", "x.txt"):
        (tmp_path / name).touch()
    (tmp_path / "asplos-2025-iopddl-W.json.gz").touch()
    (tmp_path / "known.csv").write_text(HEAD + "A,45,100,team02,,\n")
    found = find_instances([str(tmp_path)], time_limit=None, known=None)
    facts = {i.name: (i.path.name, i.time_limit, i.assumed, i.known.best) for i in found}
    assert facts == {
        "A": ("asplos-2025-iopddl-A.json.gz", 45.0, False, 100),
        "W": ("asplos-2025-iopddl-W.json.gz", 300.0, False, None),
        "mine": ("mine.json", 60.0, True, None),
    }
    assert [contest_limit(letter) for letter in "AEFGMSTUY"] == [60] * 2 + [120] * 2 + [180] + [
        240,
        240,
        300,
        300,
    ]
    (one,) = find_instances([str(tmp_path / "mine.json")], time_limit=2.0, known=None)
    assert (one.time_limit, one.assumed) == (2.0, False)


INSTANCE = Instance(
    name="A",
    path=Path("A.json"),
    time_limit=60.0,
    known=Known(time_limit=60.0, best=1000, best_team="team02", winner=1010, xla=2500),
)
RUN = SolverRun(
    instance=INSTANCE,
    solver="auto",
    seed=0,
    num_nodes=34932,
    reading=1.25,
    solving=59.0,
    process=61.0,
    cost=1004.0,
    bound=953.8,
    peak_usage=1.0,
    peak_memory=512e6,
    status="feasible",
    stopped_by="time limit",
    trace=(
        (0.5, float("inf"), 900.0),
        (2.0, 1200.0, 900.0),
        (5.0, 1010.0, 950.0),
        (9, 1004, 953.8),
    ),
    choices=(0,),
)


def test_a_row_says_how_good_and_how_soon() -> None:
    assert cells(RUN, [RUN]) == {
        "instance": "A",
        "solver": "auto",
        "seed": "0",
        "nodes": "34,932",
        "limit [s]": "60",
        "solve [s]": "59.0",
        "read [s]": "1.2",
        "process [s]": "61.0",
        "cost": "1,004",
        "proven bound": "954",
        "gap [%]": "5.000",
        "first [s]": "2.0",
        "to 1 % [s]": "5.0",
        "to 0.1 % [s]": "-",
        "to best of 20 [%]": "+0.400",
        "to XLA [x]": "0.402",
        "memory [MB]": "512",
        "status": "feasible, time limit",
    }


def test_the_best_known_is_ours_where_it_is_better() -> None:
    better = replace(RUN, seed=1, cost=996.0, trace=((3.0, 1004.0, 0.0), (4.0, 996.0, 953.8)))
    assert best_known([RUN], INSTANCE) == (1000.0, "contest, team02")
    assert best_known([RUN, better], INSTANCE) == (996.0, "here")
    assert cells(RUN, [RUN, better])["to 1 % [s]"] == "9.0"
    assert cells(better, [RUN, better])["to best of 20 [%]"] == "-0.400"
    text = "\n".join(remarks([RUN, better]))
    assert "Best known: A 996 (here)" in text
    assert f"Contest points of auto: {1000 / 1004 + 1:.4f} of 2" in text
    assert "best 996, median 1,000, worst 1,004, spread 0.803 %" in text


def test_tables_leave_out_what_says_nothing_and_mark_what_is_odd() -> None:
    unknown = replace(INSTANCE, known=Known(), assumed=True)
    odd = replace(RUN, instance=unknown, solving=70.0, trace=((70.0, 1004.0, 953.8),))
    odd = replace(odd, failure="the cost is 1")
    lost = SolverRun(instance=unknown, solver="cp-sat", seed=0, failure="the process was killed")
    text = markdown([odd, lost])
    header, rule, first, second = text.splitlines()[:4]
    assert "XLA" not in header
    assert "seed" not in header
    assert len({line.count("|") for line in (header, rule, first, second)}) == 1
    assert "60*" in first
    assert "<= 70.0" in first
    assert first.endswith("| feasible, time limit, over time, WRONG |")
    assert second.startswith("| A | cp-sat | - |")
    assert "A, cp-sat, seed 0: the process was killed" in text
    assert "no limit is published" in text
    console = Console(width=230, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_runs([RUN], console)
    printed = console.export_text()
    assert "[MB]" in printed
    assert "1,004" in printed


def test_a_trace_notes_every_improvement(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(small()))
    real = search.solve

    def watched(problem: Any, *, watch: Any, **options: Any) -> Any:
        watch(float("inf"), 2.0)
        watch(20.0, 2.0)
        watch(20.0, 2.0)
        return real(problem, **options)

    monkeypatch.setattr(search, "solve", watched)
    found = search_worker.solve_file(str(path), "exhaustive", 5.0, 0)
    assert [point[1:] for point in found["trace"]] == [[None, 2.0], [20.0, 2.0], [12.0, 12.0]]
    assert found["trace"] == sorted(found["trace"], key=lambda point: point[0])
    assert found["peak_memory"] > 1e6
    one = make_run(INSTANCE, "exhaustive", 0, 1.0, json.loads(json.dumps(found)))
    assert one.watched
    assert (one.cost, one.bound, one.status) == (12.0, 12.0, "optimal")
    assert one.trace[0][1] == float("inf")
    assert one.first == one.trace[1][0]


def test_the_limit_can_count_from_the_start_of_the_process(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(small()))
    real, limits = search.solve, []

    def solve(problem: Any, *, time_limit: float, watch: Any, **options: Any) -> Any:
        limits.append(time_limit)
        return real(problem, time_limit=time_limit, **options)

    monkeypatch.setattr(search, "solve", solve)
    now = search_worker.time.monotonic()
    search_worker.solve_file(str(path), "exhaustive", 30.0, 0, now - 10.0)
    search_worker.solve_file(str(path), "exhaustive", 30.0, 0, now - 100.0)
    assert 10.0 < limits[0] <= 20.0
    assert limits[1] == search_worker.LEAST_TIME


def options(*arguments: str) -> Any:
    return parser().parse_args(arguments)


def test_a_small_run_of_everything(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "small.json").write_text(json.dumps(small()))
    (tmp_path / "known.csv").write_text(HEAD + "small,5,12,team01,,24\n")
    output = tmp_path / "runs.json"
    arguments = ("--generate", "leafy:40:1", "--solver", "auto", "--solver", "cp-sat")
    status = benchmark(options(str(tmp_path), *arguments, "--json", str(output), "--markdown"))
    printed = capsys.readouterr()
    assert (status, "WRONG" in printed.out) == (0, False), printed.err
    rows = [line.split(" | ") for line in printed.out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["| small"] * 2 + ["| leafy:40:1"] * 2
    assert all("optimal" in row[-1] for row in rows[2:])
    runs = json.loads(output.read_text())["runs"]
    assert [one["cost"] for one in runs[:2]] == [12.0, 12.0]
    assert runs[2]["cost"] == runs[3]["cost"] > 0
    assert all(one["trace"][-1][1] == one["cost"] for one in runs)
    assert all(one["time_limit"] == limit for one, limit in zip(runs, [5, 5, 60, 60], strict=True))
    # the generated problem and the results of the processes are gone
    assert {path.name for path in tmp_path.iterdir()} == {"small.json", "known.csv", "runs.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "none is given"),
        (("nowhere",), "github.com/google/iopddl"),
        (("{tmp}",), "holds none"),
        (("--smoke", "--time-limit", "0"), "above 0 s"),
        (("--smoke", "--time-limit", "soon"), "above 0 s"),
        (("--smoke", "--time-limit", "inf"), "above 0 s"),
        (("--smoke", "--seed", "-1"), "--seed must be"),
        (("--smoke", "--repeat", "0"), "--repeat must be"),
        (("--smoke", "--solver", "magic"), "must be one of"),
        (("--generate", "cnn:100:1"), "FAMILY:SIZE:SEED"),
        (("--generate", "gnn:0:1"), "FAMILY:SIZE:SEED"),
        (("--smoke", "--json", "{tmp}/no/where.json"), "cannot be written"),
        (("--smoke", "--known", "{tmp}/no.csv", "{tmp}/bad.json"), "must be readable"),
        (("--what",), "unrecognized arguments"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    if any("bad.json" in argument for argument in arguments):
        (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(SystemExit) as stop:
        benchmark(options(*(a.replace("{tmp}", str(tmp_path)) for a in arguments)))
    assert isinstance(stop.value.code, str)  # printed to stderr, exit status 1
    assert message in stop.value.code
    assert "\n" not in stop.value.code


def test_a_file_that_is_no_problem_fails_with_one_sentence(tmp_path: Path, capsys: Any) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert benchmark(options(str(bad), "--repeat", "2")) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("missing required field `problem`") == 1
    assert "Traceback" not in printed.err


def test_a_wrong_answer_fails(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "small.json").write_text(json.dumps(small()))

    def wrong(instance: Instance, solver: str, seed: int, **kept: Any) -> SolverRun:
        return replace(run(instance, solver, seed, **kept), cost=11.0, bound=3.0)

    monkeypatch.setattr(benchmark_module, "run", wrong)
    assert benchmark(options(str(tmp_path), "--solver", "exhaustive")) == 1
    printed = capsys.readouterr()
    assert "the cost is 12, not 11" in printed.err
    assert "WRONG" in printed.out


def test_an_interrupt_prints_what_there_is(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    for name in ("a.json", "b.json", "c.json"):
        (tmp_path / name).write_text(json.dumps(small()))

    def stopped(instance: Instance, solver: str, seed: int, **kept: Any) -> SolverRun:
        done = run(instance, solver, seed, **kept)
        if instance.name == "b":
            raise RunInterrupted(replace(done, stopped_by="interrupt"))
        return done

    monkeypatch.setattr(benchmark_module, "run", stopped)
    output = tmp_path / "runs.json"
    arguments = (str(tmp_path), "--solver", "exhaustive", "--json", str(output))
    assert benchmark(options(*arguments, "--markdown")) == 130
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| a", "| b"]
    assert "interrupt" in rows[-1]
    assert len(json.loads(output.read_text())["runs"]) == 2


def test_a_process_that_dies_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "small.json").write_text(json.dumps(small()))
    instance = replace(INSTANCE, path=tmp_path / "small.json")
    assert "must be one of" in run(instance, "magic", 0).failure
    monkeypatch.setattr(sys, "executable", "/bin/false")
    lost = run(instance, "auto", 0)
    assert (lost.status, lost.failure) == ("failed", "the process ended with exit status 1")

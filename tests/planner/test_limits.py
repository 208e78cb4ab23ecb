"""Limits are kept in every phase, and what ended a search is said as it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from questions import SPLITS_ALONE

import planner
import planner.api  # which is imported late otherwise, and would keep what a test put in place
from planner.cli.command import planner_command
from planner.errors import InfeasibleError
from planner.joint import requests
from planner.joint.requests import optimize_request
from planner.planning import answer, optimize, prepare
from planner.planning.bounds import additive_search
from planner.planning.decision import decide
from planner.planning.decision.decide import TimeToDecide
from planner.planning.space import layer_space, shuffles
from planner.report.sentences import space_sentence
from planner.request.request import make_request
from search import SOLVERS, ProblemError
from search.elimination import k_best
from search.problem import deadline as deadlines
from search.problem.answers import no_assignment
from search.problem.deadline import Deadline, OutOfTime

QUESTION = {"gpus": 8, "input_size": 64, "cluster": "lassen", "global_batch_size": 64, "cap": 16}
ARGUMENTS = "resnet18 --gpus 8 --input-size 64 --cluster lassen --cap 16 --global-batch-size"
# so many samples that nothing fits
MANY, SMALL = 8192, "1.1 GiB"
# so little memory that the usual strategies do not fit, nor is it proven that nothing does
TIGHT = "2.61 GiB"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all deadlines, which stands still."""
    stopped = Clock()
    monkeypatch.setattr(deadlines, "time", stopped)
    return stopped


def takes(clock: Clock, seconds: float, function: Callable, times: int = 10**9) -> Callable:
    """The function, taking so long by that clock, the first times that it is called."""
    calls: Iterator[int] = iter(range(times))

    def slow(*given: object, **options: object) -> object:
        if next(calls, None) is not None:
            clock.now += seconds
        return function(*given, **options)

    return slow


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, [*arguments])


def notes_of(plan: planner.Plan) -> str:
    return "\n".join(plan.fallbacks)


def test_where_shuffles_take_too_long_fewer_candidates_are_searched(clock, monkeypatch):
    slow = takes(clock, 6.0, shuffles._edge_times, times=1)
    monkeypatch.setattr(shuffles, "_edge_times", slow)
    plan = planner.optimize("resnet18", time_limit=10.0, **{**QUESTION, "cap": 40})
    assert "about 16 a layer were searched" in notes_of(plan)
    assert plan.search.stopped_by == "time limit"
    assert clock.now <= 11.0


def test_where_candidates_take_too_long_the_usual_strategies_remain(clock, monkeypatch):
    costed = layer_space.layer_costs

    def slow(layer, candidates, *given, **options):
        # costing the usual strategies is quick, any space is not
        clock.now += 6.0 if len(candidates) > 10 else 0.0
        return costed(layer, candidates, *given, **options)

    monkeypatch.setattr(layer_space, "layer_costs", slow)
    plan = planner.optimize("resnet18", time_limit=20.0, **QUESTION)
    assert "the usual strategies alone were compared" in notes_of(plan)
    assert plan.fits
    assert not plan.search.proven_optimal
    assert plan.search.lower_bound_s == 0.0
    steps = [b.step_time_s for b in plan.baselines if b.step_time_s is not None]
    # or what is made of their runs of layers
    assert plan.step_time_s <= min(steps)


def test_where_there_is_no_time_at_all_no_claim_is_made(clock, monkeypatch):
    monkeypatch.setattr(prepare, "FEW_LAYERS", 0)
    monkeypatch.setattr(layer_space, "layer_costs", takes(clock, 9.0, layer_space.layer_costs))
    with pytest.raises(InfeasibleError, match="stopped before a plan was found") as error:
        planner.optimize("resnet18", time_limit=5.0, forbid=SPLITS_ALONE, **QUESTION)
    assert (error.value.proven, error.value.stopped_by) == (False, "time limit")
    alone = ["--forbid", SPLITS_ALONE]
    result = run("optimize", *ARGUMENTS.split(), "64", "--time-limit", "5", *alone)
    assert (result.exit_code, result.stdout) == (4, "")
    assert "stopped before a plan was found" in result.stderr


def test_a_plan_that_is_late_waits_for_no_bound(monkeypatch):
    def bound(*_):
        raise AssertionError("nobody waits for a bound")

    monkeypatch.setattr("planner.planning.search_plan.LayerBounds.of", bound)
    plan = planner.optimize("resnet18", time_limit=1e-3, **QUESTION)
    assert plan.search.stopped_by == "time limit"
    assert plan.search.lower_bound_s == 0.0


def test_simulation_and_buckets_wait_for_no_time(clock, monkeypatch):
    late = lambda *_: pytest.fail("no time for that")  # noqa: E731
    monkeypatch.setattr(decide.PlanSimulator, "simulate", late)
    searched = answer.search_plan
    monkeypatch.setattr(answer, "search_plan", takes(clock, 30.0, searched))
    plan = planner.optimize("resnet18", time_limit=10.0, **QUESTION)
    assert "no time to simulate" in notes_of(plan)
    assert plan.fits
    assert plan.finalists == ()


def test_only_what_can_end_in_time_is_begun(clock):
    time = TimeToDecide(deadline=Deadline(10.0), pace=0.2)
    assert time.allows(21)
    assert not time.allows(22)
    clock.now = 3.0
    assert time.allows(6)
    assert not time.allows(7)
    assert TimeToDecide(deadline=Deadline(None), pace=1e9).allows(1e9)


def test_the_time_limit_begins_before_the_network_is_read(clock, monkeypatch):
    monkeypatch.setattr(requests, "resolve", takes(clock, 60.0, requests.resolve))
    plan = planner.optimize("resnet18", time_limit=10.0, **QUESTION)
    assert plan.search.stopped_by == "time limit"
    assert "the usual strategies alone were compared" in notes_of(plan)


@pytest.mark.slow
def test_without_a_time_limit_nothing_is_left_out(clock, monkeypatch):
    monkeypatch.setattr(layer_space, "layer_costs", takes(clock, 1e6, layer_space.layer_costs))
    plan = planner.optimize("resnet18", **QUESTION)
    assert "time limit" not in notes_of(plan)
    assert plan.search.stopped_by == ""


@pytest.mark.parametrize("stop", ["time limit", "interrupt"])
def test_a_search_cut_short_does_not_claim_that_nothing_fits(monkeypatch, stop):
    def cut_short(problem, **_):
        if stop == "interrupt":
            raise KeyboardInterrupt
        return no_assignment(solver="auto", lower_bound=0.0, stopped_by=stop)

    monkeypatch.setattr(additive_search, "SOLVERS", {**SOLVERS, "auto": cut_short})
    arguments = ["optimize", *ARGUMENTS.split(), str(MANY), "--memory", TIGHT]
    arguments += ["--forbid", SPLITS_ALONE]
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (4, "")
    assert f"stopped before a plan was found, by the {stop}" in result.stderr
    assert result.stderr.count("\n") == 1
    told = run(*arguments, "--json")
    assert told.exit_code == 4
    assert json.loads(told.stdout)["status"] == "stopped"


@pytest.mark.slow
def test_a_search_that_ends_by_itself_claims_no_proof_without_one(monkeypatch):
    def nothing_found(problem, **_):
        return no_assignment(solver="auto", lower_bound=0.0)

    monkeypatch.setattr(additive_search, "SOLVERS", {**SOLVERS, "auto": nothing_found})
    with pytest.raises(InfeasibleError, match="nor is it proven") as error:
        planner.optimize(
            "resnet18",
            memory=TIGHT,
            forbid=SPLITS_ALONE,
            **{**QUESTION, "global_batch_size": MANY},
        )
    assert (error.value.proven, error.value.status) == (False, "not found")
    alone = ["--forbid", SPLITS_ALONE]
    result = run("optimize", *ARGUMENTS.split(), str(MANY), "--memory", TIGHT, *alone)
    assert result.exit_code == 4


def test_the_proof_is_said_to_be_one() -> None:
    with pytest.raises(InfeasibleError, match=r"^no plan .*fits in memory") as error:
        planner.optimize(
            "resnet18",
            memory=SMALL,
            forbid=SPLITS_ALONE,
            **{**QUESTION, "global_batch_size": MANY},
        )
    assert (error.value.proven, error.value.status) == (True, "infeasible")


def test_out_of_time_in_a_trial_ends_the_trial_only(monkeypatch):
    prepared = prepare.prepare
    calls = iter(range(100))

    def out_of_time_later(*given, **options):
        if next(calls):
            raise OutOfTime
        return prepared(*given, **options)

    monkeypatch.setattr(answer, "prepare", out_of_time_later)
    assert planner.optimize("resnet18", tune_trials=2, **QUESTION).fits


SCALE = ["scale", "alexnet", "--cluster", "lassen", "--cap", "16", "--gpus", "4,8,16"]


@pytest.fixture
def interrupted_at_8(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The solver is interrupted at 8 GPUs; for how many there were searches."""
    asked: list[int] = []
    searched = requests.optimize_request

    def search(request, *given, **options):
        asked.append(request.gpus)
        solvers = dict(SOLVERS)
        if request.gpus == 8:

            def interrupt(*_, **__):
                raise KeyboardInterrupt

            solvers["auto"] = interrupt
        monkeypatch.setattr(additive_search, "SOLVERS", solvers)
        return searched(request, *given, **options)

    monkeypatch.setattr(requests, "optimize_request", search)
    return asked


def test_an_interrupted_scale_shows_its_rows_and_stops(interrupted_at_8) -> None:
    result = run(*SCALE)
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.split()]
    assert result.exit_code == 130
    assert [row for row in rows if row in ("4", "8", "16")] == ["4", "8"]
    assert "(stopped early by interrupt)" in result.stdout
    assert result.stderr == "interrupted\n"
    assert interrupted_at_8 == [4, 8]


def test_an_interrupted_scale_gives_its_rows_as_json(interrupted_at_8) -> None:
    result = run(*SCALE, "--json")
    assert result.exit_code == 130
    assert [row["gpus"] for row in json.loads(result.stdout)["sizes"]] == [4, 8]


def test_an_interrupt_between_searches_ends_scale_too(monkeypatch) -> None:
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    searched = requests.optimize_request
    first = iter([searched])
    monkeypatch.setattr(
        requests,
        "optimize_request",
        lambda *given, **options: next(first, interrupt)(*given, **options),
    )
    result = run(*SCALE)
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
    assert sum(line.split()[:1] == ["4"] for line in result.stdout.splitlines()) == 1


def test_the_iterator_of_scale_ends_with_an_interrupt(interrupted_at_8) -> None:
    plans = list(planner.scale("alexnet", gpus=[4, 8, 16], cluster="lassen", cap=16))
    assert [plan.gpus for plan in plans] == [4, 8]
    assert plans[-1].search.stopped_by == "interrupt"


def test_scale_without_any_plan_claims_no_proof_without_one(monkeypatch) -> None:
    def nothing_found(*_, **__):
        raise InfeasibleError("none", missing_bytes=1.0, layer="fc", proven=False)

    monkeypatch.setattr(requests, "optimize_request", nothing_found)
    result = run(*SCALE)
    assert result.exit_code == 4
    assert result.stderr == "error: no plan was found that fits at any of these numbers of GPUs\n"
    assert result.stdout.count("none found") == 3


def test_help_and_the_table_of_statuses_tell_of_status_4() -> None:
    from planner.cli import failures

    assert "| 4 | no plan that fits, or no solution, was found" in (failures.__doc__ or "")
    assert "4 stopped before a plan was found" in " ".join(run("--help").stdout.split())


@pytest.mark.slow
def test_an_interrupt_while_assignments_are_ranked_ends_the_search(monkeypatch) -> None:
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(k_best, "increasing_assignments", interrupt)
    # one whose bound is not reached, so that the next best assignments are looked for
    plan = planner.optimize("resnet50", gpus=16, cap=16)
    assert plan.search.gap > 0
    assert plan.search.stopped_by == "interrupt"
    assert "search stopped early by interrupt: best plan so far" in plan.fallbacks


def test_after_an_interrupt_of_the_search_only_its_best_is_simulated(monkeypatch) -> None:
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(additive_search, "SOLVERS", {**SOLVERS, "auto": interrupt})
    late = lambda *_: pytest.fail("it was to end")  # noqa: E731
    monkeypatch.setattr(decide, "Moves", late)
    plan = planner.optimize("alexnet", gpus=8, cluster="lassen", cap=16)
    assert plan.search.stopped_by == "interrupt"
    assert plan.fits


@pytest.mark.parametrize(
    ("place", "name"), [(decide, "_decision"), (optimize, "assemble_plan"), (optimize, "summarise")]
)
def test_an_interrupt_after_the_search_does_not_lose_the_plan(monkeypatch, place, name) -> None:
    made = getattr(place, name)

    def interrupted(*arguments, **more):
        signal.raise_signal(signal.SIGINT)
        return made(*arguments, **more)

    monkeypatch.setattr(place, name, interrupted)
    plan = planner.optimize("alexnet", gpus=8, cluster="lassen", cap=16)
    assert plan.search.stopped_by == "interrupt"
    assert plan.fallbacks.count("search stopped early by interrupt: best plan so far") == 1
    scaled = list(planner.scale("alexnet", gpus=[2, 4], cluster="lassen", cap=16))
    assert [plan.gpus for plan in scaled] == [2]


def test_an_answer_cut_short_in_the_ranking_says_so(monkeypatch) -> None:
    def cut_short(problem, k, *, time_limit=None):
        return [replace(one, stopped_by="time limit") for one in ranked(problem, k)]

    ranked = additive_search.k_best
    monkeypatch.setattr(additive_search, "k_best", cut_short)
    assert planner.optimize("resnet50", gpus=16, cap=16).search.stopped_by == "time limit"


def test_a_network_too_wide_to_rank_says_so(monkeypatch) -> None:
    def refuse(*_, **__):
        raise ProblemError("too wide")

    monkeypatch.setattr(additive_search, "k_best", refuse)
    plan = planner.optimize("resnet50", gpus=16, cap=16)
    assert any("too wide to rank" in note for note in plan.fallbacks)


def test_what_was_not_searched_is_not_said_to_be(monkeypatch) -> None:
    def late(*_, only_strategies=False, **options):
        if not only_strategies:
            raise OutOfTime
        return formulate(*_, only_strategies=True, **options)

    formulate = prepare.formulate
    monkeypatch.setattr(prepare, "formulate", late)
    plan = planner.optimize("resnet18", **QUESTION)
    assert plan.search.cap == 0
    assert plan.search.stopped_by == "time limit"
    sentence = space_sentence(plan)
    assert sentence.startswith("the usual strategies alone")
    assert not sentence.endswith("by ")
    assert not any("sensible candidates were searched" in note for note in plan.fallbacks)


@pytest.mark.slow
def test_what_loading_took_counts_against_the_time_limit():
    request = make_request("optimize", {"model": "resnet18", "time_limit": 60.0, **QUESTION})
    assert not optimize_request(request).search.stopped_by
    assert optimize_request(request, spent=60.0).search.stopped_by == "time limit"

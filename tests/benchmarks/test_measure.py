"""Predicted against measured: the plans that are run are those that are predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_extra import require

require("torch")

from benchmarks.measure.canary import Canary, is_steady
from benchmarks.measure.questions import (
    RANKS,
    PlansQuestion,
    needs_of_plans,
    predict,
    questions,
    this_machine,
)
from benchmarks.measure.scores import mean_relative_error, regret, spearman
from costmodels.compute import CostTable

SMALL = (
    PlansQuestion(name="conv", kind="conv", sizes=(8, 7), batch=2),
    PlansQuestion(name="block", kind="block", sizes=(16, 8, 2), batch=2),
)


def run_all(rank: int, folder: str) -> None:
    """What each plan makes of the same numbers, and what it receives, on one of two ranks."""
    import torch
    import torch.distributed as dist

    from benchmarks.measure.steps import RECEIVED, PlanStep

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/m", rank=rank, world_size=RANKS)
    found = {}
    for question in SMALL:
        for plan in question.plans:
            step = PlanStep(question, plan)
            RECEIVED.count = 0.0
            made = step.run()
            received = RECEIVED.count
            # weights after a step, put together again, tell whether the gradients were right
            outputs = [made.double().sum(), *(w.detach().double().sum() for w in step.weights)]
            sums = torch.stack(outputs)
            dist.all_reduce(sums)
            found[f"{question.name} {plan}"] = (received, sums.tolist())
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, list[float]]]:
    import torch.multiprocessing as processes

    folder = tmp_path_factory.mktemp("ranks")
    processes.spawn(run_all, (str(folder),), nprocs=RANKS)
    result: dict[str, tuple[float, list[float]]] = json.loads((folder / "found.json").read_text())
    return result


@pytest.mark.slow
def test_all_plans_make_the_same(found: dict[str, tuple[float, list[float]]]) -> None:
    for question in SMALL:
        made = {plan: found[f"{question.name} {plan}"][1] for plan in question.plans}
        first = made["sample"][0]
        for plan, sums in made.items():
            # the tensor-parallel block has its output on both ranks
            copies = RANKS if plan == "tensor" else 1
            assert sums[0] / copies == pytest.approx(first, rel=1e-4, abs=1e-3), plan


def test_ranks_receive_what_is_charged(found: dict[str, tuple[float, list[float]]]) -> None:
    table = CostTable("none", {}, ())
    for question in SMALL:
        for plan in question.plans:
            said = predict(question, plan, this_machine(8e9), table)
            assert found[f"{question.name} {plan}"][0] == pytest.approx(said.received), plan


def test_there_are_enough_plans_and_all_their_shapes_are_measured() -> None:
    asked = questions()
    assert sum(len(question.plans) for question in asked) >= 20
    needs = needs_of_plans(asked[:1], this_machine(8e9))
    operations = {need.shape.operation for need in needs.needs}
    # blocks of space are copied into tensors with room for their halos
    assert operations == {"conv", "pad", "activation", "sgd_update"}


class TestScores:
    def test_ranks(self) -> None:
        assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
        assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1.0)
        assert spearman([1, 1, 2], [5, 6, 7]) == pytest.approx(0.866, abs=1e-3)
        assert spearman([1, 1], [1, 2]) == 0.0

    def test_regret_is_of_what_is_chosen(self) -> None:
        assert regret([2.0, 1.0], [10.0, 12.0]) == pytest.approx(0.2)
        assert regret([1.0, 2.0], [10.0, 12.0]) == 0.0

    def test_errors_have_no_sign(self) -> None:
        assert mean_relative_error([(1.1, 1.0), (0.7, 1.0)]) == pytest.approx(0.2)


def test_a_canary_tells_how_fast_the_machine_is() -> None:
    now, slow = [0.0], 1.0

    def work() -> None:
        now[0] += slow

    canary = Canary(clock=lambda: now[0], work=work)
    assert canary.pace() == 1.0
    slow = 1.5
    assert canary.pace() == 1.5
    slow = 1.0
    assert canary.pace() == 1.0
    assert is_steady(1.5, 1.6)
    assert not is_steady(1.5, 1.0)
    assert not is_steady(1.0, 1.5)


class Nervous:
    """A canary that is disturbed when it is first heard, on one rank, and then slower by half."""

    def __init__(self, disturbed: bool) -> None:
        self.disturbed = disturbed

    def pace(self) -> float:
        pace, self.disturbed = 3.0 if self.disturbed else 1.5, False
        return pace


def time_calls(rank: int, folder: str) -> None:
    """How often each of two ranks called, and what it was told."""
    import time

    import torch.distributed as dist

    from benchmarks.measure.ranks import quiet_batch
    from planner.tables.profile.timing import time_call

    dist.init_process_group("gloo", init_method=f"file://{folder}/m", rank=rank, world_size=RANKS)
    calls = []

    def call() -> None:
        calls.append(1)
        end = time.process_time() + 0.002 * (1 + rank)
        while time.process_time() < end:
            pass

    timed = quiet_batch(Nervous(disturbed=rank == 1))  # type: ignore[arg-type]
    first = timed(call, 3)
    found = (first, len(calls), time_call(call, timed).seconds, len(calls))
    Path(folder, f"calls{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_time_the_same_calls_at_once(tmp_path: Path) -> None:
    import torch.multiprocessing as processes

    processes.spawn(time_calls, (str(tmp_path),), nprocs=RANKS)
    found = [json.loads((tmp_path / f"calls{rank}.json").read_text()) for rank in range(RANKS)]
    assert found[0] == found[1]
    seconds, calls, *_ = found[0]
    assert calls == 2 * 3  # again on both ranks, where one was disturbed
    assert 1.5 * seconds > 0.0025  # the mean of 2 and 4 ms, at the pace of the canary

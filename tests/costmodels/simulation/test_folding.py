"""A pass as one task takes, holds and shows what its operations do one by one."""

from __future__ import annotations

import pytest

import planner
from costmodels.simulation import compiler, repeated
from planner.simulation.result import Simulation

CASES = [
    {"tp": 2, "pp": 2, "micro_batches": 6, "global_batch_size": 24},
    {"tp": 2, "pp": 4, "micro_batches": 8, "global_batch_size": 16, "recompute": "full"},
    {"tp": 4, "pp": 4, "micro_batches": 5, "global_batch_size": 5, "sequence_parallel": True},
    {"pp": 4, "micro_batches": 8, "global_batch_size": 32, "schedule": "zero-bubble"},
    {"pp": 2, "micro_batches": 5, "global_batch_size": 40, "schedule": "gpipe", "zero": 1},
    {"tp": 2, "micro_batches": 4, "global_batch_size": 32, "recompute": "selective"},
    # a stage computes nothing while it sends
    {"pp": 4, "micro_batches": 8, "global_batch_size": 32, "runtime": "deepspeed"},
]


def both(monkeypatch: pytest.MonkeyPatch, model: str, **question: object) -> list[Simulation]:
    found = []
    for fewest in (10**9, 1):
        monkeypatch.setattr(compiler, "FEWEST_FOLDED", fewest)
        found.append(planner.simulate(model, gpus=16, cluster="dgx-a100", **question))
    one, other = (len(s.simulated.task_times.graph.tasks) for s in found)
    assert other < one / 1.5, "passes are tasks by themselves"
    return found


@pytest.mark.parametrize("case", CASES)
def test_folded_passes_change_nothing(monkeypatch: pytest.MonkeyPatch, case) -> None:
    fine, folded = both(monkeypatch, "gpt2", input_size=256, **case)
    assert folded.step_time == pytest.approx(fine.step_time, rel=1e-3)
    for one, other in zip(fine.simulated.roles, folded.simulated.roles, strict=True):
        # but for what is on its way to another stage
        assert other.memory.total == pytest.approx(one.memory.total, rel=1e-3)
        assert other.memory.holders == pytest.approx(one.memory.holders, abs=2**20)
        # of equal peaks either may be the first
        moments = (role.memory.moment.partition(" of micro")[0] for role in (one, other))
        assert len(set(moments)) == 1
        assert [held.size for held in other.held] == pytest.approx([h.size for h in one.held])
        assert other.busy == pytest.approx(one.busy, rel=1e-3, abs=1e-6)
        assert other.received == pytest.approx(one.received)
        assert other.exposed + other.idle == pytest.approx(one.exposed + one.idle, rel=0.02)


def test_interleaved_passes_differ_by_messages_beside_collectives_only(monkeypatch) -> None:
    case = {"tp": 4, "pp": 4, "chunks": 3, "micro_batches": 8, "global_batch_size": 8}
    fine, folded = both(monkeypatch, "gpt2", input_size=512, sequence_parallel=True, **case)
    assert folded.step_time == pytest.approx(fine.step_time, rel=0.05)
    assert folded.peak_memory == pytest.approx(fine.peak_memory, rel=0.01)


def test_a_message_from_the_middle_of_a_pass_is_not_held_up(monkeypatch) -> None:
    # the decoder reads what the encoder made stages ago
    case = {"tp": 4, "pp": 4, "micro_batches": 4, "global_batch_size": 4}
    fine, folded = both(monkeypatch, "t5-11b", input_size=128, **case)
    assert folded.step_time == pytest.approx(fine.step_time, rel=5e-3)


@pytest.mark.parametrize(
    "case",
    [
        {"fsdp": True, "micro_batches": 24, "global_batch_size": 384},
        {"fsdp": True, "shard_size": 8, "micro_batches": 16, "global_batch_size": 256},
        {"zero": 2, "runtime": "zero2", "pp": 4, "micro_batches": 20, "global_batch_size": 80},
        {
            "fsdp": True,
            "pp": 2,
            "chunks": 2,
            "tp": 2,
            "micro_batches": 24,
            "global_batch_size": 96,
        },
    ],
)
def test_further_micro_batches_add_what_the_last_did(monkeypatch, case) -> None:
    found = []
    for fewest in (10**9, 1):
        monkeypatch.setattr(repeated, "FEWEST_FOLDED", fewest)
        question = {"gpus": 16, "cluster": "dgx-a100", "input_size": 256}
        found.append(planner.simulate("gpt2", **question, **case))
    fine, few = found
    assert any("counted as the last" in note for note in few.notes)
    assert few.step_time == pytest.approx(fine.step_time, rel=1e-9)
    assert few.peak_memory == pytest.approx(fine.peak_memory, rel=1e-9)
    for one, other in zip(fine.simulated.roles, few.simulated.roles, strict=True):
        assert other.busy == pytest.approx(one.busy, rel=1e-6, abs=1e-9)
        assert other.received == pytest.approx(one.received, rel=1e-6)
        assert other.exposed == pytest.approx(one.exposed, rel=1e-6, abs=1e-9)

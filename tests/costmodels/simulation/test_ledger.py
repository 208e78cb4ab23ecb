"""Memory of roles while tasks run."""

from __future__ import annotations

from small_tasks import (
    COMPUTE,
    FEATURE,
    GRADIENT,
    run,
    task,
)


def key(name: str, micro: int = 0) -> tuple[int, str, str, int]:
    return micro, "out", name, 0


def made(name: str, size: float, holder: str = "activations", micro: int = 0):
    return ((key(name, micro), holder, size),)


def test_a_tensor_lives_until_its_last_reader_has_ended():
    rows = [
        task(COMPUTE, 1.0, makes=made("a", 10.0), name="a"),
        task(FEATURE, 5.0, 0, uses=(key("a"),), name="slow"),
        task(COMPUTE, 1.0, 0, makes=made("b", 20.0), uses=(key("a"),), name="b"),
        task(COMPUTE, 1.0, 2, makes=made("c", 5.0), uses=(key("b"),), name="c"),
        task(COMPUTE, 1.0, 1, makes=made("d", 22.0), uses=(key("c"), key("d")), name="d"),
    ]
    ledger = run(rows).ledger
    # 10, then a and b 30, then a, b, c 35 (a is still read); at 6 a is gone: c and d, 27
    peak = ledger.peak_memory(0)
    assert peak.total == 35.0
    assert peak.holders["activations"] == 35.0
    assert peak.moment == "test of c"
    assert ledger.time[0] == 2.0
    assert [(t.name, t.size) for t in ledger.largest(0, 2)] == [("b", 20.0), ("a", 10.0)]
    assert ledger.live[0] == {}


def test_what_is_taken_goes_before_anything_comes():
    a, b = made("a", 10.0), made("b", 10.0)
    taking = [
        task(COMPUTE, 1.0, makes=a),
        task(COMPUTE, 1.0, 0, makes=b, takes=(key("a"),), uses=(key("b"),)),
    ]
    assert run(taking).ledger.peak_total == [10.0]
    using = [taking[0], task(COMPUTE, 1.0, 0, makes=b, uses=(key("a"), key("b")))]
    assert run(using).ledger.peak_total == [20.0]
    # what another task is still to read is not taken over
    both = [*taking, task(FEATURE, 9.0, 0, uses=(key("a"),))]
    assert run(both).ledger.peak_total == [20.0]


def test_scratch_space_is_there_while_its_task_runs():
    rows = [
        task(COMPUTE, 2.0, makes=made("a", 1.0), scratch=10.0, buffer=5.0, name="first"),
        task(GRADIENT, 1.0, scratch=100.0),
        task(GRADIENT, 2.0, buffer=30.0),
        task(COMPUTE, 3.0, uses=(key("a"),), scratch=20.0, name="second"),
    ]
    ledger = run(rows).ledger
    peak = ledger.peak_memory(0)
    # at 0: a, 10 + 5 and 100
    assert peak.total == 116.0
    assert peak.holders["workspace"] == 110.0
    assert peak.holders["communication buffers"] == 5.0
    assert peak.holders["activations"] == 1.0
    # without the largest: at 2 s a, 30 and 20
    ledger = run([rows[0], *rows[2:]]).ledger
    assert ledger.peak_memory(0).total == 51.0
    assert ledger.peak_memory(0).moment == "test of second"


def test_fixed_memory_is_always_there_and_roles_are_apart():
    rows = [
        task(COMPUTE, 1.0, makes=made("a", 10.0), uses=(key("a"),), micro=2, name="a"),
        task(COMPUTE, 1.0, role=1),
    ]
    fixed = {"weights": 100.0, "reserved": 7.0}
    ledger = run(rows, fixed=fixed).ledger
    assert ledger.peak_memory(0).total == 117.0
    assert ledger.peak_memory(0).moment == "test of a of micro-batch 2"
    idle = ledger.peak_memory(1)
    assert (idle.total, idle.moment) == (107.0, "start")
    assert idle.holders["weights"] == 100.0
    assert ledger.total == [107.0, 107.0]


def test_a_tensor_that_two_tasks_make_counts_once():
    grad = made("g", 10.0, "activation gradients")
    rows = [
        task(COMPUTE, 1.0, makes=grad),
        task(COMPUTE, 1.0, makes=grad),
        task(COMPUTE, 1.0, uses=(key("g"),)),
    ]
    ledger = run(rows).ledger
    assert ledger.peak_total == [10.0]
    assert ledger.total == [0.0]

"""Products of tensor parallelism that run in parts, beside the collectives next to them."""

from __future__ import annotations

import pytest

import planner
from costmodels.simulation.execution import Queue
from costmodels.simulation.messages import Message
from costmodels.simulation.operations import Operation, message_operation
from costmodels.simulation.pipelining import pipeline_products

HERE = (0, "forward")
RANKS = 4


def product(after=(), name="up", kind="forward") -> Operation:
    tensor = (("out", name, 0), "activations", 8.0)
    return Operation(
        key=(kind, name, 0),
        kind=kind,
        queue=Queue.COMPUTE,
        after=tuple((*HERE, op.key) for op in after),
        seconds=6.0,
        makes=(tensor,),
        uses=(("out", "norm", 0),),
    )


def collective(kind: str, after=(), seconds=4.0, queue=Queue.FEATURE) -> Operation:
    message = Message(seconds / 4, seconds * 3 / 4, (), (RANKS, 0))
    refs = [(*HERE, op.key) for op in after]
    key = (kind, "norm", len(refs))
    return message_operation(key, f"{kind} norm", message, refs, num_bytes=16.0, queue=queue)


def duration(operations) -> float:
    """When all is through, queues one after the other."""
    ends, free = {}, {}
    for op in operations:
        begin = max([free.get(op.queue, 0.0), *(ends[key] for _, _, key in op.after)])
        free[op.queue] = ends[op.key] = begin + op.seconds + op.transfer
    return max(ends.values())


@pytest.mark.parametrize("seconds", [0.5, 4.0, 6.0, 40.0])
@pytest.mark.parametrize("order", ["gather", "reduce"])
def test_all_but_one_part_of_the_shorter_is_hidden(order, seconds):
    if order == "gather":
        first = collective("all_gather", seconds=seconds)
        operations = [first, product([first])]
    else:
        first = product()
        operations = [first, collective("reduce_scatter", [first], seconds)]
    result = pipeline_products(operations, HERE, {"up"})
    assert duration(operations) == pytest.approx(6.0 + seconds)
    longer, shorter = max(6.0, seconds), min(6.0, seconds)
    assert duration(result) == pytest.approx(longer + shorter / RANKS)


def test_a_product_between_both_hides_both():
    gather = collective("all_gather")
    middle = product([gather])
    operations = [gather, middle, collective("reduce_scatter", [middle])]
    result = pipeline_products(operations, HERE, {"up"})
    assert duration(result) == pytest.approx(1.0 + 6.0 + 1.0)
    for queue in (Queue.COMPUTE, Queue.FEATURE):
        before, after = (
            sum(op.seconds + op.transfer for op in ops if op.queue == queue)
            for ops in (operations, result)
        )
        assert after == pytest.approx(before)
    assert sum(op.num_bytes for op in result) == sum(op.num_bytes for op in operations)
    # its output is there from the first part on, and its input until the last
    parts = [op for op in result if op.name == "up"]
    assert [bool(op.makes) for op in parts] == [True, False, False]
    assert [bool(op.uses) for op in parts] == [False, False, True]


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([g := collective("all_reduce"), product([g])], id="an all-reduce"),
        pytest.param([g := collective("all_gather"), product([g], "norm")], id="no product"),
        pytest.param(
            [g := collective("all_gather", queue=Queue.PARAMETER), product([g])], id="weights"
        ),
        pytest.param(
            [g := collective("all_gather"), product([g], kind="backward of weight")],
            id="beside the data's pass",
        ),
        pytest.param([collective("all_gather"), product()], id="not read"),
    ],
)
def test_all_else_stays_as_it_is(operations):
    assert pipeline_products(operations, HERE, {"up"}) == operations


def test_one_gathering_is_cut_for_one_of_its_readers():
    gather = collective("all_gather")
    operations = [gather, product([gather]), product([gather], "gate")]
    result = pipeline_products(operations, HERE, {"up", "gate"})
    assert [op.key for op in result if op.name == "gate"] == [("forward", "gate", 0)]
    assert duration(result) == pytest.approx(1.0 + 12.0)


def test_a_transformer_computes_as_long_and_waits_less():
    asked = {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 8, "tp": 8, "input_size": 2048}
    steps = {
        runtime: planner.simulate(
            "llama3-8b", runtime=runtime, sequence_parallel=True, precision="bf16", **asked
        )
        for runtime in ("megatron-core", "nemo")
    }
    alone, beside = (steps[name].simulated.roles[0] for name in steps)
    assert beside.busy["compute"] == pytest.approx(alone.busy["compute"])
    assert beside.exposed < 0.6 * alone.exposed
    assert steps["nemo"].step_time >= beside.busy["compute"]

"""Simulated pipeline stages: where they lie and what they send."""

from __future__ import annotations

from collections import Counter

import pytest
from machines import BANDWIDTH, cluster, graph
from pipelines import BLOCK, PLAIN, chain, compile_job
from simulated_jobs import gpt

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.simulation import (
    Compiler,
    Queue,
    load_runtime,
    run_graph,
)
from costmodels.strategy import Schedule, Stage, Strategy
from costmodels.strategy.usual import hybrid


def test_tied_weights_of_two_stages_are_exchanged():
    g = gpt()
    strategy = hybrid(g, (2,), pp=2)
    compiler = compile_job(g, strategy, cluster(2))
    tasks = compiler.compile(1).tasks
    size = 50257 * 32 * 4.0
    tied = [t for t in tasks if t.kind == "send_recv" and t.queue == Queue.GRADIENT]
    assert [(t.role, t.name, t.num_bytes) for t in tied] == [
        (0, "token_embedding", size),
        (1, "head", size),
    ]
    for task in tied:
        # both gradients must be there; the update waits for the exchange
        assert {tasks[n].name for n in task.after} == {"token_embedding", "head"}
        update = next(t for t in tasks if t.kind == "update" and t.role == task.role)
        assert tasks.index(task) in update.after
    # each stage has a copy of its own; in one stage they share it
    first, last = (w.fixed_memory()["weights"] for w in compiler.weights)
    assert first >= size
    assert last >= size
    one = compile_job(g, hybrid(g, (1,)), cluster(1))
    assert one.weights[0].fixed_memory()["weights"] == pytest.approx(first + last - size)
    assert not any(t.kind == "send_recv" for t in one.compile(1).tasks)


def test_users_of_a_weight_in_one_stage_hold_it_together():
    options = {"filters": 16, "bias": False}
    rows = [("a", "linear", options)]
    rows += [(name, "linear", {**options, "share": "a"}) for name in "bcd"]
    g = graph({"channel": 16}, rows, 8)
    weight = 16 * 16 * 4.0

    def compiled(**split: dict[str, int]) -> Compiler:
        shape = (2,)
        stages = (
            Stage(layers=("a", "b"), first_device=0, shape=shape),
            Stage(layers=("c", "d"), first_device=2, shape=shape),
        )
        distributions = {
            name: Distribution(
                degrees={d: (n,) for d, n in split.get(name, {"sample": 2}).items()}, shape=shape
            )
            for name in "abcd"
        }
        strategy = Strategy(stages=stages, distributions=distributions, schedule=Schedule())
        return compile_job(g, strategy, cluster(4))

    def held(compiler: Compiler) -> list[float]:
        return [work.fixed_memory()["weights"] for work in compiler.weights]

    def kinds(compiler: Compiler) -> Counter[tuple[int, str]]:
        tasks = compiler.compile(1).tasks
        return Counter((t.role, t.kind) for t in tasks if t.queue == Queue.GRADIENT)

    alike = compiled()
    assert held(alike) == [weight, weight]
    # one all-reduce and one message to the other stage, each
    each = ("all_reduce", "send_recv")
    assert kinds(alike) == {(role, kind): 1 for role in (0, 1) for kind in each}
    # d, whose weight c holds in its stage, needs all of it
    unlike = compiled(a={"filter": 2}, b={"filter": 2}, c={"filter": 2})
    assert held(unlike) == [weight / 2, weight]
    inside = kinds(unlike)
    assert inside[1, "exchange"] == inside[1, "all_reduce"] == 1
    assert (0, "exchange") not in inside


def test_stages_lie_on_devices_one_after_the_other():
    g = chain(8)
    compiler = compile_job(g, hybrid(g, (2, 4), dp=2, pp=4, micro_batches=4), cluster(2, 4))
    roles = compiler.compile(1).roles
    assert [(r.name, r.first_device, r.num_devices) for r in roles] == [
        ("stage 0", 0, 2),
        ("stage 1", 2, 2),
        ("stage 2", 4, 2),
        ("stage 3", 6, 2),
    ]
    sends = [op for *_, op in compiler.rows if op.key[0] == "send"]
    # between hosts both devices share what the host sends: out of one, into the next
    assert {op.loads for op in sends} == {
        (((1, n, 0), 1.0), ((1, n + 1, 1), 1.0)) for n in range(3)
    }
    for op in sends:
        assert op.transfer == pytest.approx(2 * (BLOCK / 2) / BANDWIDTH)
    folded = hybrid(g, (2,), pp=2, micro_batches=2, schedule_kind="interleaved", chunks=2)
    roles = compile_job(g, folded, cluster(2)).compile(1).roles
    assert [(r.name, r.first_device) for r in roles] == [("stages 0, 2", 0), ("stages 1, 3", 1)]


def test_stages_of_different_sizes_send_the_whole_tensor_once():
    """Two devices with half the samples each, then one with all of them, and back."""
    g = chain(2)
    halves, whole = Distribution(degrees={"sample": (2,)}, shape=(2,)), Distribution(
        degrees={}, shape=(1,)
    )  # fmt: skip
    strategy = Strategy(
        stages=(
            Stage(layers=("relu", "fc.0"), first_device=0, shape=(2,)),
            Stage(layers=("fc.1",), first_device=2, shape=(1,)),
        ),
        distributions={"relu": halves, "fc.0": halves, "fc.1": whole},
    )
    where = cluster(4, latency=0.0)
    compiler = compile_job(g, strategy, where)
    compiler.compile(1)
    sent = {op.key[0]: op for *_, op in compiler.rows if op.kind == "send_recv"}
    # the one device receives all of it, and sends all of it back
    for key in ("send", "send gradient"):
        assert sent[key].num_bytes == BLOCK
        assert sent[key].transfer == pytest.approx(BLOCK / BANDWIDTH)


def test_a_tensor_that_skips_a_stage_is_sent_to_each_reader():
    rows = [
        ("relu", "activation", {}),
        ("a", "linear", {"filters": 64}),
        ("b", "linear", {"filters": 64}),
        ("c", "linear", {"filters": 64}),
        ("add", "add", {}, ("c", "a")),
        ("d", "linear", {"filters": 64}),
    ]
    g = graph({"channel": 64}, rows, 16)
    one = Distribution(degrees={}, shape=(1,))
    names = [layer.name for layer in g.compute_layers]
    stages = tuple(
        Stage(layers=layers, first_device=n, shape=(1,))
        for n, layers in enumerate((("relu", "a"), ("b", "c"), ("add", "d")))
    )
    strategy = Strategy(
        stages=stages,
        distributions=dict.fromkeys(names, one),
        schedule=Schedule(kind="1f1b", micro_batches=4),
    )
    compiler = compile_job(g, strategy, cluster(3))
    result = run_graph(compiler.compile(1), PLAIN)
    sends = Counter((op.key, stage) for _, _, stage, _, op in compiler.rows if "send" in op.key[0])
    assert sends == {
        (("send", "a", 1), 0): 4,
        (("send", "a", 2), 0): 4,
        (("send", "c", 2), 1): 4,
        (("send gradient", "a", 0), 1): 4,
        (("send gradient", "a", 0), 2): 4,
        (("send gradient", "c", 1), 2): 4,
    }
    assert all(live == {} for live in result.task_times.ledger.live)


def test_an_unknown_figure_of_a_runtime_is_named():
    with pytest.raises(InputError, match="but not 'buckets'; correct it"):
        load_runtime("ddp", buckets=1)
    with pytest.raises(InputError, match=r"one of ddp, horovod.*but is 'mpi'"):
        load_runtime("mpi")

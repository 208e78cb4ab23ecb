"""Megatron's split of a transformer block comes out of the search, with nothing written in.

One sample leaves no data parallelism. The search sees every distribution of every layer: samples,
sequence, heads, filters, channels, replication, and what their mixtures cost by the general rule.
"""

from __future__ import annotations

import pytest
from machines import graph, machine
from msgspec.structs import replace

import planner
from costmodels.cluster import load_cluster
from costmodels.communication.collectives import all_reduce_time
from costmodels.compute import ComputeModel
from costmodels.graph import Graph
from planner.planning.search_plan import search_plan
from planner.planning.space.costing import cost
from planner.planning.space.formulate import formulate
from planner.simulation.run import waiting_time

SEQUENCE, HIDDEN, HEADS = 512, 4096, 32


def block() -> Graph:
    """A pre-norm GPT-2 block."""
    rows: list = [
        ("ln_1", "layer_norm", {}),
        ("c_attn", "linear", {"filters": 3 * HIDDEN}),
        ("attention", "attention", {"heads": HEADS}),
        ("c_proj", "linear", {"filters": HIDDEN}),
        ("dropout_1", "dropout", {"rate": 0.1}),
        ("add_1", "add", {}, ("dropout_1", "input")),
        ("ln_2", "layer_norm", {}),
        ("c_fc", "linear", {"filters": 4 * HIDDEN}),
        ("gelu", "activation", {"function": "gelu"}),
        ("mlp_proj", "linear", {"filters": HIDDEN}),
        ("dropout_2", "dropout", {"rate": 0.1}),
        ("add_2", "add", {}, ("dropout_2", "add_1")),
    ]
    return graph({"sequence": SEQUENCE, "hidden": HIDDEN}, rows, 1)


@pytest.mark.parametrize(("name", "p"), [("dgx-a100", 4), ("dgx-h100", 8), ("dgx1-v100", 8)])
def test_columns_then_rows(name, p):
    where = load_cluster(name)
    m = machine(where, where.shape(p), precision="fp16")
    formulation = formulate(block(), where, m, cap=10**6)
    assert formulation.num_candidates == formulation.num_sensible
    found = search_plan(formulation)
    assert found.best is not None
    # proven to be the best: computation and messages follow each other, and the devices wait for
    # the slowest of them with every layer that is split
    waiting = sum(
        waiting_time(times.forward + times.backward + times.update, p)
        for times in found.best.layers.values()
    )
    assert found.incumbent.cost == pytest.approx(found.best.step.total + waiting)
    assert found.incumbent.cost == pytest.approx(found.incumbent.bound, rel=1e-6)
    split = {
        name: {dim: ways[0] for dim, ways in distribution.degrees.items()}
        for name, distribution in formulation.distributions(found.best.choices).items()
    }
    # columns of the first product, heads, rows of the second; columns, then rows in the MLP
    assert split["c_attn"] == {"filter": p}
    assert split["attention"] == {"head": p}
    assert split["c_proj"] == {"channel": p}
    assert split["c_fc"] == {"filter": p}
    assert split["gelu"] == {"channel": p}
    assert split["mlp_proj"] == {"channel": p}
    # what lies between the pairs is replicated: its computation is free on this machine
    for name in ("ln_1", "dropout_1", "add_1", "ln_2", "dropout_2", "add_2"):
        assert split[name] == {}
    # two all-reduces forward and two backward (Shoeybi et al. 2019, section 3)
    group, size = m.topology.shape, SEQUENCE * HIDDEN * 2
    all_reduce = all_reduce_time(m.topology, group, size).item()
    assert found.best.blocking == pytest.approx(4 * all_reduce)
    assert found.best.step.gradient == 0.0


def test_layers_between_the_pairs_split_the_sequence_where_their_work_is_not_free():
    # "sequence parallelism" of Korthikanti et al. 2022: the halves of each all-reduce move apart
    where = load_cluster("dgx-a100")
    plain = machine(where, where.shape(4), precision="bf16")
    m = replace(plain, compute=ComputeModel(where.device, "bf16"))
    formulation = formulate(block(), where, m, cap=10**6)
    found = search_plan(formulation)
    assert found.best is not None
    chosen = formulation.distributions(found.best.choices)
    for name in ("dropout_1", "add_1", "ln_2", "dropout_2", "add_2"):
        assert str(chosen[name]) == "sequence 4"
    # the first layer reads an input that lies everywhere: it may be split, or work for no gathering
    split = cost(formulation, formulation.choices({**chosen, "ln_1": chosen["ln_2"]}))
    seconds = max(split.step.total, float(formulation.terms(split.choices).max()))
    assert str(chosen["ln_1"]) in ("sequence 4", "replicated 4")
    assert found.incumbent.cost <= seconds
    for name in ("c_attn", "c_fc"):
        assert str(chosen[name]) == "filter 4"
    for name in ("c_proj", "mlp_proj"):
        assert str(chosen[name]) == "channel 4"


def test_weights_stay_whole_where_there_are_samples_and_few_weights():
    rows: list = [("c_fc", "linear", {"filters": 256}), ("mlp_proj", "linear", {"filters": 64})]
    where = load_cluster("dgx-a100")
    g = graph({"sequence": 4096, "hidden": 64}, rows, 64)
    m = machine(where, where.shape(4), precision="fp16")
    found = search_plan(formulation := formulate(g, where, m, cap=10**6))
    assert found.best is not None
    for distribution in formulation.distributions(found.best.choices).values():
        assert distribution.degree("sample") * distribution.degree("sequence") == 4
    assert found.best.blocking == 0.0


def test_keys_that_all_heads_share_come_around_a_ring_too():
    found = planner.simulate(
        "deepseek-v3",
        gpus=4,
        cluster="dgx-h100",
        tp=2,
        cp=2,
        sequence_parallel=True,
        global_batch_size=1,
    )
    assert found.simulated is not None
    names = {(task.kind, task.name) for task in found.simulated.task_times.graph.tasks}
    assert any(kind == "send_recv" and name.endswith("k_rotary") for kind, name in names)

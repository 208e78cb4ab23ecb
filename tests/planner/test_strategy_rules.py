"""What must hold of every strategy: what is cut or computed again never needs more memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import planner
from costmodels.cluster import Cluster, load_cluster
from planner.models.configs import transformer
from planner.simulation.result import Simulation

CLUSTER = load_cluster("dgx-a100")
FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
NETWORK = transformer(
    {
        "model_type": "llama",
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 8,
        "intermediate_size": 1024,
        "max_position_embeddings": 512,
        "vocab_size": 8192,
    },
    "a test",
    name="test",
    source="a test",
).build("test")
DEGREES = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "sequence_parallel": st.booleans(),
        "micro_batch_size": st.sampled_from([1, 2]),
    }
)


def simulated(cluster: Cluster = CLUSTER, **question: object) -> Simulation:
    return planner.simulate(NETWORK, gpus=16, global_batch_size=64, cluster=cluster, **question)


@pytest.mark.slow
@FEW
@given(degrees=DEGREES, runtime=st.sampled_from(["ddp", "zero1", "fsdp"]))
def test_cutting_more_never_needs_more_memory(degrees, runtime):
    # what a rank gathers of weights at once may be more than its part of them, but not than all
    peaks = [simulated(zero=z, runtime=runtime, **degrees).peak_memory for z in (0, 1, 2)]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.slow
@FEW
@given(degrees=DEGREES, count=st.integers(0, 8))
def test_computing_again_never_needs_more_memory_or_less_time(degrees, count):
    none, some, full = (simulated(recompute=what, **degrees) for what in ("none", count, "full"))
    selective = simulated(recompute="selective", **degrees)
    assert full.peak_memory <= some.peak_memory * (1 + 1e-9)
    assert max(some.peak_memory, selective.peak_memory) <= none.peak_memory * (1 + 1e-9)
    assert none.step_time <= min(some.step_time, selective.step_time) * (1 + 1e-9)
    assert some.step_time <= full.step_time * (1 + 1e-9)


@FEW
@given(
    degrees=DEGREES,
    cp=st.sampled_from([1, 2]),
    faster=st.sampled_from([1.25, 2.0, 8.0]),
    level=st.sampled_from([0, 1]),
)
def test_more_bandwidth_is_never_slower(degrees, cp, faster, level):
    levels = list(CLUSTER.levels)
    levels[level] = replace(levels[level], bandwidth=levels[level].bandwidth * faster)
    degrees = {**degrees, "tp": min(degrees["tp"], 2), "cp": cp}
    before = simulated(**degrees).step_time
    after = simulated(replace(CLUSTER, levels=tuple(levels)), **degrees).step_time
    assert after <= before * (1 + 1e-6)


@FEW
@given(degrees=DEGREES)
def test_sequence_parallelism_never_needs_more_memory(degrees):
    with_, without = (
        simulated(**{**degrees, "sequence_parallel": on}).peak_memory for on in (True, False)
    )
    assert with_ <= without * (1 + 1e-9)

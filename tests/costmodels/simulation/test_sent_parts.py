"""Ranks that hold the same output send a part of it each to the next stage, which gathers it."""

from __future__ import annotations

import pytest
from machines import cluster
from msgspec.structs import replace
from pipelines import compile_job
from simulated_jobs import gpt

from costmodels.simulation import Compiler, load_runtime
from costmodels.simulation.operations import Operation
from costmodels.strategy import Strategy
from costmodels.strategy.usual import hybrid

# The activations of two samples between blocks, in single precision. [B]
WHOLE = 2 * 16 * 32 * 4.0


def compiled(scatters: bool, **options: object) -> Compiler:
    """Two stages of two tensor-parallel ranks each, on two replicas."""
    return job(hybrid(gpt(batch=4), (4, 2), pp=2, dp=2, tp=2, **options), scatters)


def job(strategy: Strategy, scatters: bool) -> Compiler:
    runtime = load_runtime("ddp", scatters_sends=scatters)
    return compile_job(gpt(batch=4), strategy, cluster(4, 2), runtime=runtime)


def of_kind(compiler: Compiler, *keys: str) -> list[tuple[int, str, Operation]]:
    """The operations of these kinds, with their stage and phase."""
    return [
        (program.number, phase, op)
        for program in compiler.programs
        for phase, operations in program.phases.items()
        for op in operations
        if op.key[0] in keys
    ]


def test_a_part_is_sent_and_gathered_each_way():
    whole, parts = compiled(False), compiled(True)
    for key, stage in (("send", 0), ("send gradient", 1)):
        [(_, _, before)], [(maker, _, after)] = of_kind(whole, key), of_kind(parts, key)
        assert maker == stage
        assert (before.num_bytes, after.num_bytes) == (WHOLE, WHOLE / 2)
        assert after.transfer == pytest.approx(before.transfer / 2)
    gathers = of_kind(parts, "gather sent", "gather gradient")
    assert [(stage, phase, op.kind) for stage, phase, op in gathers] == [
        (0, "backward", "all_gather"),
        (1, "forward", "all_gather"),
    ]
    for _, _, op in gathers:
        assert op.num_bytes == WHOLE / 2
        assert op.transfer > 0.0
    assert not of_kind(whole, "gather sent", "gather gradient")


def test_what_ranks_hold_by_halves_is_sent_as_it_is():
    """Where the sequence is divided, each rank has a part of the output of its own."""
    before, after = (compiled(scatters, sequence_parallel=True) for scatters in (False, True))
    [(_, _, one)], [(_, _, other)] = of_kind(before, "send"), of_kind(after, "send")
    assert one.num_bytes == other.num_bytes == WHOLE / 2
    assert not of_kind(after, "gather sent", "gather gradient")


def test_blocks_that_are_computed_again_gather_their_input_once():
    plain = hybrid(gpt(batch=4), (4, 2), pp=2, dp=2, tp=2)
    stages = tuple(replace(s, recompute=(s.layers[:4],)) for s in plain.stages)
    compiler = job(replace(plain, stages=stages), True)
    assert of_kind(compiler, "recompute")
    assert [stage for stage, *_ in of_kind(compiler, "gather sent")] == [1]

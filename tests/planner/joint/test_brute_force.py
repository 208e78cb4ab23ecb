"""The joint search against every choice, simulated, on small networks."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from functools import partial

import pytest
from msgspec.structs import replace
from questions import small_llama

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.cuts import Cuts, _filled
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime, stages_of_zero
from planner.joint.search import JointSearch
from planner.joint.variants import with_variants
from planner.joint.ways_inside import insides
from planner.joint.weights import LeastWeights
from planner.joint.wishes import NO_WISHES, Wishes
from planner.planning.options import SearchOptions
from planner.planning.staged import tried
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

# Runtimes that differ in what a bound is made of: buckets, units, what is cut, who waits for whom.
RUNTIMES = ("torchtitan", "megatron", "megatron-core", "deepspeed", "nanotron", "fsdp", "horovod")
QUICK = RUNTIMES.index("megatron-core")
BESIDE = ("offload", "zero-bubble", "all-to-all")


def _setting(path, rng, runtime=None, blocks=None):
    """A question with a network of a few blocks and memory that may bind."""
    hidden = rng.choice([256, 512, 1024])
    path.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": hidden,
                "intermediate_size": 3 * hidden,
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "num_hidden_layers": rng.choice([2, 3, 4]) if blocks is None else blocks,
                "vocab_size": rng.choice([1000, 32000]),
                "max_position_embeddings": 512,
                "tie_word_embeddings": rng.random() < 0.3,
            }
        )
    )
    asked = {
        "model": str(path),
        "gpus": rng.choice([2, 4]),
        "cluster": rng.choice(["dgx-a100", "aws-p3.2xlarge"]),
        "global_batch_size": rng.choice([4, 8]),
        "precision": "fp16" if rng.random() < 0.3 else "fp32",
        "optimizer": "adam",
        "runtime": runtime,
    }
    return resolve(make_request("optimize", asked))


def _limited(setting, memory):
    device = replace(setting.cluster.device, memory=memory)
    return replace(setting, cluster=replace(setting.cluster, device=device))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [5, *(pytest.param(n, marks=pytest.mark.slow) for n in range(60) if n != 5)],
)
def test_no_choice_undercuts_its_bound_and_none_is_better_than_the_plan(tmp_path, seed):
    rng = random.Random(seed)
    setting = _setting(tmp_path / "config.json", rng)
    steps = _all_steps(setting)
    _agrees(setting, steps, (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0))


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *(
            pytest.param(name, number, marks=[] if number == QUICK else pytest.mark.slow)
            for number, name in enumerate(RUNTIMES)
        ),
        *(
            pytest.param(name, seed, marks=pytest.mark.slow)
            for name in RUNTIMES
            for seed in range(10, 16)
        ),
        # a stage of all blocks, and one without any
        pytest.param("nanotron", 76, marks=pytest.mark.slow),
    ],
)
def test_so_it_is_under_every_runtime(tmp_path, name, seed):
    setting = _setting(tmp_path / "config.json", random.Random(seed), name)
    steps = _all_steps(setting)
    assert {one.runtime.name for one in steps.values()} == {name}
    _agrees(setting, steps, (1.0, 0.2, 0.0))


def test_recomputation_that_stops_early_is_not_bounded_as_a_whole_block(tmp_path):
    setting = _setting(tmp_path / "config.json", random.Random(11), "torchtitan")
    steps = _all_steps(
        setting,
        lambda choice: (
            (choice.inside.recompute, choice.samples, choice.zero) == ("full", setting.batch, 0)
        ),
    )
    assert {(one.inside.tp, one.pp) for one in steps} == {(1, 2), (2, 1)}


def test_a_last_stage_without_blocks_is_not_bounded_as_one_that_computes_some_again(tmp_path):
    setting = _setting(tmp_path / "config.json", random.Random(29))
    steps = _all_steps(
        setting,
        lambda choice: (
            (choice.inside.recompute, choice.pp, choice.chunks, choice.zero) == ("full", 2, 1, 3)
            and choice.micro_batches == 1
        ),
    )
    assert any(one.blocks == (2, 0) and one.again for one in steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "seed"),
    [(5, 7), *(pytest.param(n, s, marks=pytest.mark.slow) for n in (5, 6) for s in range(10, 16))],
)
def test_so_it_is_of_unequal_stages_of_several_chunks(tmp_path, blocks, seed):
    setting = _setting(tmp_path / "config.json", random.Random(seed), blocks=blocks)
    steps = _all_steps(setting)
    cuts = [one.blocks for one in steps if one.chunks > 1]
    # six of them may be balanced with one in each stage
    assert any(len(set(cut)) > 1 for cut in cuts) or (cuts and blocks == 6)
    _agrees(setting, steps, (1.0, 0.2, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 3, 4, 5, 6, 7))]
)
def test_so_it_is_of_experts(tmp_path, seed):
    """Experts take ranks of tensor parallelism, or are split by it themselves."""
    rng = random.Random(seed)
    hidden = rng.choice([256, 512])
    sizes = {"model_type": "mixtral", "hidden_size": hidden, "intermediate_size": 2 * hidden}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes |= {"num_local_experts": 4, "num_experts_per_tok": rng.choice([1, 2])}
    sizes |= {"vocab_size": rng.choice([1000, 32000])}
    sizes |= {"max_position_embeddings": rng.choice([128, 1024])}
    asked = {"model": small_llama(tmp_path, **sizes), "gpus": 4}
    asked |= {"cluster": rng.choice(["dgx-a100", "lassen"]), "precision": "fp16"}
    asked |= {"global_batch_size": rng.choice([2, 4]), "optimizer": "adam"}
    setting = resolve(make_request("optimize", asked))
    steps = _all_steps(setting)
    assert {(one.inside.etp, one.inside.tp > 1) for one in steps if one.inside.ep > 1} == {
        *((None, False), (None, True), (1, True)),
    }
    _agrees(setting, steps, (1.0, 0.2, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_so_it_is_of_long_sequences(tmp_path, seed):
    """Ranks that have parts of the same sequences have the same weights, which may be cut."""
    rng = random.Random(seed)
    hidden = rng.choice([256, 512])
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_attention_heads": 4}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 8000, "max_position_embeddings": 8192}
    asked = {
        "model": small_llama(tmp_path, **sizes),
        "gpus": 4,
        "cluster": rng.choice(["dgx-a100", "lassen"]),
    }
    asked |= {"global_batch_size": rng.choice([1, 2]), "precision": "fp16", "optimizer": "adam"}
    setting = resolve(make_request("optimize", asked))
    steps = _all_steps(setting)
    assert {(one.dp, one.inside.cp, one.zero) for one in steps} >= {(1, 4, n) for n in range(4)}
    _agrees(setting, steps, (1.0, 0.2, 0.0))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5))]
)
def test_so_it_is_of_layers_that_read_all_before_them(tmp_path, seed):
    """A small DenseNet, whose blocks have no numbers, and can be computed again one by one."""
    rng = random.Random(seed)
    setting = _dense_setting(tmp_path / "dense.json", rng, 4 if seed == 0 else 12)
    steps = _all_steps(setting)
    assert any(one.again for one in steps)
    _agrees(setting, steps, (0.5, 0.05) if seed == 0 else (1.0, 0.5, 0.2, 0.05, 0.0))


def _dense_setting(path, rng, batch):
    growth, count = rng.choice([16, 64]), rng.choice([2, 3])
    rows = [
        {"name": "first", "kind": "conv", "filters": 2 * growth, "kernel": 3, "padding": 1},
    ]
    for letter in "abc"[:count]:
        whole = rows[-1]["name"]
        rows += [
            {"name": f"{letter}.norm", "kind": "batch_norm"},
            {"name": f"{letter}.relu", "kind": "activation"},
            {
                "name": f"{letter}.conv",
                "kind": "conv",
                "filters": growth,
                "kernel": 3,
                "padding": 1,
            },
            {"name": f"{letter}.join", "kind": "concat", "inputs": [whole, f"{letter}.conv"]},
        ]
    rows += [
        {"name": "pool", "kind": "global_pool"},
        {"name": "classes", "kind": "linear", "filters": 100},
        {"name": "loss", "kind": "loss"},
    ]
    size = rng.choice([32, 64])
    shape = {"channel": 3, "height": size, "width": size}
    path.write_text(json.dumps({"name": "dense", "input": shape, "layer": rows}))
    asked = {
        "model": str(path),
        "gpus": 2,
        "cluster": rng.choice(["dgx-a100", "aws-p3.2xlarge"]),
        "global_batch_size": batch,
    }
    return resolve(make_request("optimize", asked))


def _all_steps(setting, asked=lambda choice: True):
    """Every choice that is asked for, simulated: none takes or holds less than its bounds."""
    runtime = searched_runtime(setting)
    estimates = Estimates(setting, runtime)
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(
        setting=setting,
        estimates=estimates,
        floors=floors,
        partly=True,
        hybrid=True,
    )
    weights = LeastWeights(setting)
    reserved = setting.cluster.device.reserved_memory
    steps = {}
    every = choices(setting, list(insides(setting)), stages_of_zero(setting))
    for choice in with_variants(setting, every):
        if not (asked(choice) and estimates.cuts.are_possible(choice.parts)):
            continue
        bound, floor = bounds.of(choice), floors.floor(choice)
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        least = bounds.memory.of(choice, inside)
        ways = {way: bounds.of(way, alone=True) for way in bounds.shards(choice)}
        cuts = [other for way in ways for other in _cuts(estimates, way, inside)]
        each = [member for cut in cuts for member in bounds.members(cut)]
        passes = estimates.least(choice)
        for one in map(estimates.of, each):
            under = choice_runtime(runtime, choice.zero)
            found, reason = tried(setting, one.choice.degrees, under)
            assert found is not None, reason
            assert passes <= one.seconds
            way = replace(one.choice, blocks=(), again=0)
            assert bound <= ways[way] <= found.seconds
            assert floor <= found.seconds
            assert least <= found.peak_memory
            assert weights.of(choice) + reserved <= found.peak_memory
            steps[one.choice] = found
    return steps


def _cuts(estimates, choice, inside):
    """The choice with the numbers of blocks that are tried of it."""
    found = estimates.of(choice).choice
    alike = choice.chunks > 1 and not found.blocks and estimates.cuts.first
    if not alike or estimates.cuts.by_shares:
        return [found]
    other = estimates.balanced(choice, inside)
    return [found] if len(set(other.blocks)) == 1 else [found, other]


def _searched(setting, wishes=NO_WISHES):
    return JointSearch(
        setting=setting,
        runtime=searched_runtime(setting),
        options=SearchOptions(),
        deadline=Deadline(None),
        wishes=wishes,
    )


def _agrees(setting, steps, shares):
    """The search finds the best of all choices at every limit on memory, and bounds it."""
    smallest = min(one.peak_memory for one in steps.values())
    largest = max(one.peak_memory for one in steps.values())
    before = 0.0
    for share in shares:
        memory = math.ceil(smallest + share * (largest - smallest))
        limited = _limited(setting, memory)
        # what may wait in the memory of the hosts is not among the choices
        result, free, plain = (
            _searched(limited, Wishes(forbid=forbid)).run() for forbid in (("offload",), (), BESIDE)
        )
        best = min(one.seconds for one in steps.values() if one.peak_memory <= memory)
        assert result.best is not None
        # so they take no places of others
        assert plain.best is None or result.best.seconds <= plain.best.seconds
        if result.best.seconds < best:
            # an allocator that is short of memory gives back what it would keep otherwise, blocks
            # are moved between stages, and all forward passes may be first
            equal = partial(dataclasses.replace, stage_blocks="equal", schedule="1f1b")
            assert equal(result.best.degrees) in {equal(one.degrees) for one in steps.values()}
            assert result.best.peak_memory <= memory
            best = result.best.seconds
        assert result.bound <= best * (1 + 1e-9)
        assert best <= result.best.seconds * (1 + 1e-9) <= best * 1.03
        assert result.best.seconds >= before * (1 - 0.03)
        before = result.best.seconds
        assert free.best is not None
        assert free.bound * (1 - 1e-9) <= free.best.seconds <= best * 1.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "runtime", "room", "degrees"),
    [
        # estimated to hold a little more than there is, with one block less computed again
        (17, None, 1.0, {"tp": 4, "sequence_parallel": True, "recompute": 2, "micro_batches": 4}),
        # behind many that are estimated to hold a little more, of which none fits
        (21, None, 1.021, {"tp": 4, "micro_batches": 8}),
        # slower than all that are estimated to fit, of which none does
        (
            83,
            "fsdp",
            1.0,
            {"tp": 2, "sequence_parallel": True, "recompute": "full", "micro_batches": 4},
        ),
    ],
)
def test_what_fits_is_found_where_estimates_of_memory_are_off(
    tmp_path, seed, runtime, room, degrees
):
    setting = _setting(tmp_path / "config.json", random.Random(seed), runtime)
    given = Degrees(dp=1, **degrees)
    fitting, reason = tried(setting, given, searched_runtime(setting))
    assert fitting is not None, reason
    limited = _limited(setting, fitting.peak_memory * room)
    best = _searched(limited).run().best
    assert best is not None
    assert best.seconds <= fitting.seconds


def test_what_is_not_estimated_in_full_changes_no_answer(tmp_path):
    setting = _setting(tmp_path / "config.json", random.Random(3))
    brief, full = _searched(setting), _searched(setting)
    full.passes_over = False
    found, every = brief.run(), full.run()
    assert found.passed
    assert not every.passed
    assert found.best is not None
    assert every.best is not None
    assert (found.best.degrees, found.bound) == (every.best.degrees, every.bound)


@pytest.mark.slow
def test_offload_takes_no_places_of_what_fits_without(tmp_path):
    # the best without it is estimated to hold too much, and is found by its bound
    limited = _limited(_setting(tmp_path / "config.json", random.Random(11)), 1609.4 * 2**20)
    free, without = (
        _searched(limited, wishes).run() for wishes in (Wishes(), Wishes(forbid=("offload",)))
    )
    assert free.best is not None
    assert without.best is not None
    assert free.best.seconds <= without.best.seconds


@pytest.mark.parametrize("seed", range(40))
def test_balanced_cuts_are_the_best_of_all(seed):
    rng = random.Random(seed)
    work = [0.0, *(rng.choice([1.0, 1.0, 2.5, rng.random() + 0.1]) for _ in range(8))]
    ends = [sum(work[: place + 1]) for place in range(len(work))]
    parts = rng.randint(1, 4)

    def heaviest(left, begin):
        if left == 1:
            return ends[-1] - ends[begin]
        return min(
            max(ends[end] - ends[begin], heaviest(left - 1, end))
            for end in range(begin + 1, len(ends) - left + 1)
        )

    best = heaviest(parts, 0)
    cuts = object.__new__(Cuts)
    # what comes after the blocks may be the last stage alone, where that is worth it
    after = seed % 2
    cuts.first, cuts.pieces, cuts.dealt_out = list(range(8 - after)), list(range(8)), {}
    counts = cuts.balanced(parts, _array(work[1:]))
    assert sum(counts) == 8 - after
    assert min(counts[:-1], default=1) >= 1
    assert counts[-1] >= 1 - after
    at, found = 0, 0.0
    for number, count in enumerate(counts, start=1):
        end = 8 if number == parts else at + count
        found = max(found, ends[end] - ends[at])
        at = end
    assert best <= found <= best * (1 + 2e-4 + 0.011 * after)
    assert _filled(_array(ends), parts, best * 0.999)[0] == ()


def _array(values):
    import numpy as np

    return np.array(values)

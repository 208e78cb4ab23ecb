"""Fronts of step time against memory: what is computed again in part, and which points are told."""

from __future__ import annotations

import dataclasses
import io

import pytest
from msgspec.structs import replace
from questions import small_llama
from rich.console import Console

import planner
from planner.errors import InfeasibleError
from planner.joint import fronts
from planner.joint.between import MOST_ASKED, filled
from planner.joint.estimate import Estimate
from planner.joint.pareto import spread_out
from planner.report.front import front_page, front_sentence, show_front
from search.problem.deadline import Deadline

LATER = "zero-bubble,gpipe,offload,hybrid,all-to-all"


@pytest.mark.slow
def test_no_point_is_far_slower_than_what_fits_in_as_much(tmp_path):
    """Between nothing and everything there are blocks computed again in part."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8}
    sizes |= {"num_hidden_layers": 8, "vocab_size": 8000, "max_position_embeddings": 1024}
    asked = {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 32, "precision": "bf16"}
    asked |= {"optimizer": "adam", "forbid": LATER}
    path = small_llama(tmp_path, **sizes)
    points = planner.pareto(path, **asked)
    assert len(points) > 8
    for one in points:
        limit = f"{one.peak_memory * 1.001:.0f} B"
        best = planner.optimize(path, **asked, memory=limit)
        assert one.step_time_s <= 1.03 * best.step_time_s
    again = {len({name for stage in one.stages for name in stage.recompute}) for one in points}
    assert len(again) > 2


def test_points_that_others_stand_in_for_are_left_out():
    rows = [(1.0, 8.0), (1.01, 4.0), (1.02, 3.99), (2.0, 3.8), (2.1, 2.0), (4.0, 1.9)]
    front = [Estimate(choice=None, seconds=time, memory=size) for time, size in rows]
    kept = [(one.seconds, one.memory) for one in spread_out(front, 4)]
    assert kept == [(1.0, 8.0), (1.01, 4.0), (2.1, 2.0), (4.0, 1.9)]
    assert spread_out(front, 6) == front


@pytest.mark.parametrize("against", ["memory", "gpus"])
def test_a_front_that_was_cut_short_says_so(against):
    """All ways were said to have been estimated, and no point told that there may be others."""
    plan = planner.evaluate("resnet18", gpus=4, strategy="data")
    assert "stopped" not in front_sentence([plan], against)
    search = replace(plan.search, stopped_by="time limit")
    said = front_sentence([plan, dataclasses.replace(plan, search=search)], against)
    assert "stopped early by time limit" in said
    assert ("all or some of the" in said) == (against == "memory")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 6])
def test_a_front_begins_with_a_plan_as_fast_as_that_of_the_question_alone(tmp_path, batch):
    """Of slow networks it was 280 times as slow, without the plan that leaves GPUs without work."""
    cluster = tmp_path / "slow.toml"
    levels = [("host", 2, "5 us", "10 GB/s"), ("network", 8, "1 ms", "10 MB/s")]
    text = 'name = "slow"\ndevice = "a100-40gb"\nhost_level = "host"\ndefault_precision = "bf16"\n'
    for name, size, latency, bandwidth in levels:
        text += f'[[levels]]\nname = "{name}"\nsize = {size}\n'
        text += f'latency = "{latency}"\nbandwidth = "{bandwidth}"\n'
    cluster.write_text(text)
    asked = {"gpus": 16, "cluster": str(cluster), "global_batch_size": batch}
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
    sizes |= {"num_hidden_layers": 4, "vocab_size": 8000, "max_position_embeddings": 512}
    path = small_llama(tmp_path, **sizes)
    points, best = planner.pareto(path, **asked), planner.optimize(path, **asked)
    assert points[0].step_time_s <= best.step_time_s
    assert points[0].search.lower_bound_s <= best.search.lower_bound_s * (1.0 + 1e-9)


def test_who_interrupts_a_front_has_the_plan_that_was_found_before(monkeypatch):
    """Nothing was left of it, however long it had run."""

    def interrupted(*asked):
        raise KeyboardInterrupt

    monkeypatch.setattr(fronts, "front", interrupted)
    (point,) = planner.pareto("alexnet", gpus=2, global_batch_size=64)
    assert point.search.stopped_by == "interrupt"
    assert (
        point.step_time_s == planner.optimize("alexnet", gpus=2, global_batch_size=64).step_time_s
    )


@pytest.mark.slow
def test_what_waits_in_the_memory_of_hosts_is_in_a_front(tmp_path):
    """A front of llama3-8b on 8 ended at 4.66 s and 18.9 GiB, where 11.6 GiB take 3.33 s."""
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
    sizes |= {"num_hidden_layers": 4, "vocab_size": 8000, "max_position_embeddings": 512}
    asked = {"gpus": 4, "cluster": "dgx-a100", "global_batch_size": 8, "precision": "bf16"}
    asked |= {"optimizer": "adam"}
    kept = "zero-bubble,gpipe,hybrid,all-to-all,context,tensor,pipeline"
    path = small_llama(tmp_path, **sizes)
    points = planner.pareto(path, forbid=kept, **asked)
    held = [one.peak_memory for one in points]
    assert held == sorted(held, reverse=True)
    alone = planner.pareto(path, forbid=f"{kept},offload", **asked)
    assert held[-1] < 0.95 * alone[-1].peak_memory
    waiting = [one for one in points if one.offload]
    assert waiting
    assert not any(one.offload for one in alone)
    best = planner.optimize(path, forbid=kept, memory=f"{held[-1]:.0f} B", **asked)
    assert points[-1].step_time_s <= 1.05 * best.step_time_s


@pytest.mark.slow
def test_layers_of_points_are_split_in_their_own_ways_where_limits_find_that():
    """Less than the fastest needs took 2.5 times as long, though a limit found what is faster."""
    asked = {"gpus": 4, "cluster": "lassen", "global_batch_size": 128}
    points = planner.pareto("alexnet", **asked)
    assert [one.step_time_s for one in points] == sorted(one.step_time_s for one in points)
    held = [one.peak_memory for one in points]
    assert held == sorted(held, reverse=True)
    assert points[1].step_time_s < 1.5 * points[0].step_time_s
    assert "less and less" in front_sentence(points, "memory")
    for one in points[1:2]:
        said = next(text for text in one.defaults if "a point of a front" in text)
        limit = said.split()[2]
        best = planner.optimize("alexnet", **asked, memory=f"{limit} MiB")
        assert one.step_time_s == best.step_time_s
        assert one.search.lower_bound_s <= points[0].step_time_s


@pytest.fixture(scope="module")
def two():
    """A front of two points, half as much memory taking twice as long."""
    plan = planner.evaluate("resnet18", gpus=4, strategy="data")
    more = dataclasses.replace(plan, step_time_s=1.0, memory_bytes={"weights": 2.0**34})
    return [more, dataclasses.replace(plan, step_time_s=2.0, memory_bytes={"weights": 2.0**33})]


def test_limits_are_asked_for_where_points_are_far_apart(two):
    asked = []

    def ask(limit):
        asked.append(limit)
        if limit < 2.0**33:
            raise InfeasibleError("none", missing_bytes=1.0, layer="")
        held = {"weights": 0.99 * limit}
        return dataclasses.replace(two[0], step_time_s=1.9 * 2.0**33 / limit, memory_bytes=held)

    points = filled(two, ask, 0.0, Deadline(None))
    # first as much as the least has, and nothing twice
    assert asked[0] == 2.0**33
    assert len(asked) == len(set(asked)) <= MOST_ASKED
    steps, held = (
        [getattr(one, name) for one in points] for name in ("step_time_s", "peak_memory")
    )
    assert steps == sorted(steps)
    assert held == sorted(held, reverse=True)
    assert len(points) > 3
    assert points[-1].peak_memory == pytest.approx(0.99 * 2.0**33)
    assert not points[0].search.stopped_by


def test_points_by_degrees_hide_no_limit_however_close_they_are(two):
    """Of ten of them none was far from the next, and each could be replaced."""
    points = [
        dataclasses.replace(two[0], step_time_s=1.2**i, memory_bytes={"weights": 2.0**34 * 0.8**i})
        for i in range(8)
    ]
    least = points[-1].peak_memory

    def ask(limit):
        if limit < 1.5 * least:
            return points[-1]
        held = {"weights": 0.99 * limit}
        return dataclasses.replace(two[0], step_time_s=1.05, memory_bytes=held)

    found = filled(points, ask, 0.0, Deadline(None))
    assert min(one.peak_memory for one in found if one.step_time_s < 1.1) < 1.8 * least


@pytest.mark.parametrize("reason", ["interrupt", "time limit"])
def test_limits_that_there_is_no_time_for_leave_the_front(two, reason):
    def ask(limit):
        raise InfeasibleError("none", missing_bytes=1.0, layer="", stopped_by=reason)

    points = filled(two, ask, 0.0, Deadline(None))
    assert [one.step_time_s for one in points] == [1.0, 2.0]
    assert points[0].search.stopped_by == reason
    assert filled(two, ask, 0.0, Deadline(0.0))[0].search.stopped_by == "time limit"


def test_a_front_without_a_bound_tells_no_gap(two):
    """It told a gap of 100 %, and that no step takes less than 0."""
    unknown = replace(two[0].search, lower_bound_s=0.0, gap=1.0, stopped_by="interrupt")
    plans = [dataclasses.replace(one, search=unknown) for one in two]
    told = Console(file=io.StringIO(), width=200)
    show_front(plans, told)
    for text in (told.file.getvalue(), front_page(plans)):
        assert "100.0 %" not in text
        assert "less than 0" not in text
        assert "no step of any is faster was not proven; stopped early by interrupt" in text


def test_a_single_gpu_without_work_is_told_as_one():
    plan = planner.evaluate("alexnet", gpus=2, strategy="data", cluster="lassen")
    told = Console(file=io.StringIO(), width=200)
    show_front([dataclasses.replace(plan, idle_gpus=1)], told, "gpus")
    assert "sample 2, 1 GPU left without work" in told.file.getvalue()


def test_ticks_of_memory_below_a_gib_are_round():
    asked = {"gpus": 2, "strategy": "data", "cluster": "hkbu-10gbe", "global_batch_size": 2}
    plan = planner.evaluate("resnet18", **asked)
    assert 1.1 * plan.peak_memory < 2**30
    assert ">200 MiB<" in front_page([plan], "memory")

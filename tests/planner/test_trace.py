"""Traces: what viewers require of the format, and that they say what the simulation says."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodels.errors import InputError
from costmodels.simulation.execution import Queue
from planner import Degrees, Loading, Simulation
from planner.report.trace import THREADS, save_trace, trace_text
from planner.report.trace_events import microseconds

# of chrome://tracing, which refuses other names
RESERVED_COLOURS = {
    "thread_state_running",
    "thread_state_runnable",
    "thread_state_iowait",
    "rail_response",
    "rail_animation",
    "rail_idle",
    "rail_load",
    "yellow",
    "olive",
    "grey",
}


@cache
def pipeline() -> Simulation:
    degrees = Degrees(tp=2, pp=2, micro_batches=4)
    return planner.simulate(
        "gpt2", gpus=8, cluster="lassen", global_batch_size=16, precision="fp16", degrees=degrees
    )


@cache
def horovod() -> Simulation:
    return planner.simulate(
        "resnet50",
        gpus=8,
        cluster="lassen",
        global_batch_size=256,
        runtime="horovod",
        input=Loading(loader="native", rate=100.0),
    )


@cache
def halos() -> Simulation:
    return planner.simulate(
        "resnet50", gpus=8, cluster="lassen", global_batch_size=64, strategy="data+spatial"
    )


@cache
def servers() -> Simulation:
    return planner.simulate("alexnet", gpus=8, global_batch_size=64, runtime="ps-sync")


CASES = [pipeline, horovod, halos, servers]


@cache
def trace(simulation: Simulation) -> dict[str, Any]:
    return json.loads(trace_text(simulation))


def events(simulation: Simulation, phase: str) -> list[dict[str, Any]]:
    return [event for event in trace(simulation)["traceEvents"] if event["ph"] == phase]


def nanoseconds(microseconds: float) -> int:
    """As Perfetto reads a time: truncated."""
    return int(microseconds * 1000)


def threads(simulation: Simulation) -> dict[int, tuple[int, str]]:
    """Process and name of every thread."""
    named = [e for e in events(simulation, "M") if e["name"] == "thread_name"]
    return {event["tid"]: (event["pid"], event["args"]["name"]) for event in named}


@pytest.mark.parametrize("make", CASES)
def test_every_event_has_what_the_format_requires(make) -> None:
    found = trace(make())
    assert found["displayTimeUnit"] == "ms"
    assert list(found)[-1] == "traceEvents"
    keys = {
        "M": {"name", "pid", "tid", "args"},
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "C": {"name", "pid", "ts", "args"},
        "s": {"name", "cat", "id", "pid", "tid", "ts"},
        "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
        "i": {"name", "s", "pid", "tid", "ts"},
    }
    for event in found["traceEvents"]:
        assert keys[event["ph"]] <= set(event)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["pid"] > 0
        assert event["tid"] > 0
        assert event.get("cname", "grey") in RESERVED_COLOURS
        for key in ("ts", "dur"):
            if key in event:
                assert math.isfinite(event[key])
                assert event[key] >= 0


@pytest.mark.parametrize("make", CASES)
def test_events_are_in_the_order_of_time_after_the_names(make) -> None:
    rows = trace(make())["traceEvents"]
    phases = [event["ph"] for event in rows]
    names = phases.count("M")
    assert set(phases[:names]) == {"M"}
    times = [event["ts"] for event in rows[names:]]
    assert times == sorted(times)


@pytest.mark.parametrize("make", CASES)
def test_slices_of_a_thread_touch_but_never_overlap(make) -> None:
    by_thread = defaultdict(list)
    for event in events(make(), "X"):
        start, length = nanoseconds(event["ts"]), nanoseconds(event["dur"])
        assert length > 0
        by_thread[event["tid"]].append((start, start + length))
    assert by_thread
    for rows in by_thread.values():
        for (_, end), (start, _) in pairwise(sorted(rows)):
            assert start >= end


def test_times_survive_importers_that_truncate() -> None:
    for number in [0, 1, 999, 1000, 1_234_567, 16_777_217, *range(10**9, 10**9 + 3000)]:
        text = json.dumps(microseconds(number))
        assert "e" not in text
        assert int(float(text) * 1000) == number
        whole, _, part = text.partition(".")
        assert int(whole + f"{part:0<3}"[:3]) == number


@pytest.mark.parametrize("make", CASES)
def test_threads_are_named_and_unique_over_processes(make) -> None:
    simulation = make()
    named = [e for e in events(simulation, "M") if e["name"] == "thread_name"]
    assert len({event["tid"] for event in named}) == len(named)
    known = threads(simulation)
    for event in trace(simulation)["traceEvents"]:
        if event["ph"] != "M":
            assert known[event["tid"]][0] == event["pid"]
    assert simulation.simulated is not None
    for number, role in enumerate(simulation.simulated.roles):
        names = [name for pid, name in known.values() if pid == 10 * (number + 1)]
        assert names == [
            "computation",
            "feature communication",
            "gradient communication",
            "parameter communication",
        ]
        process = next(
            e
            for e in events(simulation, "M")
            if e["name"] == "process_name" and e["pid"] == 10 * (number + 1)
        )
        assert process["args"]["name"].startswith(f"{role.name}: GPUs {role.first_device}-")
        assert f"(simulated once for {role.num_devices})" in process["args"]["name"]


@pytest.mark.parametrize("make", CASES)
def test_every_task_of_some_time_is_one_slice_in_its_queue(make) -> None:
    simulation = make()
    timeline = simulation.simulated.task_times
    wanted = defaultdict(int)
    count = 0
    for number, task in enumerate(timeline.graph.tasks):
        if number not in timeline.fused:
            length = round(timeline.ends[number] * 1e9) - round(timeline.starts[number] * 1e9)
            wanted[task.role, THREADS[Queue(task.queue)]] += length
            count += length > 0
    found = defaultdict(int)
    known = threads(simulation)
    slices = [event for event in events(simulation, "X") if event["pid"] >= 10]
    for event in slices:
        pid, name = known[event["tid"]]
        found[pid // 10 - 1, name] += nanoseconds(event["dur"])
    assert len(slices) == count
    assert found == {key: length for key, length in wanted.items() if length}
    assert {"layer", "kind", "step", "alone_us", "actual_us"} <= set(slices[0]["args"])


@pytest.mark.parametrize("make", CASES)
def test_memory_peaks_where_and_as_high_as_the_ledger_says(make) -> None:
    simulation = make()
    for number, role in enumerate(simulation.simulated.roles):
        rows = [e for e in events(simulation, "C") if e["pid"] == 10 * (number + 1)]
        assert len({frozenset(event["args"]) for event in rows}) == 1
        top = max(rows, key=lambda event: sum(event["args"].values()))
        assert sum(top["args"].values()) == pytest.approx(role.memory.total, abs=8)
        assert top["ts"] == pytest.approx(role.memory_time * 1e6, abs=2e-3)
        for holder, size in role.memory.holders.items():
            assert top["args"].get(holder, 0) == pytest.approx(size, abs=1)
        # activations of a step are gone at its end
        assert rows[-1]["args"].get("activations", 0) <= 1
        assert rows[-1]["args"].get("activation gradients", 0) <= 1


def test_arrows_join_sends_and_their_first_readers() -> None:
    simulation = pipeline()
    starts = {event["id"]: event for event in events(simulation, "s")}
    ends = {event["id"]: event for event in events(simulation, "f")}
    assert set(starts) == set(ends)
    slices = events(simulation, "X")

    def open_at(event: dict[str, Any]) -> dict[str, Any]:
        time = nanoseconds(event["ts"])
        (found,) = (
            s
            for s in slices
            if s["tid"] == event["tid"] and 0 <= time - nanoseconds(s["ts"]) < nanoseconds(s["dur"])
        )
        return found

    sends = set()
    for number, start in starts.items():
        end = ends[number]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["pid"] != end["pid"]
        source, target = open_at(start), open_at(end)
        assert nanoseconds(source["ts"]) + nanoseconds(source["dur"]) <= nanoseconds(target["ts"])
        if source["args"]["kind"] == "send_recv":
            sends.add((source["tid"], source["ts"]))
            if source["args"]["layer"] == target["args"]["layer"]:
                assert target["args"]["kind"] == "backward"
            else:
                assert target["args"]["kind"] == "forward"
    # an activation and its gradient, for each of four micro-batches
    features = {
        (event["tid"], event["ts"])
        for event in slices
        if event["args"].get("kind") == "send_recv" and event["tid"] % 10 == Queue.FEATURE
    }
    assert len(features) == 8
    assert features <= sends


def test_gradients_that_travel_together_are_one_slice() -> None:
    simulation = horovod()
    timeline = simulation.simulated.task_times
    assert timeline.fused
    slices = [e for e in events(simulation, "X") if "members" in e["args"]]
    members = [name for event in slices for name in event["args"]["members"]]
    assert sorted(members) == sorted(t.name for t in timeline.graph.tasks if t.kind == "fused")
    for event in slices:
        # one overlap factor is all that can slow a lone reduction down
        assert 0.999 <= event["args"]["slowdown"] <= 1.101
    assert sum(e["args"]["bytes"] for e in slices) == sum(
        round(t.num_bytes) for t in timeline.graph.tasks if t.kind == "fused"
    )


def test_the_next_batch_is_loaded_beside_the_step() -> None:
    simulation = horovod()
    assert (1, "input") in threads(simulation).values()
    (loading,) = (event for event in events(simulation, "X") if event["cat"] == "input")
    assert loading["dur"] == pytest.approx(simulation.input.seconds * 1e6, abs=1e-3)
    assert loading["args"]["bottleneck"] == "the measured rate of a host"
    assert (1, "input") not in threads(pipeline()).values()


def test_the_step_that_was_measured_is_shown() -> None:
    simulation = servers()
    assert simulation.simulated.task_times.graph.steps == 3
    (step,) = (event for event in events(simulation, "X") if event["cat"] == "step")
    assert step["ts"] == pytest.approx(simulation.simulated.start * 1e6, abs=1e-3)
    assert step["dur"] == pytest.approx(simulation.simulated.step_time * 1e6, abs=2e-3)
    assert step["args"] == {"step": 2}


def test_a_trace_says_what_was_simulated() -> None:
    facts = trace(pipeline())["otherData"]
    assert facts["model"] == "gpt2"
    assert facts["strategy"] == "dp 2 x tp 2 x pp 2"
    assert facts["step_time_s"] == pipeline().step_time
    assert facts["tasks_of_no_time_left_out"] == 0


def test_the_same_simulation_has_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        pipeline.cache_clear()
        save_trace(pipeline(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_closed_form_has_no_trace(tmp_path: Path) -> None:
    form = planner.simulate("alexnet", gpus=8, model="paradl")
    with pytest.raises(InputError, match="has no timeline"):
        save_trace(form, tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []

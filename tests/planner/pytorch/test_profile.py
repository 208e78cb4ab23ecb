"""Profiles: what is measured, in which order, and that a stopped run loses nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from torch_extra import require

require("torch")

import torch

import planner
from costmodels.compute import CostTable
from planner.cli.command import planner_command
from planner.request.request import Request
from planner.tables.profile import place as places
from planner.tables.profile import run as runs
from planner.tables.profile.needs import Needs, needs_of
from planner.tables.profile.place import MeasuredPlace, find_place
from planner.tables.profile.run import ProfileRun, profile_question
from planner.tables.profile.store import MeasuredProfile, open_profile
from planner.tables.profile.timing import Timing, batch_by_events, measuring_time, time_call

QUESTION = ["--gpus", "2", "--cluster", "lassen", "--global-batch-size", "2"]
NETWORK = """
name = "tiny"
[input]
channel = 3
height = 16
width = 16
""" + "".join(
    f"""
[[layer]]
name = "{name}"
kind = "{kind}"
{more}
"""
    for name, kind, more in (
        ("stem", "conv", "filters = 8\nkernel = 7\npadding = 3"),
        ("relu", "activation", ""),
        ("a", "conv", 'filters = 8\nkernel = 3\npadding = "same"'),
        ("b", "conv", 'filters = 8\nkernel = 3\npadding = "same"'),
        ("pool", "global_pool", ""),
        ("fc", "linear", "filters = 10"),
        ("loss", "loss", ""),
    )
)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("networks") / "tiny.toml"
    path.write_text(NETWORK, encoding="utf-8")
    return str(path)


def question(network: str) -> Request:
    return Request(source=network, gpus=2, cluster="lassen", global_batch_size=2)


def steady(seconds: float) -> Callable[[Callable[[], object], int], float]:
    """A batch that takes as long whatever is called."""
    return lambda call, calls: seconds


def fake_place(seconds: float = 1e-3) -> MeasuredPlace:
    provenance = {"device": "CPU of a test", "host": "here", "software": "1", "date": "2026-11-22"}
    return MeasuredPlace(device="cpu", batch=steady(seconds), provenance=provenance)


@pytest.fixture(scope="module")
def needs(network: str) -> Needs:
    return needs_of(question(network))


class TestNeeds:
    def test_what_the_plan_computes_adds_up(self, needs: Needs) -> None:
        part = sum(need.in_plan for need in needs.needs)
        assert part + needs.unmeasurable == pytest.approx(1.0)
        assert part > 0.95
        assert needs.precision == "fp32"

    def test_every_shape_is_there_once_and_the_heaviest_first(self, needs: Needs) -> None:
        shapes = [need.shape for need in needs.needs]
        assert len(shapes) == len(set(shapes))
        assert [n.rests for n in needs.needs] == sorted(
            (n.rests for n in needs.needs), reverse=True
        )
        assert all(need.rests >= need.in_plan for need in needs.needs)
        # rivals of a layer are shapes that its plan does not have
        assert any(not need.in_plan for need in needs.needs)

    def test_passes_that_nobody_needs_are_not_measured(self, needs: Needs) -> None:
        (first,) = (need for need in needs.needs if need.shape.kernel == (7, 7) and need.in_plan)
        assert set(first.modelled) == {"forward", "backward_weight"}

    def test_layers_that_are_alike_count_together(self, needs: Needs) -> None:
        alike = [n for n in needs.needs if n.shape.kernel == (3, 3) and n.in_plan]
        (other,) = (n for n in needs.needs if n.shape.kernel == (7, 7) and n.in_plan)
        whole = other.in_plan / sum(other.modelled.values())
        # two convolutions are alike
        share = sum(n.in_plan for n in alike)
        assert share == pytest.approx(2 * whole * sum(alike[0].modelled.values()), rel=0.01)


class TestMeasuring:
    @pytest.mark.slow
    def test_all_is_measured_once_and_the_plan_knows_it(self, tmp_path: Path, network: str) -> None:
        path = tmp_path / "m.json"
        profile = open_profile(str(path), fake_place().provenance)
        run = profile_question(question(network), profile, fake_place(), lambda text: None)
        done = run.progress()
        assert done.shapes == done.of
        assert done.covered > 0.95
        assert done.seconds_left == 0.0
        table = CostTable.load(path)
        keys = {(r.work.operation, r.work.direction, str(r.work)) for r in table.rows}
        assert len(keys) == len(table)
        plan = planner.optimize(
            network, gpus=2, cluster="lassen", global_batch_size=2, tables=[path]
        )
        (said,) = (note for note in plan.fallbacks if "your tables cover" in note)
        assert int(said.split("cover ")[1].split("%")[0]) >= 95

    def test_what_is_said_is_of_the_plan_that_the_table_makes(
        self, tmp_path: Path, network: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]

        def batch(call: Callable[[], object], calls: int) -> float:
            now[0] += 1.0
            return 1e-3

        monkeypatch.setattr(runs, "warm_up", lambda place, seconds: None)
        monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: now[0]))
        profile = open_profile(str(tmp_path / "m.json"), fake_place().provenance)
        place = MeasuredPlace(device="cpu", batch=batch, provenance=profile.provenance)
        run = profile_question(question(network), profile, place, lambda text: None, 30.0)
        done = run.progress()
        assert 0 < done.shapes < done.of
        table = CostTable.of_text(profile.text(), "the profile")
        asked = Request(
            source=network, gpus=2, cluster="lassen", global_batch_size=2, tables=(table,)
        )
        assert done == ProfileRun(needs_of(asked), profile, place).progress()

    def test_a_budget_measures_what_the_plan_rests_on_most(
        self, tmp_path: Path, needs: Needs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile = MeasuredProfile(str(tmp_path / "m.json"), fake_place().provenance)
        run = ProfileRun(needs, profile, fake_place())
        # a clock that goes on by what a shape is thought to take, each time somebody looks
        shape = 3 * measuring_time(needs.needs[0].modelled["forward"])
        clock = itertools.count()
        monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: shape * next(clock)))
        run.measure(lambda text: None, 5 * shape)
        measured = {shape for shape, _, _ in profile.times}
        assert 0 < len(measured) < len(needs.needs)
        assert needs.needs[0].shape in measured
        done = run.progress()
        assert 0.0 < done.covered < 1.0
        assert done.seconds_left > 0.0

    def test_what_a_library_refuses_is_said_and_not_tried_again(
        self, tmp_path: Path, needs: Needs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = []

        def calls_of(module: object, shape: object, dtype: object, device: str) -> object:
            tried.append(shape)
            raise RuntimeError("no kernel for this\nat line 3")

        monkeypatch.setattr(runs, "calls_of", calls_of)
        place = fake_place()
        profile = open_profile(str(tmp_path / "m.json"), place.provenance)
        run = ProfileRun(needs, profile, place)
        run.measure(lambda text: None)
        assert len(tried) == len(needs.needs) == run.progress().left_out
        again = ProfileRun(needs, open_profile(profile.path, place.provenance), place)
        again.measure(lambda text: None)
        assert len(tried) == len(needs.needs)
        assert any("no kernel for this" in why for why in runs.reasons(profile, 3))

    def test_the_estimate_learns_from_what_was_measured(self, tmp_path: Path, needs: Needs) -> None:
        profile = MeasuredProfile(str(tmp_path / "m.json"), fake_place().provenance)
        run = ProfileRun(needs, profile, fake_place(seconds=2.0))
        before = run.progress().seconds_left
        run.measure(lambda text: None, time.monotonic() + 0.5)
        assert run.progress().seconds_left > 10 * before


class TestTiming:
    def test_median_and_spread(self) -> None:
        times = iter([1.0, 1.0, 5.0, 2.0, 3.0] + [3.0] * 9)
        timing = time_call(lambda: None, lambda call, calls: next(times), 1e-3)
        assert timing.seconds == 3.0
        assert timing.spread == pytest.approx((5 - 2) / 3)

    def test_short_calls_are_batched(self) -> None:
        asked = []

        def batch(call: Callable[[], object], calls: int) -> float:
            asked.append(calls)
            return 1e-6

        time_call(lambda: None, batch, 1e-4)
        assert asked[-1] == 100
        assert asked.count(100) == 9

    def test_events_are_recorded_around_the_calls_and_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log: list[str] = []

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                log.append("record")

            def synchronize(self) -> None:
                log.append("wait")

            def elapsed_time(self, other: object) -> float:
                assert log[-1] == "wait", "the end must be reached before it is read"
                return 6.0

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("drain"))
        seconds = batch_by_events(lambda: log.append("call"), 3)
        assert seconds == pytest.approx(2e-3)
        assert log == ["drain", "record", "call", "call", "call", "record", "wait"]

    def test_a_gpu_is_named_and_timed_by_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
        place = find_place("cuda")
        assert place.name == "NVIDIA H100 80GB HBM3"
        assert place.batch is batch_by_events


class TestGoingOn:
    @pytest.mark.slow
    def test_a_killed_run_goes_on_where_it_was(self, tmp_path: Path, network: str) -> None:
        path = tmp_path / "m.json"
        command = [sys.executable, "-m", "planner", "profile", network, *QUESTION]
        command += ["--device", "cpu", "--threads", "1", "-o", str(path)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        end = time.monotonic() + 60.0
        while not path.exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        known = CostTable.load(path)  # whole, though the run was killed
        assert len(known)
        profile = open_profile(str(path), find_place("cpu", 1).provenance)
        kept = dict(profile.times)
        place = MeasuredPlace(device="cpu", batch=steady(1e-3), provenance=profile.provenance)
        profile_question(question(network), profile, place, lambda text: None)
        again = CostTable.load(path)
        assert len(again) > len(known)
        assert {key: profile.times[key] for key in kept} == kept

    @pytest.mark.parametrize("batches", [0, 3])
    def test_ctrl_c_says_what_is_kept(
        self, tmp_path: Path, network: str, monkeypatch: pytest.MonkeyPatch, batches: int
    ) -> None:
        shapes = [0]

        def stopped(call: object, batch: object) -> object:
            if shapes[0] == batches:
                raise KeyboardInterrupt
            shapes[0] += 1
            return Timing(seconds=1e-3, spread=0.0)

        monkeypatch.setattr(runs, "warm_up", lambda place, seconds: None)
        monkeypatch.setattr(runs, "time_call", stopped)
        path = str(tmp_path / "m.json")
        arguments = ["profile", network, *QUESTION, "--device", "cpu", "-o", path]
        done = CliRunner().invoke(planner_command, arguments)
        kept = f"; {path} has what was measured; the same command goes on" if batches else ""
        assert (done.exit_code, done.stderr) == (130, f"interrupted{kept}\n")
        assert Path(path).exists() == bool(batches)

    @pytest.mark.parametrize("key", places.SAME)
    def test_another_machine_is_refused(self, tmp_path: Path, key: str) -> None:
        provenance = dict.fromkeys(places.SAME, "here") | {"date": "2026-11-22"}
        path = str(tmp_path / "m.json")
        open_profile(path, provenance).save()
        open_profile(path, provenance)
        with pytest.raises(planner.InputError, match="to go on with; choose another file"):
            open_profile(path, {**provenance, key: "elsewhere"})

    def test_a_file_that_is_no_profile_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "m.json"
        path.write_text(json.dumps({"format": "planner-plan"}))
        with pytest.raises(planner.InputError, match="must be a profile to go on with"):
            open_profile(str(path), fake_place().provenance)


class TestCommand:
    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            (["--device", "cuda"], "PyTorch sees none"),
            (["--device", "tpu"], "must be cpu or cuda but is 'tpu'"),
            (["--device", "cpu", "--precision", "tf32", "--cluster", "dgx-a100"], "not in tf32"),
            (["--device", "cpu", "--threads", "0"], "at least 1 but is 0"),
            (["--device", "cpu", "--budget", "5"], "have a unit"),
            (["--device", "cpu", "-o", "nowhere/m.json"], "does not exist"),
            (["--device", "cpu", "-o", "m.csv"], "must end in .json"),
            (["--device", "cpu", "--ranks", "2"], "--links"),
        ],
    )
    def test_bad_input_is_one_sentence(
        self,
        tmp_path: Path,
        network: str,
        monkeypatch: pytest.MonkeyPatch,
        more: list[str],
        sentence: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        arguments = ["profile", network, *QUESTION, "-o", "m.json", *more]
        done = CliRunner().invoke(planner_command, arguments)
        assert done.exit_code == 2
        (line,) = done.stderr.splitlines()
        assert sentence in line

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--gpus", "2"], "a MODEL must be given"),
            (["resnet18"], "the number of GPUs must be given"),
            (["nothing", "--gpus", "2", "--device", "cpu"], "nothing"),
        ],
    )
    def test_what_is_missing_is_said(
        self, tmp_path: Path, arguments: list[str], sentence: str
    ) -> None:
        path = str(tmp_path / "m.json")
        done = CliRunner().invoke(planner_command, ["profile", *arguments, "-o", path])
        assert done.exit_code == 2
        assert sentence in done.stderr.splitlines()[-1]

    @pytest.mark.slow
    def test_it_says_how_much_of_the_plan_is_measured(self, tmp_path: Path, network: str) -> None:
        path = str(tmp_path / "m.json")
        arguments = ["profile", network, *QUESTION, "--device", "cpu", "--threads", "1"]
        done = CliRunner().invoke(planner_command, [*arguments, "-o", path, "--budget", "4 s"])
        assert done.exit_code == 0, done.output
        assert "of what its plan computes" in done.output
        assert len(CostTable.load(path))

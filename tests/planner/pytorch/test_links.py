"""Links are measured between processes, kept, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from torch_extra import require

require("torch")

from costmodels.cluster.curve import CURVED
from costmodels.communication.curves import fitted_curve
from costmodels.compute import CostTable
from planner.cli.command import planner_command
from planner.errors import InputError
from planner.request.request import Request
from planner.request.setting import resolve
from planner.tables.profile.job import check_links, measure_links, torchrun_ranks
from planner.tables.profile.links import JobRanks
from planner.tables.profile.place import MeasuredPlace
from planner.tables.profile.store import open_profile
from planner.tables.profile.sweeps import fit_error, straight_error

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def ranks(rank: int, world: int, local: int) -> JobRanks:
    place = MeasuredPlace(device="cpu", batch=lambda call, calls: 0.0, provenance={})
    return JobRanks(rank=rank, world=world, local=local, place=place)


def test_groups_lie_where_plans_put_them() -> None:
    job = ranks(0, 8, 4)
    assert list(job.kinds()) == [(1, 2), (1, 4), (2, 2), (2, 8)]
    assert job.groups(1, 2) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert job.groups(2, 2) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert job.groups(2, 8) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    for kind in job.kinds():
        members = [rank for group in job.groups(*kind) for rank in group]
        assert sorted(members) == list(range(8)), "every rank is in one group of each kind"
    assert list(ranks(0, 3, 3).kinds()) == [(1, 3)]


def test_errors_of_fits() -> None:
    rows = [(2.0**n, 1e-4 + min(2.0**n * 1e-9, 1e-3), 0.0) for n in range(8, 27)]
    curve = fitted_curve("all_reduce", 1, 2, [row[0] for row in rows], [row[1] for row in rows])
    assert fit_error(curve, rows) < 0.01
    assert straight_error(rows) > 0.2


class TestTwoProcesses:
    @pytest.mark.slow
    def test_sweeps_are_kept_and_gone_on_with(self, tmp_path: Path) -> None:
        path = str(tmp_path / "links.json")
        options = {"device": "cpu", "ranks": 2, "threads": 1, "most": 2**12}
        first = measure_links(path, tell=lambda text: None, **options)
        assert first is not None
        assert {sweep[0] for sweep in first.sweeps} == set(CURVED)
        assert all(sweep[1:] == (1, 2) for sweep in first.sweeps)
        assert [row[0] for row in next(iter(first.sweeps.values()))] == [
            2.0**n for n in range(8, 13)
        ]
        assert first.overlap is not None
        assert all(curve.start + curve.slope > 0 for curve in first.curves())
        # one sweep is taken out: it alone is measured again
        document = json.loads(Path(path).read_text())
        rows = document["collectives"]["rows"]
        document["collectives"]["rows"] = [row for row in rows if row[0] != "all_gather"]
        Path(path).write_text(json.dumps(document))
        again = measure_links(path, tell=lambda text: None, **options)
        assert again is not None
        assert set(again.sweeps) == set(first.sweeps)
        kept = [sweep for sweep in first.sweeps if sweep[0] != "all_gather"]
        assert all(again.sweeps[sweep] == first.sweeps[sweep] for sweep in kept)
        table = CostTable.load(path)
        assert {curve.collective for curve in table.curves} == set(CURVED)
        setting = resolve(Request(source="alexnet", gpus=2, cluster="lassen", tables=(path,)))
        assert set(setting.cluster.curves) == set(table.curves)

    @pytest.mark.slow
    def test_under_torchrun(self, tmp_path: Path) -> None:
        path = tmp_path / "links.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += ["-m", "planner", "profile", "--links", "--device", "cpu", "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("collectives of links measured") == 1
        assert len(CostTable.load(path).curves) == len(CURVED)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "environment", "sentence"),
        [
            (["--links"], {}, "start it by 'torchrun"),
            (["--links", "--ranks", "1"], {}, "be from 2 to 64"),
            (["--links", "--ranks", "2"], TORCHRUN, "torchrun has done so"),
            (["--links", "--ranks", "2", "--device", "cuda"], {}, "PyTorch sees none"),
            (["--links"], {**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, "multiple of LOCAL_WORLD_SIZE"),
        ],
    )
    def test_one_sentence(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        arguments: list[str],
        environment: dict[str, str],
        sentence: str,
    ) -> None:
        for name in TORCHRUN:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        device = [] if "--device" in arguments else ["--device", "cpu"]
        path = str(tmp_path / "links.json")
        done = CliRunner().invoke(planner_command, ["profile", *arguments, *device, "-o", path])
        assert done.exit_code == 2
        (line,) = done.stderr.splitlines()
        assert sentence in line

    def test_ranks_alone_say_nothing(self) -> None:
        with pytest.raises(InputError, match="add --links"):
            check_links(2, links=False, device="cpu")
        check_links(None, links=False, device="cpu")

    @pytest.mark.parametrize("environment", [{}, {"RANK": "0"}, {"RANK": "a", "WORLD_SIZE": "2"}])
    def test_no_torchrun(self, environment: dict[str, str]) -> None:
        assert torchrun_ranks(environment) is None

    def test_curves_that_are_none_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.json"
        profile = open_profile(str(path), {"device": "d", "date": "2026-11-22"})
        profile.sweeps["all_reduce", 1, 2] = [(256.0, 1e-4, 0.1), (512.0, 2e-4, 0.1)]
        profile.save()
        assert len(CostTable.load(path).curves) == 1
        document = json.loads(path.read_text())
        for curves in ({"a": 1}, [{**document["curves"][0], "slope": -1}], [{"hosts": "b"}]):
            path.write_text(json.dumps({**document, "curves": curves}))
            with pytest.raises(InputError, match="measure them again"):
                CostTable.load(path)


def test_the_environment_of_tests_is_no_torchrun() -> None:
    assert torchrun_ranks(os.environ) is None

"""The page of the docs from a module to a running plan, as it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch_extra
from click.testing import CliRunner

torch_extra.require("torch")

import planner
from costmodels.errors import InputError
from planner.cli.command import planner_command
from planner.torch.launch import launch
from planner.torch.verify.ranks import RankError

PAGE = Path(__file__).parents[3] / "docs" / "apply.md"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}


def _planner(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "planner", *words],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The script, and the plan that the page makes of it."""
    made = tmp_path_factory.mktemp("page")
    page = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(import os\n.+?)```", page, re.S)
    (made / "train.py").write_text(script, encoding="utf-8")
    (command,) = re.findall(r"^planner (evaluate.+?plan\.json)$", page, re.S | re.M)
    done = _planner(made, *command.replace("\\\n", " ").split())
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.slow
def test_the_script_has_the_losses_of_one_process(folder):
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    ranks = _planner(folder, "run", "plan.json", "--nproc-per-node", "4", "--", "train.py")
    assert ranks.returncode == 0, ranks.stderr[-3000:]
    assert alone.stdout.splitlines() == ranks.stdout.splitlines()
    assert len(alone.stdout.splitlines()) == 5


@pytest.mark.slow
def test_the_plan_of_the_page_is_verified(folder):
    words = ("verify", "plan.json", "--module", "train:build", "--ranks", "4", "--json")
    done = _planner(folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["holds"]
    assert any("height" in text or "width" in text for text in facts["exercised"])


def test_a_plan_names_no_code(folder):
    done = _planner(folder, "verify", "plan.json")
    assert done.returncode == 2
    assert "name it with --module package.module:name" in done.stderr


@pytest.mark.parametrize("hosts", ["x", "0", "-1", "1\x1b[2J", "9" * 5000])
def test_the_number_of_hosts_must_be_one(hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("PET_NNODES", hosts)
    planner.optimize("alexnet", gpus=1).save(tmp_path / "plan.json")
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    with pytest.raises(InputError, match="PET_NNODES of the environment must be a number of hosts"):
        launch(str(tmp_path / "plan.json"), 1, [str(script)])


@pytest.mark.slow
def test_what_is_run_must_fit_the_plan(folder):
    for words, said in (
        (("--nproc-per-node", "2", "--", "train.py"), "the plan is for 4 ranks"),
        (("--nproc-per-node", "0", "--", "train.py"), "--nproc-per-node must be at least 1"),
        (("--nproc-per-node", "4", "--", "none.py"), "the script must be a file"),
    ):
        done = _planner(folder, "run", "plan.json", *words)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run(folder):
    (folder / "dies.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: os._exit(3)\n"
        "dist.recv(torch.zeros(1), 1)\n"
    )
    started = time.monotonic()
    done = _planner(folder, "run", "plan.json", "--nproc-per-node", "4", "--", "dies.py")
    assert done.returncode == 1
    assert "a rank of 'dies.py' failed, and the others were ended" in done.stderr
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(("gpus", "ranks"), [(1, 1), (2, 2), (8, 4)])
def test_no_more_ranks_are_verified_than_a_plan_has(gpus, ranks, tmp_path, monkeypatch):
    plan = planner.evaluate("alexnet", gpus=gpus, cluster="dgx-a100", global_batch_size=24)
    plan.save(tmp_path / "plan.json")
    asked: list[object] = []

    def verified(plan: object, **given: object) -> object:
        asked.append(given["ranks"])
        raise RankError("enough")

    monkeypatch.setattr("planner.torch.verify.verify.verify_plan", verified)
    CliRunner().invoke(planner_command, ["verify", str(tmp_path / "plan.json")])
    assert asked == [ranks]

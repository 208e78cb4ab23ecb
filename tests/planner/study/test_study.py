"""`planner study`: workers that share a storage, that are killed, and what comes out."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import planner
from costmodels.errors import InputError
from planner.cli.command import planner_command
from planner.study import worker
from planner.study.run import _Workers
from planner.study.sweep import read_sweep
from planner.study.trials import Trials

ROOT = Path(__file__).parents[3]
QUICK = """name = "quick"
[[grid]]
model = "alexnet"
gpus = [1, 2]
cluster = "lassen"
memory = ["16 GiB", "1.4 GiB"]
cap = 4
num_best = 1
[[grid]]
model = "alexnet"
gpus = 3
"""
# Questions that take seconds each, so that a worker can be met at its work.
SLOW = """name = "slow"
[grid]
model = "densenet121"
gpus = [4, 8]
cluster = "dgx-a100"
"""


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of the quick study, by one worker."""
    folder = tmp_path_factory.mktemp("answered")
    (folder / "quick.toml").write_text(QUICK)
    result = run(str(folder / "quick.toml"), "--storage", f"sqlite:///{folder}/quick.db", "-q")
    assert result.stdout == "study quick: 5 questions, 3 with a plan\n", result.output
    return folder / "quick.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("quick.toml").write_text(QUICK)
    Path("slow.toml").write_text(SLOW)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, ["study", *arguments])


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "planner", "study", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def trials(url: str, name: str) -> list[Any]:
    return list(Trials.open(url, name).all_trials())


def soon(found: Callable[[], Any]) -> Any:
    """What is found, as soon as it is."""
    until = time.monotonic() + 120.0
    while time.monotonic() < until:
        if result := found():
            return result
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def at_work(process: subprocess.Popen[str], url: str) -> list[Any]:
    """The questions that the run of a study is at, of which there must be some while it lives."""

    def running() -> list[Any]:
        assert process.poll() is None, process.communicate()
        return [one for one in trials(url, "slow") if one.state.name == "RUNNING"]

    return list(soon(running))


@pytest.mark.slow
def test_the_same_study_has_the_same_result_however_it_is_worked_on(answered):
    shutil.copy(answered, ".")
    result = run("quick.toml", "--csv", "table.csv", "-o", "study.json", "--plans", "plans")
    assert result.exit_code == 0, result.output
    assert "study quick: 5 questions" in result.stdout
    for words in (("--jobs", "2", "--storage", "other.journal"), ("--jobs", "2")):
        again = run("quick.toml", *words, "-o", "again.json", "--csv", "again.csv")
        assert again.exit_code == 0, again.output
        assert Path("again.json").read_bytes() == Path("study.json").read_bytes()
        assert Path("again.csv").read_bytes() == Path("table.csv").read_bytes()
        # nothing was asked again in the storage that has the answers
        assert len(trials("sqlite:///quick.db", "quick")) == 5
    rows = list(csv.DictReader(Path("table.csv").read_text().splitlines()))
    facts = json.loads(Path("study.json").read_text())["questions"]
    assert [row["number"] for row in rows] == ["1", "2", "3", "4", "5"]
    statuses = [row["status"] for row in rows]
    assert statuses[:4].count("infeasible") >= 1
    assert statuses[4] == "refused"
    assert "3; use 2 or 4" in rows[4]["message"]
    for row, fact in zip(rows, facts, strict=True):
        path = Path(f"plans/{row['number']}.json")
        assert path.exists() == ("plan" in fact) == bool(row["step_time_s"])
        if path.exists():
            plan = planner.Plan.load(path)
            assert json.loads(plan.to_json()) == fact["plan"]
            assert float(row["step_time_s"]) == plan.step_time_s
            same = planner.optimize(**fact["inputs"])
            assert same.to_json() == plan.to_json()


def test_a_study_is_shown_and_written_in_every_way(answered):
    shutil.copy(answered, ".")
    table = run("quick.toml").stdout
    assert run("quick.toml", "-q").stdout == "study quick: 5 questions, 3 with a plan\n"
    figures = run("quick.toml", "--json").stdout
    assert run("quick.toml", "-o", "-").stdout == figures
    assert run("quick.toml", "-o", "study.html").stdout == (
        f"{table}\nstudy written to study.html\n"
    )
    page = Path("study.html").read_text()
    for text in (
        "<title>study quick: 5 questions</title>",
        "infeasible",
        "3; use 2 or 4",
        "alexnet",
    ):
        assert text in page
    assert "Remarks" in table


def test_workers_that_are_killed_before_a_question_are_replaced(tmp_path, monkeypatch):
    """Such a one ended the study of all others."""
    trials = Trials.open(f"sqlite:///{tmp_path / 'study.db'}", "study")
    workers = _Workers(trials=trials, sweep=None)
    monkeypatch.setattr(_Workers, "_started", lambda self: {"another": None})
    killed = SimpleNamespace(join=lambda: None, exitcode=-9, pid=1)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sender.close()
    for _ in range(3):
        assert workers._follow(killed, receiver) == {"another": None}
    with pytest.raises(InputError, match="4 workers of the study ended before they took up"):
        workers._follow(killed, receiver)


@pytest.mark.slow
def test_a_killed_worker_loses_nothing():
    url = "sqlite:///slow.db"
    process = started("slow.toml", "--jobs", "2", "-q")
    victim = at_work(process, url)[0]
    os.kill(victim.user_attrs["worker"]["pid"], signal.SIGKILL)
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert output == "study slow: 2 questions, 2 with a plan\n"
    found = trials(url, "slow")
    assert [t.number for t in found if t.state.name == "FAIL"] == [victim.number]
    done = [t.user_attrs["key"] for t in found if t.state.name == "COMPLETE"]
    assert sorted(done) == sorted(one.key for one in read_sweep("slow.toml").questions)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sign",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGKILL, signal.SIGTERM)),
        signal.SIGINT,
    ],
)
def test_a_stopped_study_goes_on_where_it_was(sign):
    url = "study.journal"
    process = started("slow.toml", "--storage", url)
    workers = at_work(process, url)
    process.send_signal(sign)
    output, errors = process.communicate(timeout=60)
    if sign == signal.SIGINT:
        assert (process.returncode, errors) == (130, "interrupted\n")
        assert "study slow: 2 questions, 0 answered so far" in output
    assert process.returncode != 0
    soon(lambda: not Path(f"/proc/{workers[0].user_attrs['worker']['pid']}").exists())
    result = run("slow.toml", "--storage", url, "-q")
    assert result.stdout == "study slow: 2 questions, 2 with a plan\n"
    states = [t.state.name for t in trials(url, "slow")]
    # a worker may be done with its question before it sees that the others are gone
    assert states in (["FAIL", "COMPLETE", "COMPLETE"], ["COMPLETE", "COMPLETE"])


@pytest.mark.slow
def test_two_runs_share_a_study():
    # enough questions that the one that starts later finds some
    Path("slow.toml").write_text(SLOW.replace("[4, 8]", "[4, 8, 16, 32]"))
    both = [started("slow.toml", "-o", "-") for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0] == outputs[1]
    done = [t for t in trials("sqlite:///slow.db", "slow") if t.state.name == "COMPLETE"]
    assert len(done) == 4
    assert len({t.user_attrs["worker"]["pid"] for t in done}) == 2


@pytest.mark.slow
def test_a_larger_study_asks_only_what_is_new(answered):
    shutil.copy(answered, ".")
    Path("quick.toml").write_text(QUICK.replace("gpus = 3", "gpus = [3, 5]"))
    assert run("quick.toml", "-q").stdout == "study quick: 6 questions, 3 with a plan\n"
    assert len(trials("sqlite:///quick.db", "quick")) == 6


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ('[grid]\nmodel = "nothing"\ngpus = [1, 2]\n', 2, "no question of the study can be asked"),
        (
            '[grid]\nmodel = "vgg16"\ngpus = 1\nmemory = "1.1 GiB"\n',
            3,
            "no plan fits in memory for any question of the study",
        ),
    ],
)
def test_a_study_without_any_plan_has_a_status(text, status, message):
    Path("none.toml").write_text(text)
    result = run("none.toml")
    assert result.exit_code == status
    assert result.stderr == f"error: {message}" + ("; correct its file\n" if status == 2 else "\n")
    assert "study none: " in result.stdout


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_costs_no_answer(answered):
    shutil.copy(answered, ".")
    before = [t.user_attrs for t in trials("sqlite:///quick.db", "quick")]
    Path("quick.toml").write_text(QUICK.replace("gpus = 3", "gpus = [3, 5]"))
    size = os.path.getsize("quick.db") // 1024 // 2
    limited = f'ulimit -f {size}; exec "$0" -m planner study quick.toml -q'
    done = subprocess.run(
        ["bash", "-c", limited, sys.executable],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stderr.startswith("error: the study at sqlite:///quick.db cannot be ")
    assert done.stderr.count("\n") == 1
    assert [t.user_attrs for t in trials("sqlite:///quick.db", "quick")][:5] == before
    assert run("quick.toml", "-q").stdout == "study quick: 6 questions, 3 with a plan\n"


def test_a_defect_is_recorded_and_the_study_goes_on(monkeypatch):
    def broken(request: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("planner.study.answers.optimize_request", broken)
    trials = Trials.open("sqlite:///d.db", "d")
    worker._answer_all(trials, read_sweep("quick.toml").questions)
    kept = {t.user_attrs["status"] + t.user_attrs["message"] for t in trials.all_trials()}
    assert kept == {"defectZeroDivisionError: by zero"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.toml",), "the study file missing.toml must be readable"),
        (("quick.toml", "--jobs", "0"), "the number of workers (--jobs) must be at least 1"),
        (("quick.toml", "--jobs", "two"), "--jobs must be one whole number but is 'two'"),
        (("quick.toml", "-o", "study.txt"), "must end in .json or .html or .htm"),
        (("quick.toml", "--csv", "quick.toml"), "must end in .csv"),
        (("quick.toml", "--plans", "quick.toml"), "the folder 'quick.toml' of --plans"),
        (("quick.toml", "--storage", "s.json", "-o", "s.json"), "is read by this command, too"),
        (("quick.toml", "--storage", "sqlite:///missing/s.db"), "cannot be opened"),
        (("quick.toml", "--storage", ""), "--storage must be a database URL or a journal file"),
        (("quick.toml", "-q", "--json"), "exclude each other"),
    ],
)
def test_bad_input_is_one_sentence(words, message):
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_names_with_escape_codes_reach_no_terminal_and_no_table():
    Path("odd.toml").write_text('[grid]\nmodel = ["\\u001b[31mred", "a,\\"b"]\ngpus = 1\n')
    result = run("odd.toml", "--csv", "odd.csv", "-o", "odd.html")
    assert result.exit_code == 2
    for text in (result.output, Path("odd.csv").read_text(), Path("odd.html").read_text()):
        assert "\x1b" not in text
    assert [row["model"] for row in csv.DictReader(Path("odd.csv").read_text().splitlines())] == [
        "[31mred",
        'a,"b',
    ]

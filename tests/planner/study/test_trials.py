"""Who answers which question: claims, deaths, and storages that cannot be used."""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileSymlinkLock
from postgresql_server import new_base, server
from sqlalchemy.exc import IntegrityError

from costmodels.errors import InputError
from planner.study import trials as trials_module
from planner.study.answers import StudyAnswer
from planner.study.sweep import StudyQuestion
from planner.study.trials import MOST_DEATHS, Trials, storage_errors, this_worker, without_password

QUESTIONS = tuple(StudyQuestion(values={"gpus": n}, key=f"key {n}") for n in (1, 2))
REFUSED = StudyAnswer(status="refused", message="no")
STORAGES = (
    "sqlite:///study.db",
    "study.journal",
    pytest.param("postgresql", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Path]:
    """Where a server of PostgreSQL listens."""
    with server() as folder:
        yield folder


@pytest.fixture(params=STORAGES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    if request.param == "postgresql":
        return new_base(request.getfixturevalue("postgresql"))
    return str(request.param)


def states(trials: Trials) -> list[str]:
    return [trial.state.name for trial in trials.all_trials()]


def test_each_question_is_taken_once_and_kept(url):
    first, second = Trials.open(url, "s"), Trials.open(url, "s")
    taken = [first.take(QUESTIONS), second.take(QUESTIONS)]
    assert [question.key for _, question in taken] == ["key 1", "key 2"]
    assert first.take(QUESTIONS) is None
    for trial_id, _ in taken:
        second.keep(trial_id, REFUSED)
    again = Trials.open(url, "s")
    assert again.take(QUESTIONS) is None
    assert states(again) == ["COMPLETE", "COMPLETE"]
    assert StudyAnswer.of_attributes(again.answers()["key 2"].user_attrs) == REFUSED
    assert Trials.open(url, "another").take(QUESTIONS) is not None


def test_of_two_that_take_a_question_at_once_the_first_has_it(url, monkeypatch):
    first, second = Trials.open(url, "s"), Trials.open(url, "s")
    seen = [[], *[None] * 9]
    really = Trials.running

    def late(self: Trials):
        # what the other one did a moment ago is not seen yet
        blind = seen.pop(0) if self is second and seen else None
        return really(self) if blind is None else blind

    monkeypatch.setattr(Trials, "running", late)
    assert first.take(QUESTIONS)[1].key == "key 1"
    assert second.take(QUESTIONS)[1].key == "key 2"
    assert states(first) == ["RUNNING", "PRUNED", "RUNNING"]


def _take_and_die(url: str) -> None:
    Trials.open(url, "s").take(QUESTIONS)
    os._exit(9)


def test_the_question_of_a_dead_worker_is_free_at_once(url):
    trials = Trials.open(url, "s")
    process = multiprocessing.get_context("spawn").Process(target=_take_and_die, args=(url,))
    process.start()
    process.join()
    assert states(trials) == ["RUNNING"]
    trials.free_the_dead()
    assert states(trials) == ["FAIL"]
    assert trials.take(QUESTIONS)[1].key == "key 1"
    trials.free_the_dead()
    assert states(trials) == ["FAIL", "RUNNING"]


def test_a_process_of_the_same_number_is_not_the_worker(url, monkeypatch):
    trials = Trials.open(url, "s")
    monkeypatch.setattr(trials_module, "this_worker", lambda: {**this_worker(), "birth": "1"})
    trials.take(QUESTIONS)
    trials.free_the_dead()
    assert states(trials) == ["FAIL"]


def test_a_worker_elsewhere_is_dead_only_after_it_gave_no_sign_for_long(url, monkeypatch):
    away = {"place": "another machine", "pid": 1, "birth": "1"}
    monkeypatch.setattr(trials_module, "this_worker", lambda: away)
    clock = [100.0]
    monkeypatch.setattr(trials_module.time, "monotonic", lambda: clock[0])
    trials = Trials.open(url, "s")
    trial_id, _ = trials.take(QUESTIONS)
    for number in range(1, 4):
        clock[0] += 0.9 * trials_module.GRACE
        trials.beat(trial_id, number)
        trials.free_the_dead()
        assert states(trials) == ["RUNNING"]
    clock[0] += 1.1 * trials_module.GRACE
    trials.free_the_dead()
    assert states(trials) == ["FAIL"]
    # it was only slow: its answer comes too late
    trials.keep(trial_id, REFUSED)
    assert states(trials) == ["FAIL"]
    assert not trials.answers()


def test_a_question_that_kills_its_workers_is_left_alone_until_the_next_run(url, monkeypatch):
    gone = {**this_worker(), "birth": "1"}
    trials = Trials.open(url, "s")
    with monkeypatch.context() as patch:
        patch.setattr(trials_module, "this_worker", lambda: gone)
        for _ in range(MOST_DEATHS):
            assert trials.take(QUESTIONS[:1]) is not None
            trials.free_the_dead()
    assert trials.take(QUESTIONS[:1]) is None
    assert trials.take(QUESTIONS)[1].key == "key 2"
    assert Trials.open(url, "s").take(QUESTIONS)[1].key == "key 1"


def test_two_that_begin_a_study_at_once_both_open_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    really, calls = optuna.storages.RDBStorage, []

    def beaten_once(*given: object, **more: object) -> object:
        calls.append(given)
        if len(calls) == 1:
            twice = ValueError("UNIQUE constraint failed: alembic_version.version_num")
            raise IntegrityError("INSERT", {}, twice)
        return really(*given, **more)

    monkeypatch.setattr(optuna.storages, "RDBStorage", beaten_once)
    # what is there is an RDBStorage, and no function
    monkeypatch.setattr(optuna.storages, "get_storage", lambda storage: storage)
    assert Trials.open("sqlite:///study.db", "s").take(QUESTIONS) is not None
    assert len(calls) == 2


def test_a_journal_whose_last_line_was_never_finished_is_mended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trials = Trials.open("study.journal", "s")
    trials.keep(trials.take(QUESTIONS)[0], REFUSED)
    whole = Path("study.journal").read_bytes()
    Path("study.journal").write_bytes(whole + b'{"op_code": 4, "tri')
    again = Trials.open("study.journal", "s")
    assert again.take(QUESTIONS)[1].key == "key 2"
    assert states(Trials.open("study.journal", "s")) == ["COMPLETE", "RUNNING"]


def test_a_lock_of_a_journal_in_another_folder_tells_its_age(tmp_path, monkeypatch):
    # else Optuna waits for ever for one that was killed, without a pause
    monkeypatch.chdir(tmp_path)
    Path("studies").mkdir()
    ages = []

    def acquire(self):
        os.symlink(self._lock_target_file, self._lock_file)
        ages.append(os.stat(self._lock_file).st_mtime)
        return True

    monkeypatch.setattr(JournalFileSymlinkLock, "acquire", acquire)
    Trials.open("studies/study.journal", "s")
    assert ages


def test_a_full_disk_costs_a_journal_no_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trials = Trials.open("study.journal", "s")
    trials.keep(trials.take(QUESTIONS)[0], REFUSED)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = os.path.getsize("study.journal") + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, before[1]))
    try:
        with (
            pytest.raises(InputError, match="cannot be kept up to date"),
            storage_errors("study.journal", "kept up to date"),
        ):
            trials.take(QUESTIONS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    again = Trials.open("study.journal", "s")
    assert again.take(QUESTIONS)[1].key == "key 2"
    assert states(again) == ["COMPLETE", "RUNNING"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "must lie where all workers find it"),
        ("sqlite:///:memory:", "must lie where all workers find it"),
        ("sqlite:///missing/study.db", "cannot be opened (unable to open database file)"),
        ("sqlite:///notes.txt", "cannot be opened (file is not a database)"),
        ("notes.txt", "cannot be opened"),
        ("notes.json", "cannot be opened (it is no journal of Optuna)"),
        ("note.txt", "cannot be opened (it is no journal of Optuna)"),
        ("missing/study.journal", "cannot be opened (No such file or directory)"),
        (".", "cannot be opened (it is no file)"),
        ("/dev/full", "cannot be opened (it is no file)"),
        ("nothing://there", "cannot be opened"),
        ("mysql+nothing://a:secret@b/c", "cannot be opened"),
        ("postgresql+pg8000://a:secret@localhost:1/c", "cannot be opened"),
        ("\x1b[31m://x", "cannot be opened"),
        ("a\0b", "cannot be opened"),
    ],
)
def test_a_study_that_cannot_be_opened_is_one_sentence(url, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("these are notes\nand no study\n" * 99)
    Path("notes.json").write_text('{\n"notes": 3\n}')
    Path("note.txt").write_text("a note of one line\n")
    with pytest.raises(InputError) as caught:
        Trials.open(url, "s")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert Path("notes.txt").read_text().count("notes") == 99
    assert Path("notes.json").read_text().endswith("3\n}")
    assert Path("note.txt").read_text() == "a note of one line\n"


def test_passwords_are_not_shown():
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert without_password("sqlite:///a:b@c.db") == "sqlite:///a:b@c.db"

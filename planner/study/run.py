"""Run a study: start workers, have the questions of dead ones taken up again, gather answers."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from msgspec import Struct

from costmodels.errors import InputError
from planner.study.answers import StudyAnswer
from planner.study.sweep import StudyQuestion, Sweep
from planner.study.trials import Trials, storage_errors
from planner.study.worker import work

# How often progress is told. [s]
_TELL = 0.5
# Workers that may end before they take up a question: more are none that someone killed. [items]
_MOST_LOST = 3


class StudyRow(Struct, frozen=True, kw_only=True):
    """A question with its answer, None where there is none yet."""

    question: StudyQuestion
    answer: StudyAnswer | None


class Study(Struct, frozen=True, kw_only=True):
    """A study as far as it is answered.

    Parameters
    ----------
    sweep
        What was asked.
    rows
        Questions and answers, in the order of the file.
    interrupted
        Whether an interrupt ended the run.
    """

    sweep: Sweep
    rows: tuple[StudyRow, ...]
    interrupted: bool = False

    @property
    def unanswered(self) -> int:
        """Questions without an answer. [items]"""
        return sum(row.answer is None for row in self.rows)


def run_study(
    sweep: Sweep, url: str, *, jobs: int = 1, tell: Callable[[str], None] | None = None
) -> Study:
    """Answer what is not answered yet of a study.

    Parameters
    ----------
    sweep
        What is asked.
    url
        Where the study lies: the URL of a database, or the path of a journal file. Other machines
        may work on it at the same time.
    jobs
        Worker processes. [items]
    tell
        Told how far it is.

    Raises
    ------
    InputError
        When the study cannot be opened or kept up to date.
    """
    trials = Trials.open(url, sweep.name)
    interrupted = False
    with storage_errors(url, "kept up to date"):
        trials.free_the_dead()
        if _left(trials, sweep):
            interrupted = _Workers(trials=trials, sweep=sweep).run(jobs, tell)
        kept = trials.answers()
    rows = tuple(
        StudyRow(
            question=one,
            answer=StudyAnswer.of_attributes(kept[one.key].user_attrs) if one.key in kept else None,
        )
        for one in sweep.questions
    )
    return Study(sweep=sweep, rows=rows, interrupted=interrupted)


def _left(trials: Trials, sweep: Sweep) -> int:
    """Questions that are not answered yet. [items]"""
    kept = trials.answers()
    return sum(one.key not in kept for one in sweep.questions)


class _Workers(Struct, kw_only=True):
    """Worker processes of this run."""

    trials: Trials
    sweep: Sweep
    lost: int = 0

    def run(self, jobs: int, tell: Callable[[str], None] | None) -> bool:
        """Let workers answer all that is left; whether an interrupt came."""
        workers: dict[Any, Connection] = {}
        try:
            for _ in range(min(jobs, _left(self.trials, self.sweep))):
                workers |= self._started()
            while workers:
                wait([one.sentinel for one in workers], timeout=_TELL)
                if tell is not None:
                    tell(self._progress())
                for process in [one for one in workers if not one.is_alive()]:
                    workers |= self._follow(process, workers.pop(process))
        except KeyboardInterrupt:
            return True
        finally:
            for process in workers:
                process.terminate()
            for process in workers:
                process.join()
            # others need not wait until signs of life are missed
            self.trials.free_the_dead()
        return False

    def _started(self) -> dict[Any, Connection]:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        trials = self.trials
        arguments = (trials.url, trials.name, trials.first, self.sweep.questions, sender)
        process = context.Process(target=work, args=arguments, daemon=True)
        with _interrupts_ignored():
            process.start()
        sender.close()
        return {process: receiver}

    def _follow(self, process: Any, failures: Connection) -> dict[Any, Connection]:
        """Another worker where one was killed at a question; why one could not go on is raised."""
        process.join()
        if process.exitcode == 0:
            return {}
        try:
            raise InputError(failures.recv())
        except EOFError:
            pass
        self.trials.free_the_dead()
        died_at_one = any(
            trial.state.name == "FAIL"
            and trial.user_attrs.get("worker", {}).get("pid") == process.pid
            for trial in self.trials.all_trials()[self.trials.first :]
        )
        self.lost += not died_at_one
        if self.lost > _MOST_LOST:
            raise InputError(
                f"{self.lost} workers of the study ended before they took up a question (status "
                f"{process.exitcode}); run with --jobs 1 to see whether memory is short"
            )
        return self._started()

    def _progress(self) -> str:
        total, at_work = len(self.sweep.questions), len(self.trials.running())
        done = total - _left(self.trials, self.sweep)
        return f"{done:,} of {total:,} answered, {at_work:,} at work"


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that are started inside ignore interrupts from their beginning on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

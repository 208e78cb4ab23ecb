"""A worker of a study: takes up questions one by one, answers them, and gives signs of life."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from planner.study.answers import answered
from planner.study.sweep import StudyQuestion
from planner.study.trials import BEAT, Trials, storage_errors

# How often a worker looks for work while others are at what is left. [s]
_LOOK_AGAIN = 0.5


def work(
    url: str, name: str, first: int, questions: Sequence[StudyQuestion], failures: Connection
) -> None:
    """Answer questions until none is left; the main function of a worker process.

    Parameters
    ----------
    url, name, first
        The study, as of `Trials`.
    questions
        All of them.
    failures
        Where to say why this worker cannot go on.
    """
    # the process that started this one answers interrupts for all
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with storage_errors(url, "kept up to date"):
            trials = Trials.open(url, name, first)
            _answer_all(trials, questions)
    except Exception as error:
        failures.send(str(error))
        raise SystemExit(1) from None


def _answer_all(trials: Trials, questions: Sequence[StudyQuestion]) -> None:
    keys = {one.key for one in questions}
    while not _is_orphan():
        trials.free_the_dead()
        taken = trials.take(questions)
        if taken is not None:
            trial_id, question = taken
            stop = threading.Event()
            signs = threading.Thread(target=_give_signs, args=(trials, trial_id, stop), daemon=True)
            signs.start()
            try:
                answer = answered(question)
            finally:
                stop.set()
                signs.join()
            trials.keep(trial_id, answer)
        elif keys.isdisjoint(one.user_attrs.get("key") for one in trials.running()):
            return
        else:
            time.sleep(_LOOK_AGAIN)


def _is_orphan() -> bool:
    """Whether the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _give_signs(trials: Trials, trial_id: int, stop: threading.Event) -> None:
    """Say now and then that this worker lives; end it when who started it is gone."""
    number, next_sign = 0, time.monotonic() + BEAT
    while not stop.wait(1.0):
        if _is_orphan():
            os._exit(1)
        if time.monotonic() >= next_sign:
            number, next_sign = number + 1, time.monotonic() + BEAT
            # one that is lost is followed by another one
            with suppress(Exception):
                trials.beat(trial_id, number)

"""Interrupts that are not lost.

Python raises KeyboardInterrupt wherever its main thread happens to be, and a compiled extension
that is just being called back or imported may swallow it or turn it into another error. So while a
solver runs, an interrupt is noted, too, and looked for where a solver would else go on for long.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_noted = threading.Event()
_listening = False


def noted() -> bool:
    """Whether there was an interrupt since the solver began."""
    return _noted.is_set()


@contextmanager
def _handled_by(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Let a function handle interrupts, in the main thread; elsewhere they are not seen anyway."""
    before = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread() and before is not None
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


@contextmanager
def listening() -> Iterator[None]:
    """Note interrupts, and let them do what they did before."""
    global _listening
    if _listening:  # a solver that another one calls
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        _noted.set()
        if callable(before):
            before(number, frame)

    _noted.clear()
    _listening = True
    try:
        with _handled_by(note):
            yield
    finally:
        _listening = False
        _noted.clear()


@contextmanager
def held_back() -> Iterator[threading.Event]:
    """Note interrupts only: for what must not be left halfway. Tells whether there was one."""
    came = threading.Event()

    def note(*_: object) -> None:
        _noted.set()
        came.set()

    with _handled_by(note):
        yield came


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is an interrupt, or what an extension made of one."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, ImportError) and noted())

"""Run the command in a child of this process: quick, limited, and no crash of it is ours."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import resource
import signal
import stat
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

CPU_SECONDS, WALL_SECONDS = 20, 600
ADDRESS_SPACE = 4 * 2**30
FILE_SIZE = 512 * 2**20
# Linux's call for giving up the rights of root, which would make all files readable.
_CAPABILITIES_VERSION = 0x20080522
_OUT, _ERR, _WHERE = "stdout", "stderr", "where"


@dataclass(frozen=True)
class Outcome:
    """What a run left.

    Parameters
    ----------
    status
        Exit status, or minus the signal that ended the process.
    hung
        Whether a limit of time ended it.
    out, err
        What it wrote to the streams.
    where
        Where it was when its time was over.
    before, after
        What lay in the folder: see `snapshot`.
    seconds
        How long it took. [s]
    """

    status: int
    hung: bool
    out: bytes
    err: bytes
    where: str
    before: dict[str, str]
    after: dict[str, str]
    seconds: float


def snapshot(folder: Path) -> dict[str, str]:
    """What lies in a folder, by path: kind, permissions and a hash of the content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        mark = oct(about.st_mode)
        if stat.S_ISLNK(about.st_mode):
            mark += os.readlink(path)
        elif stat.S_ISREG(about.st_mode) and os.access(path, os.R_OK):
            mark += sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = mark
    return found


def run_forked(
    arguments: Sequence[str],
    folder: Path,
    streams: Path,
    *,
    encoding: str = "utf-8",
    environment: Mapping[str, str] | None = None,
    interrupt: float | None = None,
    debug: bool = False,
) -> Outcome:
    """Run `planner` with some arguments in a folder.

    Parameters
    ----------
    arguments
        Those behind the name of the program.
    folder
        Where it runs.
    streams
        Another folder, for what it writes to its streams.
    encoding
        Of the streams.
    environment
        Variables that are set.
    interrupt
        Processor time after which it is interrupted, as by Ctrl-C. [s]
    debug
        Whether defects show where they are.
    """
    before, start = snapshot(folder), time.monotonic()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            _enter(folder, streams, encoding, debug)
            os.environ.update(environment or {})
            if interrupt is not None:
                _interrupt_after(interrupt)
            status = _call(arguments)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
    code = _wait(child, start + WALL_SECONDS)
    status = os.waitstatus_to_exitcode(code)
    texts = {name: (streams / name).read_bytes() for name in (_OUT, _ERR, _WHERE)}
    return Outcome(
        status=status,
        hung=status in (-signal.SIGXCPU, -signal.SIGKILL),
        out=texts[_OUT],
        err=texts[_ERR],
        where=texts[_WHERE].decode("utf-8", "replace"),
        before=before,
        after=snapshot(folder),
        seconds=time.monotonic() - start,
    )


def _interrupt_after(seconds: float) -> None:
    """Have this process interrupted once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _wait(child: int, deadline: float) -> int:
    pause = 0.001
    while True:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            return code
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(pause)
        pause = min(pause * 1.3, 0.02)


def _enter(folder: Path, streams: Path, encoding: str, debug: bool) -> None:
    """Limits, streams and surroundings of the child."""
    for limit, value in (
        (resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5)),
        (resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)),
        (resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE)),
        (resource.RLIMIT_CORE, (0, 0)),
    ):
        resource.setrlimit(limit, value)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, name in ((1, _OUT), (2, _ERR), (3, _WHERE)):
        handle = os.open(streams / name, flags, 0o600)
        if handle != number:
            os.dup2(handle, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.register(signal.SIGXCPU, file=3, all_threads=False, chain=True)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115
    sys.stdout = _stream(1, encoding, "strict")
    sys.stderr = _stream(2, encoding, "backslashreplace")
    os.chdir(folder)
    os.umask(0o022)
    os.environ.pop("PLANNER_DEBUG", None)
    if debug:
        os.environ["PLANNER_DEBUG"] = "1"
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
        ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def _stream(number: int, encoding: str, errors: str) -> io.TextIOWrapper:
    raw = open(number, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, line_buffering=True)


def _call(arguments: Sequence[str]) -> int:
    """The command, with the exit status that the interpreter would give it."""
    from planner.cli import main

    sys.argv = ["planner", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

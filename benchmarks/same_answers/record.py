"""Run the cases in a checkout, and keep what they print and write."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.same_answers.cases import CommandCase, cases

# Longest that a step of a case may take. [s]
PATIENCE = 300.0


def record(checkout: Path, out: Path, jobs: int, only: str = "") -> None:
    """Run the cases and keep their answers.

    Parameters
    ----------
    checkout
        A working tree with a virtual environment in `.venv`.
    out
        A new or empty folder.
    jobs
        Cases at a time.
    only
        Leave out the cases without this text.
    """
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"error: {python} does not exist; make the virtual environment first")
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"error: {out} must be new or empty; remove it or choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in cases() if only in case.text]
    start = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        seconds = list(pool.map(lambda case: _record_case(case, checkout, out), chosen))
    wall = time.perf_counter() - start
    facts = {"checkout": str(checkout), "jobs": jobs, "wall_s": wall, "cases": len(chosen)}
    (out / "record.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{len(chosen)} commands, {sum(seconds):.1f} s, in {wall:.1f} s of wall time: {out}")


def _record_case(case: CommandCase, checkout: Path, out: Path) -> float:
    """Run a case and keep its answers; the wall time of all steps. [s]"""
    kept = out / case.name
    kept.mkdir()
    outer = Path(tempfile.mkdtemp(prefix="same-answers-")).resolve()
    work = outer / "work"
    work.mkdir()
    try:
        for name, text in case.files.items():
            (work / name).write_text(text, encoding="utf-8")
        steps = []
        for number, step in enumerate(case.steps, start=1):
            steps.append(_run_command(step, checkout, work, kept / str(number)))
        _keep_files(work, kept / "files", case.files)
    finally:
        shutil.rmtree(outer, ignore_errors=True)
    facts = {"case": case.text, "work": str(work), "checkout": str(checkout), "steps": steps}
    (kept / "case.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return sum(float(step["seconds"]) for step in steps)


def _run_command(step: Sequence[str], checkout: Path, work: Path, kept: Path) -> dict[str, Any]:
    """Run a step and keep what it prints; its exit status, and its times. [s]"""
    settings = list(takewhile(lambda word: re.match(r"[A-Z]+=", word), step))
    words = list(step[len(settings) :])
    facts = {"command": shlex.join(step), "seconds": 0.0, "cpu_seconds": 0.0}
    if words[0] in ("cut", "replace"):
        return facts | {"status": _edit(work, *words)}
    arguments = ["-c", words[1]] if words[0] == "python" else ["-m", "planner", *words]
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    environment |= {"PYTHONPATH": str(checkout)}
    environment |= dict(setting.split("=", 1) for setting in settings)
    start = time.perf_counter()
    with open(f"{kept}.stdout", "wb") as output, open(f"{kept}.stderr", "wb") as errors:
        process = subprocess.Popen(
            [str(checkout / ".venv" / "bin" / "python"), *arguments],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
        alarm = threading.Timer(PATIENCE, os.kill, (process.pid, signal.SIGKILL))
        alarm.start()
        _, status, usage = os.wait4(process.pid, 0)
        alarm.cancel()
    facts |= {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }
    # negative where a signal ended it, -9 after `PATIENCE`
    process.returncode = os.waitstatus_to_exitcode(status)
    return facts | {"status": process.returncode}


def _edit(work: Path, how: str, name: str, *arguments: str) -> str:
    """Cut or replace a part of a text file of an earlier step; what came of it."""
    path = work / name
    if not path.exists():
        return "no such file"
    text = path.read_text(encoding="utf-8")
    edited = (
        text[: int(arguments[0])] if how == "cut" else text.replace(arguments[0], arguments[-1], 1)
    )
    path.write_text(edited, encoding="utf-8")
    return "edited" if edited != text else "nothing to edit"


def _keep_files(work: Path, kept: Path, given: dict[str, str]) -> None:
    """Copy every file that is not there as it was given; gzipped ones as what they hold."""
    for path in sorted(path for path in work.rglob("*") if path.is_file()):
        name, data = str(path.relative_to(work)), path.read_bytes()
        if name in given and data == given[name].encode():
            continue
        if path.suffix == ".gz":
            with contextlib.suppress(OSError, EOFError):
                name, data = f"{name}.unzipped", gzip.decompress(data)
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_bytes(data)


# --- compare

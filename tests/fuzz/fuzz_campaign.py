"""Many cases: run them, judge them, group what fails by cause and make it small."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import stat
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import good_configs
import good_files
import good_others
from forked_run import Outcome, run_forked
from fuzz_build import Plans, build
from fuzz_case import Case
from fuzz_oracle import Failure, frame, judge
from written_forms import Table

KNOWN = Path(__file__).with_name("known.toml")
_CHUNK = 20


@dataclass(frozen=True)
class Found:
    """A failure, and the case that shows it.

    Parameters
    ----------
    failure
        What went wrong.
    seed, number
        The case.
    skip
        Pieces of it that have nothing to do with the failure.
    command, changes
        The case in words.
    """

    failure: Failure
    seed: int
    number: int
    skip: tuple[int, ...]
    command: str
    changes: tuple[str, ...]


@dataclass
class Cause:
    """Failures that have one cause.

    Parameters
    ----------
    first
        One of them.
    numbers
        The cases.
    """

    first: Found
    numbers: list[int] = field(default_factory=list)


class Runner:
    """Runs cases, each in a folder of its own."""

    def __init__(self, plans: Plans) -> None:
        self.plans = plans

    def run(self, seed: int, number: int, skip: Collection[int] = ()) -> tuple[Case, list[Failure]]:
        """Run a case and judge it."""
        case = build(seed, number, self.plans, skip)
        with scratch() as base:
            outcome = _run_in(case, base, debug=False)
            failures = judge(case, outcome, base / "case")
        return case, [self._located(case, failure) for failure in failures]

    def _located(self, case: Case, failure: Failure) -> Failure:
        """A defect with the place in the source, which the command says when it is asked."""
        if not failure.cause.startswith("defect"):
            return failure
        with scratch() as base:
            text = _run_in(case, base, debug=True).err.decode("utf-8", "replace")
        place, line = frame(text)
        kind = failure.cause.split(":")[0]
        return Failure(f"{kind} in {place}", f"{line} {failure.detail}") if place else failure

    def minimised(self, seed: int, number: int, cause: str) -> Found:
        """The case with as few changes and options as still show a cause."""
        skip: set[int] = set()
        case, failures = self.run(seed, number)
        best = case, failures
        for piece in reversed(range(case.num_pieces if case.num_pieces > 1 else 0)):
            if cause.startswith(("hang", "out of memory")):
                break  # not cheap
            tried = self.run(seed, number, skip | {piece})
            if any(failure.cause == cause for failure in tried[1]):
                skip.add(piece)
                best = tried
        case, failures = best
        shown = [f for f in failures if f.cause == cause] or [Failure(cause, "not seen again")]
        return _found(case, shown[0], tuple(sorted(skip)))


def _found(case: Case, failure: Failure, skip: tuple[int, ...] = ()) -> Found:
    words = [word if len(word) < 60 else f"{word[:57]}..." for word in case.arguments()]
    return Found(
        failure,
        case.seed,
        case.number,
        skip,
        " ".join(word if word.isprintable() and word else ascii(word) for word in words),
        tuple(case.changes),
    )


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is removed at the end, whatever its permissions are."""
    base = Path(tempfile.mkdtemp(prefix="planner-fuzz-"))
    try:
        (base / "case").mkdir()
        (base / "streams").mkdir()
        yield base
    finally:
        for path in (base / "case").rglob("*"):
            if stat.S_ISDIR(path.lstat().st_mode):
                path.chmod(0o700)
        shutil.rmtree(base)


def _run_in(case: Case, base: Path, *, debug: bool) -> Outcome:
    case.write(base / "case")
    return run_forked(
        case.arguments(),
        base / "case",
        base / "streams",
        encoding=case.encoding,
        environment=case.environment,
        interrupt=case.interrupt,
        debug=debug,
    )


@cache
def prepare() -> Runner:
    """Import and compile all that commands need, once, and make good plan files."""
    from planner.cli.command import planner_command

    plans = {}
    before = Path.cwd()
    silent = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
    ):
        os.chdir(folder)
        try:
            for name, tree in (
                ("network.toml", Table(good_files.convolutional(), "toml")),
                ("cluster.toml", Table(good_files.cluster(), "toml")),
                ("mixed.toml", Table(good_others.mixed_cluster(), "toml")),
                ("problem.json", Table(good_files.problem(), "json")),
                ("config.json", Table(good_configs.llama(), "json")),
            ):
                Path(name).write_text(tree.text())
            Path("table.csv").write_text(good_files.TABLE)
            Path("network.onnx").write_bytes(good_others.onnx_bytes())
            for words in _WARM:
                with contextlib.suppress(SystemExit):
                    planner_command(words.split(), prog_name="planner")
            for model, name in _PLANS:
                plans[model] = json.loads(Path(name).read_text())
        finally:
            os.chdir(before)
    return Runner(plans)


_PLANS = (
    ("network.toml", "plan.json"),
    ("alexnet", "alexnet.json"),
    ("config.json", "staged.json"),
)
_WARM = (
    "optimize network.toml --gpus 4 --cluster cluster.toml --table table.csv -o plan.json "
    "--report a.html",
    "optimize alexnet --gpus 4 --cluster lassen -o alexnet.json --report a.md",
    "optimize config.json --gpus 4 --cluster cluster.toml --keep pp=2 -o staged.json",
    "simulate network.toml --gpus 4 --pp 2 --trace a.json --dump-strategy a.toml",
    "throughput network.toml --workers 1,2 --steps 20",
    *(f"solve problem.json --search {name}" for name in ("auto", "lagrangian", "elimination")),
    "optimize network.onnx --gpus 8 --cluster mixed.toml --for megatron",
    "export plan.json --to jax -o out",
    "clusters",
)


def run_cases(seed: int, numbers: Iterable[int]) -> list[Found]:
    """Run some cases in this process."""
    runner = prepare()
    found = []
    for number in numbers:
        case, failures = runner.run(seed, number)
        found += [_found(case, failure) for failure in failures]
    return found


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()


def _chunk(work: tuple[int, range]) -> list[Found]:
    return run_cases(*work)


def campaign(
    seed: int, numbers: range, jobs: int, tell: Callable[[int, float, int], None]
) -> dict[str, Cause]:
    """Run many cases and group the failures.

    Parameters
    ----------
    seed, numbers
        Which ones.
    jobs
        How many processes run them.
    tell
        Is told how many are done, in what time [s], and how many causes there are.
    """
    chunks = [numbers[at : at + _CHUNK] for at in range(0, len(numbers), _CHUNK)]
    causes: dict[str, Cause] = {}
    start, done = time.monotonic(), 0
    for chunk, found in zip(chunks, _results(seed, chunks, jobs), strict=True):
        for one in found:
            cause = causes.setdefault(one.failure.cause, Cause(one))
            cause.numbers.append(one.number)
        done += len(chunk)
        tell(done, time.monotonic() - start, len(causes))
    runner = prepare()
    for name, cause in causes.items():
        cause.first = runner.minimised(seed, cause.first.number, name)
    return causes


def _results(seed: int, chunks: list[range], jobs: int) -> Iterator[list[Found]]:
    work = [(seed, chunk) for chunk in chunks]
    if jobs == 1:
        yield from map(_chunk, work)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin) as pool:
        yield from pool.map(_chunk, work)


def known() -> list[tuple[re.Pattern[str], str]]:
    """Causes that are known, and why they are left."""
    rows = tomllib.loads(KNOWN.read_text(encoding="utf-8")).get("known", [])
    return [(re.compile(row["pattern"]), row["reason"]) for row in rows]


def unknown(causes: Iterable[str]) -> list[str]:
    """Those causes that no pattern of `known.toml` fits."""
    patterns = [pattern for pattern, _ in known()]
    return [cause for cause in causes if not any(p.search(cause) for p in patterns)]


def keep(found: Found, folder: Path) -> None:
    """Write the files of a case, and how it was run."""
    case = build(found.seed, found.number, prepare().plans, found.skip)
    place = folder / f"{found.seed}-{found.number}"
    place.mkdir(parents=True, exist_ok=True)
    for file in case.files:
        (place / file.name).unlink(missing_ok=True)
    for file in case.files:
        if not file.instead:
            file.write(place)
    about = {"cause": found.failure.cause, "detail": found.failure.detail}
    lines = [*(f"{k}: {v}" for k, v in about.items()), f"changes: {found.changes}"]
    lines += [f"arguments: {case.arguments()!r}"]
    text = "\n".join(lines) + "\n"
    (place / "README").write_text(text, encoding="utf-8", errors="backslashreplace")

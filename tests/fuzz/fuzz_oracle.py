"""What must never happen, whatever the files and the command line are."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forked_run import Outcome
from fuzz_case import Case

STATUSES = (0, 2, 3, 4, 130)
LONGEST_LINE = 600
# C0 but for line ends and tabs, DEL, C1, and what turns the direction of writing
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NO_NUMBER = re.compile(r"(?<![\w.\-'\"])-?(nan|inf|infinity)(?![\w\-'\".])", re.IGNORECASE)
_WARNING = re.compile(r"^(/[^\s:]{1,300}):(\d+): (\w{1,40}Warning): (.*)", re.MULTILINE)
_BELOW_ZERO = re.compile(r"(?<![\w.\-'\"])-\d[\d.,]* ?([munp]?s|[KMGT]iB|bytes)\b")
_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')
_ROOT = Path(__file__).resolve().parents[2]
_OURS = ("planner", "costmodels", "search")


@dataclass(frozen=True)
class Failure:
    """Something that must not happen.

    Parameters
    ----------
    cause
        What is equal for all cases of one cause.
    detail
        More of this one.
    """

    cause: str
    detail: str


def judge(case: Case, outcome: Outcome, folder: Path) -> list[Failure]:
    """All that went wrong in a run.

    Parameters
    ----------
    case
        What was run.
    outcome
        What came of it.
    folder
        Where its files still are.
    """
    found = [
        *_end(case, outcome),
        *_errors(case, outcome),
        *_files(case, outcome, folder),
    ]
    return [*found, *_output(case, outcome)] if outcome.status == 0 else found


def frame(text: str) -> tuple[str, str]:
    """The innermost frame of our own packages in a traceback: file and function, and the line."""
    ours = []
    for path, line, function in _FRAME.findall(text):
        inside = Path(path).is_relative_to(_ROOT) and Path(path).relative_to(_ROOT)
        if inside and inside.parts[0] in _OURS:
            ours.append((f"{inside}:{function}", f"{inside}:{line}"))
    # faulthandler writes the innermost frame first, a traceback last
    return (ours[0 if "most recent call first" in text else -1]) if ours else ("", "")


def template(text: str) -> str:
    """A message without what is particular to a case."""
    text = re.sub(r"'[^']*'?|\"[^\"]*\"?", "_", text[:3000])
    text = CONTROL.sub("?", re.sub(r"-?\d[\d,.e+]*|\bnan\b|\binf\b", "N", text))
    return re.sub(r"\S{40,}", "_", text)[:90]


def _end(case: Case, outcome: Outcome) -> Iterator[Failure]:
    """Exit statuses, crashes and hangs."""
    error = outcome.err.decode("utf-8", "replace")
    if outcome.hung:
        place, line = frame(outcome.where)
        yield Failure(f"hang in {place or case.command}", f"{line}, {outcome.seconds:.0f} s")
    elif outcome.status < 0:
        yield Failure(f"killed by signal {-outcome.status}", error[-200:])
    elif "Traceback (most recent call last)" in error:
        yield Failure(f"traceback {template(error.strip().splitlines()[-1])}", error[-300:])
    elif "defect of the planner" in error:
        kind = re.search(r"\((\w+): ?(.*)", error, re.DOTALL)
        name, text = (kind[1], kind[2]) if kind else ("", error)
        yield Failure(f"defect {name}: {template(text)}", error[:300])
    elif "ran out of memory" in error:
        yield Failure(f"out of memory in {case.command} of {case.kind}", error[:200])
    elif outcome.status not in STATUSES and not (outcome.status == 1 and case.command == "solve"):
        yield Failure(f"exit status {outcome.status} of {case.command}", error[:200])
    elif outcome.status == 130 and case.interrupt is None:
        yield Failure(f"interrupted {case.command}", error[:200])
    elif case.refuse and outcome.status not in (1, 2, 130):
        yield Failure(f"not refused: {case.refuse}", f"exit status {outcome.status}")


def _errors(case: Case, outcome: Outcome) -> Iterator[Failure]:
    """What is written to stderr."""
    error = outcome.err.decode("utf-8", "replace")
    lines = error.split("\n")
    if error and not error.endswith("\n"):
        yield Failure(f"no line end on stderr: {template(error)}", error[-200:])
    warning = _WARNING.search(error)
    if warning:
        place = warning[1].removeprefix(f"{_ROOT}/")
        yield Failure(f"{warning[3]} in {place}", f"line {warning[2]}: {warning[4]}")
    elif outcome.status == 0 and error:
        yield Failure(f"stderr of a success: {template(error)}", error[:300])
    if outcome.status > 0 and "Traceback" not in error:
        if len(lines) != 2 and not warning:
            yield Failure(f"{len(lines) - 1} lines on stderr: {template(error)}", error[:300])
        if len(lines[0]) > LONGEST_LINE:
            yield Failure("long line on stderr", f"{len(lines[0]):,}: {lines[0][:200]}")
    yield from _controls("stderr", case, error)


def _controls(where: str, case: Case, text: str) -> Iterator[Failure]:
    hit = CONTROL.search(text)
    if hit:
        start = text.rfind("\n", 0, hit.start()) + 1
        line = text[start : hit.end() + 40].split("\n")[0]
        cause = "" if where == "stderr" else f" of {case.command}: {case.kind}"
        yield Failure(f"control character in {where}{cause}", ascii(line)[:300])


def _files(case: Case, outcome: Outcome, folder: Path) -> Iterator[Failure]:
    """What was written, changed or removed."""
    before, after = outcome.before, outcome.after
    inputs = {file.name for file in case.files} | set(case.links)
    # the figures of sizes are those where nothing fits, too, and a study says of each question
    # why it has no plan
    written = (0, 3, 4) if case.command in ("scale", "study") else (0,)
    # whole files, where an interrupt comes once they are written
    written += () if case.interrupt is None else (130,)
    is_table = outcome.status in written or b"no question of the study" in outcome.err
    allowed = {str(Path(path)) for path in case.outputs} if is_table else set()
    kept = set(case.kept)
    for name in sorted({*before, *after}):
        if before.get(name) == after.get(name) or name in kept:
            continue
        if name in before and name in inputs and name not in allowed:
            yield Failure(f"input changed by {case.command}", name[:80])
        elif "/.planner-" in f"/{name}":
            yield Failure(f"temporary file left by {case.command}", name)
        elif name not in allowed:
            yield Failure(
                f"written by {case.command} at exit status {outcome.status}: {Path(name).suffix}",
                f"{ascii(name)[:80]}, {outcome.err[:200]!r}",
            )
        elif name not in after:
            yield Failure(f"removed by {case.command}", name)
        elif (folder / name).is_file():
            yield from _written(case, folder / name)


def _written(case: Case, path: Path) -> Iterator[Failure]:
    """The content of a file that was written."""
    data, ending = path.read_bytes(), path.suffix.lower()
    try:
        if ending == ".gz":
            data, ending = gzip.decompress(data), ".json"
        text = data.decode("utf-8")
        if ending == ".json":
            json.loads(text, parse_constant=_refuse_constant)
        elif ending == ".toml":
            tomllib.loads(text)
        elif ending == ".py":
            compile(text, path.name, "exec")
    except (ValueError, OSError, RecursionError, SyntaxError) as error:
        said = str(error)
        yield Failure(f"broken {ending} of {case.command}: {template(said)}", said[:200])
        return
    if ending in (".py", ".txt", ".yaml", ".csv"):
        yield from _controls(ending, case, text)
    if ending in (".md", ".html"):
        yield from _controls(ending, case, text)
        at = text.lower().find("<script")
        if at >= 0:
            yield Failure(f"<script in {ending} of {case.command}", ascii(text[at - 60 : at + 30]))
        yield from _no_numbers(ending, case, text)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _no_numbers(where: str, case: Case, text: str) -> Iterator[Failure]:
    """Amounts that cannot be."""
    for what, pattern in (("no number", _NO_NUMBER), ("less than nothing", _BELOW_ZERO)):
        hit = pattern.search(text)
        if hit:
            around = text[max(hit.start() - 60, 0) : hit.end() + 20]
            yield Failure(f"{what} in {where} of {case.command}: {case.kind}", ascii(around))


def _output(case: Case, outcome: Outcome) -> Iterator[Failure]:
    """What is written to stdout where all went well."""
    text = outcome.out.decode(case.encoding, "surrogateescape")
    if any("\udc80" <= c <= "\udcff" for c in text):
        yield Failure(f"no {case.encoding} in stdout of {case.command}", ascii(text)[:200])
    yield from _controls("stdout", case, text)
    if "--json" in case.words and not case.command.startswith("-"):
        try:
            json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            yield Failure(f"broken JSON on stdout of {case.command}: {template(str(error))}", "")
    else:
        yield from _no_numbers("stdout", case, text)

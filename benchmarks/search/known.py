"""Which instances there are, how long each may take, and what others have reached on them.

`known.csv`, next to the instances, has the columns `instance`, `time_limit_s`, `best_contest_cost`,
`best_team`, `winner_team01_cost` and `xla_cost`; all but the first may be empty.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

COLUMNS = (
    "instance",
    "time_limit_s",
    "best_contest_cost",
    "best_team",
    "winner_team01_cost",
    "xla_cost",
)
SUFFIXES = (".json.gz", ".json")
KNOWN = "known.csv"
DEFAULT_LIMIT = 60.0
_CONTEST_NAME = re.compile(r"asplos-2025-iopddl-([A-Y])")


class BadInput(Exception):
    """One sentence for whoever called the benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What others have reached.

    Parameters
    ----------
    time_limit
        The contest's limit. [s]
    best
        The least cost of 20 teams.
    best_team
        Who reached it.
    winner
        The cost of the team that won the contest.
    xla
        The cost of the compiler that the contest's problems come from.
    """

    time_limit: float | None = None
    best: int | None = None
    best_team: str = ""
    winner: int | None = None
    xla: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A problem file to solve.

    Parameters
    ----------
    name
        What the tables call it.
    path
        The file.
    time_limit
        How long a solver may take. [s]
    assumed
        Whether nobody published a limit for it, so that one was assumed.
    known
        What others have reached.
    """

    name: str
    path: Path
    time_limit: float
    assumed: bool = False
    known: Known = Known()


def find_instances(
    paths: Iterable[str], *, time_limit: float | None, known: str | None
) -> list[Instance]:
    """The instances of files and folders.

    Parameters
    ----------
    paths
        Files, and folders of `*.json` and `*.json.gz`; one that is there plain and gzipped is taken
        once.
    time_limit
        Limit of each instance, None for that of the contest. [s]
    known
        The table of what is known; if None, the one next to each file, if any.
    """
    tables: dict[Path, dict[str, Known]] = {}
    found = []
    for path in paths:
        for file in _files(Path(path)):
            table = Path(known) if known is not None else file.parent / KNOWN
            if table not in tables:
                there = known is not None or table.is_file()
                tables[table] = read_known(table) if there else {}
            found.append(make_instance(file, tables[table], time_limit))
    return found


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadInput(
            f"{path} must be a problem file or a folder of them, but does not exist; get those of "
            "the contest from github.com/google/iopddl"
        )
    files = {_stem(f): f for f in sorted(path.iterdir()) if f.name.endswith(SUFFIXES)}
    if not files:
        raise BadInput(
            f"the folder {path} must hold *.json or *.json.gz files, but holds none; get those of "
            "the contest from github.com/google/iopddl"
        )
    return [files[stem] for stem in sorted(files)]


def _stem(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.name


def make_instance(
    path: Path, known: Mapping[str, Known], time_limit: float | None, name: str = ""
) -> Instance:
    """An instance by its file's name: A for `asplos-2025-iopddl-A.json.gz`.

    Parameters
    ----------
    path
        The file.
    known
        What others have reached, by instance.
    time_limit
        The limit, None for that of the contest. [s]
    name
        What to call it; left out, as its file says.
    """
    stem = name or _stem(path)
    contest = _CONTEST_NAME.fullmatch(stem)
    name = contest[1] if contest else stem
    row = known.get(name, Known())
    published = contest_limit(contest[1]) if contest else None
    limit = next((t for t in (time_limit, row.time_limit, published) if t is not None), None)
    return Instance(
        name=name,
        path=path,
        time_limit=DEFAULT_LIMIT if limit is None else limit,
        assumed=limit is None,
        known=row,
    )


def contest_limit(letter: str) -> float:
    """A minute for A to E, two for F to J, ... (github.com/asplos-contest/2025, IOPDDL.md). [s]"""
    return 60.0 * (1 + (ord(letter) - ord("A")) // 5)


def read_known(path: Path) -> dict[str, Known]:
    """The table of what is known, by instance."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        raise BadInput(f"{path} must be readable, but is not ({reason}); check the path") from None
    reader = csv.DictReader(text.splitlines())
    missing = [c for c in COLUMNS if c not in (reader.fieldnames or [])]
    if missing:
        raise BadInput(f"{path} must have the columns {', '.join(COLUMNS)}, but lacks {missing[0]}")
    known: dict[str, Known] = {}
    for line, cells in enumerate(reader, start=2):
        name = (cells["instance"] or "").strip()
        try:
            if not name or name in known:
                raise ValueError("the instance is empty or was there before")
            known[name] = _known(cells)
        except ValueError as error:
            raise BadInput(f"line {line} of {path} cannot be used ({error}); correct it") from None
    return known


def _known(cells: Mapping[str, str | None]) -> Known:
    def whole(column: str) -> int | None:
        text = (cells[column] or "").strip()
        return int(text) if text else None

    limit = (cells["time_limit_s"] or "").strip()
    return Known(
        time_limit=time_limit_of(limit) if limit else None,
        best=whole("best_contest_cost"),
        best_team=(cells["best_team"] or "").strip(),
        winner=whole("winner_team01_cost"),
        xla=whole("xla_cost"),
    )


def time_limit_of(text: str) -> float:
    """A time limit from its text. [s]"""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ValueError(f"a time limit must be above 0 s, but is {text!r}")
    return value

"""Say what differs between two records."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

# What may differ between equal answers, in standard output and error: the only such place. Paths of
# the temporary folder and of the checkout are masked as well, everywhere (see `_masked`).
MASKS = (
    # `planner solve` says how long it took
    (rb"(?m)^(  Time +)[\d.]+ s to read, [\d.]+ s to solve$", rb"\1<seconds>"),
)
# Most lines, and characters of a line, that are shown of a case that differs.
SHOWN_LINES, SHOWN_WIDTH = 40, 200
# Lines that are looked at for a difference, from the first that differs on.
COMPARED_LINES = 400

# wall time and processor time [s]
Times = tuple[float, float]


def compare(before: Path, after: Path) -> int:
    """Print what differs between two records; the number of cases that differ.

    Parameters
    ----------
    before, after
        Folders that `record` made.
    """
    places = (path.parent for out in (before, after) for path in out.glob("*/case.json"))
    names = sorted({path.name for path in places})
    if not names:
        raise SystemExit(f"error: neither {before} nor {after} holds a record")
    different = 0
    times: list[tuple[Times, Times, str]] = []
    for name in names:
        if not all((out / name / "case.json").exists() for out in (before, after)):
            where = before if (before / name).exists() else after
            print(f"=== {_facts(where / name)['case']}\n    only in {where}\n")
            different += 1
            continue
        facts = _facts(after / name)
        times.append((_seconds(_facts(before / name)), _seconds(facts), facts["case"]))
        lines = list(_differing_lines(before / name, after / name))
        if lines:
            different += 1
            print(f"=== {_clip(facts['case'])}")
            print("\n".join(map(_clip, lines[:SHOWN_LINES])))
            hidden = len(lines) - SHOWN_LINES
            print(f"    and {hidden} lines more\n" if hidden > 0 else "")
    _print_times(times)
    equal = len(names) - different
    print(f"{len(names)} commands, {equal} equal byte for byte, {different} differ")
    return different


def _differing_lines(before: Path, after: Path) -> Iterator[str]:
    """Every difference between the answers to a case, as lines."""
    for first, second in zip(_facts(before)["steps"], _facts(after)["steps"], strict=True):
        if first["status"] != second["status"]:
            yield f"--- exit status {first['status']}, now {second['status']}: {first['command']}"
    old, new = _answers(before), _answers(after)
    for name in sorted(old.keys() | new.keys()):
        if name not in new or name not in old:
            yield f"--- {name}: {'no longer' if name in old else 'newly'} written"
        elif old[name] != new[name]:
            yield from _unified(name, old[name], new[name])


def _answers(kept: Path) -> dict[str, bytes]:
    """What a case printed and wrote, masked."""
    facts = _facts(kept)
    return {
        str(path.relative_to(kept)): _masked(path.read_bytes(), facts, path.parent == kept)
        for path in sorted(kept.rglob("*"))
        if path.is_file() and path != kept / "case.json"
    }


def _masked(data: bytes, facts: dict[str, Any], printed: bool) -> bytes:
    """An answer without what may differ: see `MASKS`."""
    for place in ("work", "checkout"):
        data = data.replace(str(facts[place]).encode(), f"<{place}>".encode())
    for pattern, text in MASKS if printed else ():
        data = re.sub(pattern, text, data)
    return data


def _unified(name: str, old: bytes, new: bytes) -> Iterator[str]:
    """A unified diff from the first line that differs on, of files of any size."""
    sides = [data.decode("utf-8", "backslashreplace").splitlines() for data in (old, new)]
    # a long common beginning, and all that follows much later, would cost difflib minutes
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False)))
    begin = max(same - 3, 0)
    first, second = ([*side[begin : begin + COMPARED_LINES]] for side in sides)
    if first == second:
        yield f"--- {name}: line ends differ"
    if first and second and len(max(*first, *second, key=len)) > SHOWN_WIDTH:
        # long lines are cut to what surrounds the first difference
        line, other = ("".join(side[same : same + 1]) for side in sides)
        at = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(line, other, strict=False))
        )
        first, second = ([text[max(at - 60, 0) :][:SHOWN_WIDTH]] for text in (line, other))
    yield f"--- {name}: from line {begin + 1} on" if begin else f"--- {name}"
    yield from list(difflib.unified_diff(first, second, lineterm="", n=2))[2:]


def _clip(line: str) -> str:
    return line if len(line) <= SHOWN_WIDTH else f"{line[:SHOWN_WIDTH]} ..."


def _facts(kept: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((kept / "case.json").read_text(encoding="utf-8"))
    return facts


def _seconds(facts: dict[str, Any]) -> Times:
    keys = ("seconds", "cpu_seconds")
    wall, processor = (sum(float(step[key]) for step in facts["steps"]) for key in keys)
    return wall, processor


def _print_times(times: Sequence[tuple[Times, Times, str]]) -> None:
    """The largest slowdowns by processor time, which other load disturbs less, and totals."""

    def row(old: Times, new: Times, text: str) -> str:
        walls, processors = zip(old, new, strict=True)
        change = processors[1] / processors[0] - 1.0 if processors[0] else 0.0
        numbers = "".join(f"{value:8.2f}" for value in (*processors, *walls))
        return f"  {change:+7.0%}{numbers}  {text[:110]}"

    print("largest slowdowns\n   change  CPU s:  now  wall s:  now")
    for old, new, text in sorted(times, key=lambda row: row[0][1] - row[1][1])[:10]:
        print(row(old, new, text))
    sides = list(zip(*((old, new) for old, new, _ in times), strict=True))
    old, new = ((sum(t[0] for t in side), sum(t[1] for t in side)) for side in sides)
    print(row(old, new, "all commands"))

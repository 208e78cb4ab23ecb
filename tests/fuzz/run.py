"""Fuzz the command by hand: `python tests/fuzz/run.py --cases 13000 --seed 1`.

Files of all kinds and command lines are made, changed as a hostile and careless world changes
them, and run. Prints what fails, by cause, made small where that is cheap; the exit status is 1
where there is any that `known.toml` does not name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# the root first: folders of tests are called as the packages are
_HERE = Path(__file__).resolve()
sys.path[:0] = [str(_HERE.parents[2]), str(_HERE.parent), str(_HERE.parents[1])]

from fuzz_campaign import Cause, campaign, keep, known, unknown  # noqa: E402


def main() -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="for the files of failures")
    parser.add_argument("--all", action="store_true", help="show known causes, too")
    given = parser.parse_args()
    causes = campaign(given.seed, range(given.first, given.first + given.cases), given.jobs, _tell)
    sys.stderr.write("\n")
    new = unknown(causes)
    for cause in sorted(causes if given.all else new):
        _show(cause, causes[cause])
        if given.keep is not None:
            keep(causes[cause].first, given.keep)
    print(f"{given.cases} cases, {len(causes)} causes of failures, {len(new)} of them not known")
    seen = {pattern.pattern for pattern, _ in known() if any(pattern.search(c) for c in causes)}
    for pattern, reason in known():
        if pattern.pattern not in seen:
            print(f"known but not seen: {pattern.pattern} ({reason})")
    return 1 if new else 0


def _tell(done: int, seconds: float, causes: int) -> None:
    sys.stderr.write(f"\r{done} cases, {done / seconds:.1f} a second, {causes} causes ")
    sys.stderr.flush()


def _show(name: str, cause: Cause) -> None:
    found = cause.first
    rows = (
        ("detail", ascii(found.failure.detail)[1:-1]),
        ("command", f"planner {found.command}"),
        ("changes", "; ".join(found.changes)),
        ("case", f"{found.number} (of {len(cause.numbers)})"),
    )
    print(name)
    for label, text in rows:
        print(f"  {label:8} {text.encode('ascii', 'backslashreplace').decode()[:240]}")


if __name__ == "__main__":
    sys.exit(main())

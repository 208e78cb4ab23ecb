"""Proof that a refactoring changes nothing that a user can see: record answers, then compare them.

    python -m benchmarks.same_answers record --checkout FOLDER --out FOLDER [--jobs 2]
    python -m benchmarks.same_answers compare BEFORE AFTER

`record` runs some 400 commands with the code and the virtual environment (`.venv`) of a checkout,
each in an empty temporary folder, and keeps exit status, standard output and error, every file that
is written, wall and processor time. `compare` prints what differs between two such records and
exits with status 1 if anything does. Needs nothing but the standard library.

Assumes: answers depend on the command and on files in its folder alone; `MASKS` and the folders'
own paths are the only exceptions. Times are comparable where both records were made on one machine,
with as many jobs, and not directly after an installation: the first run compiles loops.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.same_answers.compare import compare
from benchmarks.same_answers.record import record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(
        description="Show that a change of the code changes no answer of the planner."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run all commands and keep the answers")
    recording.add_argument("--checkout", type=Path, required=True, help="code, with a .venv")
    recording.add_argument("--out", type=Path, required=True, help="new folder for the answers")
    recording.add_argument("--jobs", type=int, default=2, help="commands at a time (2)")
    recording.add_argument("--only", default="", metavar="TEXT", help="commands with this text")
    comparing = commands.add_parser("compare", help="print every difference of two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "record":
        record(given.checkout.resolve(), given.out.resolve(), given.jobs, given.only)
        return 0
    return 1 if compare(given.before, given.after) else 0


if __name__ == "__main__":
    sys.exit(main())

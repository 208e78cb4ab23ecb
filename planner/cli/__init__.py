"""The command line. Everything that takes long to import is imported inside the commands."""

from __future__ import annotations

import sys
import time


def main() -> None:
    """Run the command `planner`."""
    # a time limit counts from here: loading everything takes as long as some plans do
    started = time.monotonic()
    try:
        from planner.cli.command import planner_command
    except KeyboardInterrupt:
        sys.exit(130)
    planner_command(prog_name="planner", obj=started)

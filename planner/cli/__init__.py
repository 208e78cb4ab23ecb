"""The command line. Everything that takes long to import is imported inside the commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command `planner`."""
    try:
        from planner.cli.command import planner_command
    except KeyboardInterrupt:
        sys.exit(130)
    planner_command(prog_name="planner")

"""The command line. Everything that takes long to import is imported inside the commands."""

from __future__ import annotations

import gc
import sys
import time

# Objects made since the last look for cycles before the next one: most commands end with fewer.
COLLECT_AFTER = 500_000


def main() -> None:
    """Run the command `planner`."""
    # a time limit counts from here: loading everything takes as long as some plans do
    started = time.monotonic()
    gc.set_threshold(COLLECT_AFTER)
    try:
        from planner.cli.command import planner_command
    except KeyboardInterrupt:
        sys.exit(130)
    planner_command(prog_name="planner", obj=started)

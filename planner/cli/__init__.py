"""The command line. Everything that takes long to import is imported inside the commands."""

from __future__ import annotations

import gc
import os
import sys
import time

# Objects made since the last look for cycles before the next one: most commands end with fewer.
COLLECT_AFTER = 500_000


def main() -> None:
    """Run the command `planner`."""
    # a time limit counts from here: loading everything takes as long as some plans do
    started = time.monotonic()
    gc.set_threshold(COLLECT_AFTER)
    # no large matrices are multiplied: threads for that take longer to start than they are worth
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from planner.cli.command import planner_command
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        planner_command(prog_name="planner", obj=started)
    finally:
        # the process ends, and looking once more for cycles among all there is takes a while
        gc.freeze()

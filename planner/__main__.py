"""`python -m planner`."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line; also the entry point `planner`."""
    try:
        from planner.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main(prog_name="planner")


if __name__ == "__main__":
    run()

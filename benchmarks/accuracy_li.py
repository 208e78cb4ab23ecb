"""`python -m benchmarks.accuracy_li`: see `benchmarks.published.li`."""

from __future__ import annotations

from benchmarks.published.li import main

if __name__ == "__main__":
    main()

"""`python -m benchmarks.accuracy_training`: see `benchmarks.accuracy.training`."""

from __future__ import annotations

from benchmarks.accuracy.training import main

if __name__ == "__main__":
    main()

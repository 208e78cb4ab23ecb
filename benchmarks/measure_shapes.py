"""`python -m benchmarks.measure_shapes`: see `benchmarks.device.shapes`."""

from __future__ import annotations

from benchmarks.device.shapes import main

if __name__ == "__main__":
    main()

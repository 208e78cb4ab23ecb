"""`python -m benchmarks.measure_device`: see `benchmarks.device.measure`."""

from __future__ import annotations

from benchmarks.device.measure import main

if __name__ == "__main__":
    main()

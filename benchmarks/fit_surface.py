"""`python -m benchmarks.fit_surface`: see `benchmarks.fitting.__main__`."""

from __future__ import annotations

from benchmarks.fitting.__main__ import main

if __name__ == "__main__":
    main()

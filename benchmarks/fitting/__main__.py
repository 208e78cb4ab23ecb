"""Fits the efficiency surfaces of `costmodels/compute/data` to published kernel timings.

    python -m benchmarks.fit_surface [--data ../shared/data] [--out FOLDER] [NAME...]

Writes one TOML file per device family, with the sources and the error on held-out rows of every
surface, and prints those errors as a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fitting.akin import AKIN
from benchmarks.fitting.files import family_toml, print_errors
from benchmarks.fitting.fitter import Fitter


def main() -> None:
    """Fit the families named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("costmodels/compute/data"))
    arguments = parser.parse_args()
    fitter = Fitter(arguments.data)
    for name, fit_family in fitter.families().items():
        wanted = not arguments.families or name in arguments.families
        if not wanted and name not in ("v100", "p100", "a100"):
            continue
        entries = fit_family()
        print_errors(name, entries)
        if wanted:
            (arguments.out / f"{name}.toml").write_text(
                family_toml(name, AKIN.get(name, ()), entries), encoding="utf-8"
            )


if __name__ == "__main__":
    main()

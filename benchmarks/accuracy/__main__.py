"""How well steps are predicted that others have measured and published.

    python -m benchmarks.accuracy --published [--data PATH] [--json]
    python -m benchmarks.accuracy --measured PATH_TO_cnn_training.csv [--json]

The first compares with the tables of Dryden et al. 2019 and Kahira et al. 2021, whose figures lie
in `benchmarks/published/data` with their sources, and with the raw runs of the latter where a file
of them is given or found; with the throughputs of Li et al. 2022; and simulations with what Duan et
al. 2023 (Proteus), Aach et al. 2023 (JUWELS Booster) and Kahira et al. state of orders and limits.
The second predicts every row of a collection of training throughputs whose configuration is
complete. Computation is multiplied by one factor for each model and machine, taken from runs on
single devices; all else is prediction.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from benchmarks.accuracy.cells import Comparison
from benchmarks.accuracy.claims import Findings, show_findings
from benchmarks.accuracy.report import show
from benchmarks.published import congestion, dryden, juwels, kahira, kahira_raw, li, proteus

DEFAULT_DATA = Path("../shared/data")


def published(data: Path | None) -> list[Comparison]:
    """All published tables, and the raw runs where they are."""
    tables = [dryden.compare(name) for name in dryden.TABLES]
    tables.append(dryden.layers())
    tables.append(dryden.when_space_pays(tables[2].calibration["resnet50"]))
    tables += kahira.compare_published()
    tables += li.comparisons()
    runs = kahira_raw.find_raw_runs(data) if data is not None else None
    if runs is not None:
        tables.append(kahira_raw.compare_raw_runs(runs))
    return tables


def stated() -> list[Findings]:
    """What papers state without printing times, and what is simulated."""
    return [
        *proteus.findings(),
        *juwels.findings(),
        *congestion.findings(),
    ]


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--published", action="store_true", help="compare with published tables")
    parser.add_argument("--measured", type=Path, metavar="CSV", help="training throughputs")
    parser.add_argument("--data", type=Path, help="folder or file with abci_raw_runs.csv")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if not arguments.published and arguments.measured is None:
        parser.error("give --published, --measured CSV or both")
    data = arguments.data
    if data is None and DEFAULT_DATA.exists():
        data = DEFAULT_DATA
    if data is not None and not data.exists():
        parser.error(f"--data must exist, got {data}")
    console = Console(width=None if Console().is_terminal else 150)
    result: dict[str, object] = {}
    if arguments.published:
        tables, findings = published(data), stated()
        result["published"] = [table.as_dict() for table in tables]
        result["stated"] = [found.as_dict() for found in findings]
        if not arguments.json:
            for table in tables:
                show(table, console)
            for found in findings:
                show_findings(found, console)
    if arguments.measured is not None:
        from benchmarks.accuracy import measured as accuracy_measured

        report = accuracy_measured.compare(arguments.measured)
        result["measured"] = report.as_dict()
        if not arguments.json:
            accuracy_measured.show(report, console)
    if arguments.json:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

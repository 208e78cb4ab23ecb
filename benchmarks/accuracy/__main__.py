"""How well steps are predicted that others have measured and published.

    python -m benchmarks.accuracy --published [--data PATH] [--json]
    python -m benchmarks.accuracy --measured FILE [...] [--step-model MODEL] [--rows] [--json]
    python -m benchmarks.accuracy --measured FILE [...] --regret [--json]
    python -m benchmarks.accuracy_training FOLDER

The first compares with the tables of Dryden et al. 2019 and Kahira et al. 2021, whose figures lie
in `benchmarks/published/data` with their sources, and with the raw runs of the latter where a file
of them is given or found; with the throughputs of Li et al. 2022; and simulations with what Duan et
al. 2023 (Proteus), Aach et al. 2023 (JUWELS Booster) and Kahira et al. state of orders and limits.

The second predicts every row of files (or folders) of training throughputs whose configuration is
complete, by the timeline of the search unless another step model is named. Files of transformer
training are told by their columns; their rows are always simulated, and nothing calibrates them:
`--json` alone then prints a list of what each source sums up to. With `--regret` it also says, for
every workload of theirs with several measured strategies, what choosing among those by their
predictions costs in measured time. The last is the second with other defaults: rows on several
GPUs, by simulation, each of them printed. Computation is multiplied by one factor for each model
and machine, taken from runs on single devices; all else is prediction.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.accuracy.cells import Comparison
from benchmarks.accuracy.claims import Findings, show_findings
from benchmarks.accuracy.llm.compare import compare_llm_files
from benchmarks.accuracy.llm.regret import (
    doubted_regrets,
    print_doubted_regret,
    print_regret,
    regret_facts,
    workload_regrets,
)
from benchmarks.accuracy.llm.report import print_llm_tables, tables_as_list
from benchmarks.accuracy.llm.rows import is_llm_file
from benchmarks.accuracy.measured import (
    FILE,
    RowComparison,
    RowQuestion,
    compare_files,
    measured_files,
)
from benchmarks.accuracy.report import show_comparison
from benchmarks.accuracy.row_report import print_tables, tables_as_dict
from benchmarks.accuracy.steps import ALL_STEP_MODELS
from benchmarks.published import (
    congestion,
    dryden,
    juwels,
    kahira,
    kahira_raw,
    li,
    proteus,
    volumes,
)
from benchmarks.published.kahira_raw import FILE as RAW_FILE
from costmodels.errors import InputError

DEFAULT_DATA = Path("../shared/data")
# Tables whose figures lie in this project.
PUBLISHED_TABLES: dict[str, Callable[[], list[Comparison]]] = {
    "Dryden I": lambda: [dryden.compare_dryden("Table I")],
    "Dryden II": lambda: [dryden.compare_dryden("Table II")],
    "Dryden III": dryden.table_three,
    "Dryden VI": lambda: [dryden.single_layers()],
    "Kahira": kahira.compare_published,
    "volumes": lambda: [volumes.compare_volumes()],
    "JUWELS": lambda: [juwels.run_time_efficiencies()],
    "Li, transfers": lambda: [li.transfers(), li.ring_transfers()],
    "Li, saturation": lambda: [li.saturation_points()],
    "Li, cap of a flow": lambda: [li.flow_cap()],
}
# What papers state without printing times.
STATEMENTS: dict[str, Callable[[], list[Findings]]] = {
    "Proteus": lambda: proteus.proteus_findings(),
    "JUWELS": lambda: juwels.juwels_findings(),
    "congestion": lambda: congestion.congestion_findings(),
}


def published(data: Path | None) -> list[Comparison]:
    """All published tables, and the raw runs where they are."""
    tables = [table for compare in PUBLISHED_TABLES.values() for table in compare()]
    runs = kahira_raw.find_raw_runs(data) if data is not None else None
    if runs is not None:
        tables.append(kahira_raw.compare_raw_runs(runs))
    return tables


def stated() -> list[Findings]:
    """What papers state without printing times, and what is simulated."""
    return [found for find in STATEMENTS.values() for found in find()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--published", action="store_true", help="compare with published tables")
    parser.add_argument(
        "--measured", type=Path, nargs="+", metavar="FILE", help="training throughputs"
    )
    parser.add_argument("--data", type=Path, help="folder or file with abci_raw_runs.csv")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--step-model", choices=ALL_STEP_MODELS, default="simulate", help="for measured rows"
    )
    parser.add_argument("--several", action="store_true", help="only rows on several GPUs")
    _add_row_options(parser)
    parser.add_argument(
        "--regret", action="store_true", help="what choosing among measured strategies costs"
    )
    parser.add_argument("--rows", action="store_true", help="print every measured row")
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="N rows of transformers a source"
    )
    return parser


def _add_row_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--ablation", action="store_true", help="also by the other step models")
    parser.add_argument("--source", default="", help="only publications with this in their name")
    parser.add_argument("--gamma", type=float, help="overlap factor for every machine")


def _files_given(given: Sequence[Path], parser: argparse.ArgumentParser) -> list[Path]:
    files = []
    for path in given:
        found = measured_files(path)
        if not found:
            parser.error(f"{path} must be a file, or a folder with {FILE} or {RAW_FILE}")
        files += found
    return files


def _asked(arguments: argparse.Namespace, model: str, *, several: bool) -> RowQuestion:
    others = tuple(m for m in ALL_STEP_MODELS if m != model) if arguments.ablation else ()
    return RowQuestion(
        model=model,
        others=others,
        alone=not several,
        uncalibrated=not several,
        source=arguments.source,
        overlap_factor=arguments.gamma,
    )


def _print_rows(
    found: RowComparison, arguments: argparse.Namespace, model: str, every_row: bool
) -> None:
    print_tables(
        found.tables,
        found.left_out,
        Console(width=200),
        markdown=arguments.markdown,
        every_row=every_row,
        model=model,
    )


def training_main() -> None:
    """Read the arguments of `python -m benchmarks.accuracy_training` and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help=f"folder with {FILE} and {RAW_FILE}, or a file")
    _add_row_options(parser)
    arguments = parser.parse_args()
    question = _asked(arguments, "simulate", several=True)
    found = compare_files(_files_given([arguments.folder], parser), question)
    _print_rows(found, arguments, "simulate", True)


def main() -> None:
    """Read the arguments and print."""
    parser = _parser()
    arguments = parser.parse_args()
    if not arguments.published and arguments.measured is None:
        parser.error("give --published, --measured FILE or both")
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
                show_comparison(table, console)
            for found in findings:
                show_findings(found, console)
    if arguments.measured is not None:
        try:
            _add_measured(_files_given(arguments.measured, parser), arguments, result)
        except InputError as error:
            parser.error(str(error))
    if arguments.json:
        alone = result["transformers"] if list(result) == ["transformers"] else result
        print(json.dumps(alone, indent=1))


def _add_measured(
    paths: Sequence[Path], arguments: argparse.Namespace, result: dict[str, object]
) -> None:
    """Compare measured rows, and print them unless JSON is asked for.

    Parameters
    ----------
    paths
        Files of rows, of transformers or not.
    arguments
        Those of the command.
    result
        What is added to.
    """
    transformers = [path for path in paths if is_llm_file(path)]
    others = [path for path in paths if path not in transformers]
    if others:
        question = _asked(arguments, arguments.step_model, several=arguments.several)
        rows = compare_files(others, question)
        result["measured"] = tables_as_dict(rows.tables, rows.left_out)
        if not arguments.json:
            _print_rows(rows, arguments, arguments.step_model, arguments.rows)
    if transformers:
        tables = compare_llm_files(transformers, source=arguments.source, sample=arguments.sample)
        result["transformers"] = tables_as_list(tables)
        if not arguments.json:
            print_llm_tables(
                tables,
                Console(width=200),
                markdown=arguments.markdown,
                every_row=arguments.rows,
            )
        if arguments.regret:
            cells = [cell for table in tables for cell in table.cells]
            regrets, doubted = workload_regrets(cells), doubted_regrets(cells)
            not_counted = {doubt: regret_facts(rows) for doubt, rows in doubted.items()}
            result["regret"] = {**regret_facts(regrets), "not_counted": not_counted}
            if not arguments.json:
                print_regret(regrets, Console(width=200), markdown=arguments.markdown)
                print_doubted_regret(doubted)


if __name__ == "__main__":
    main()

"""How good the search's answers are on problems of the contest, and how soon.

    python -m benchmarks.search FOLDER_OR_FILE... --time-limit contest
    python -m benchmarks.search --generate transformer:2000:0 --solver auto --solver cp-sat
    python -m benchmarks.search --smoke

Get the problems of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism ("IOPDDL") from
github.com/google/iopddl, folder `benchmarks`. Every *.json and *.json.gz of a folder is solved,
each run in a new process, which reads the file and then solves it within the limit. A table
`known.csv` next to the files says what others have reached (see `benchmarks/search/known.py`);
instances that it lacks are shown without comparison. Shown are the time until the first solution,
and until one within 1 % and 0.1 % of the best known: that of the contest's 20 teams, or of this
benchmark if it is better. Cost and peak of every solution are recomputed from the file in whole
numbers; if that disagrees, the exit status is 1. An interrupt prints what there is (exit status
130).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from benchmarks.search import instances as search_instances
from benchmarks.search import tables as search_tables
from benchmarks.search.check import disagreements, read_raw
from benchmarks.search.known import BadInput, Instance, find_instances, make_instance, time_limit_of
from benchmarks.search.runs import RunInterrupted, SolverRun, run

SMOKE, SMOKE_LIMIT, SMOKE_SOLVERS = "leafy:2000:0", 5.0, ("auto", "cp-sat")
# wide enough for all columns, also where the output is no terminal
WIDTH = 230
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong."""

    def error(self, message: str) -> NoReturn:
        """End the program with exit status 1."""
        sys.exit(f"{message}; see python -m benchmarks.search --help")


def parser() -> Parser:
    """The options."""
    made = Parser(
        prog="python -m benchmarks.search",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = made.add_argument
    add("paths", nargs="*", metavar="FOLDER_OR_FILE", help="problem files, or folders of them")
    add(
        "--time-limit",
        metavar="SECONDS",
        help="of each run; 'contest' (the default): the contest's",
    )
    add("--whole-process", action="store_true", help="starting and reading count towards the limit")
    add("--solver", action="append", metavar="NAME", help="auto by default; may be repeated")
    add("--seed", default="0", metavar="N", help="seed of the first run, 0 by default")
    add(
        "--repeat", default="1", metavar="N", help="runs of each instance, with seeds N, N + 1, ..."
    )
    add("--known", metavar="CSV", help="what others have reached; known.csv next to the files")
    add(
        "--generate",
        action="append",
        default=[],
        metavar="FAMILY:SIZE:SEED",
        help=f"a problem made on the fly, of {', '.join(search_instances.FAMILIES)}",
    )
    add("--smoke", action="store_true", help=f"{SMOKE} within {SMOKE_LIMIT:g} s by two solvers")
    add("--markdown", action="store_true", help="print the table as Markdown")
    add("--json", metavar="FILE", help="write all figures and every improvement of every run")
    return made


def instances_of(options: argparse.Namespace, folder: Path) -> list[Instance]:
    """What to solve; generated problems are written to the folder."""
    made = [*options.generate, *([SMOKE] if options.smoke else [])]
    if not options.paths and not made:
        raise BadInput(
            "give problem files, folders of them, --generate or --smoke, but none is given"
        )
    limit = None
    try:
        if options.time_limit not in (None, "contest"):
            limit = time_limit_of(options.time_limit)
        for what in made:
            search_instances.parse(what)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if options.smoke and options.time_limit is None:
        limit = SMOKE_LIMIT
    found = find_instances(options.paths, time_limit=limit, known=options.known)
    for what in made:
        path = folder / f"{what.replace(':', '-')}.json"
        path.write_text(json.dumps(search_instances.generate(what)), encoding="utf-8")
        found.append(make_instance(path, {}, limit, name=what))
    return found


def solvers_of(options: argparse.Namespace) -> list[str]:
    """Which solvers to run."""
    from search import SOLVERS

    chosen = options.solver or (SMOKE_SOLVERS if options.smoke else ("auto",))
    for name in chosen:
        if name not in SOLVERS:
            raise BadInput(f"a solver must be one of {', '.join(SOLVERS)}, but is {name!r}")
    return list(dict.fromkeys(chosen))


def seeds_of(options: argparse.Namespace) -> range:
    """Which seeds to run."""
    numbers = {}
    for name, least, most in (("seed", 0, 10**9), ("repeat", 1, 1000)):
        text = getattr(options, name)
        if not text.isdecimal() or not least <= int(text) <= most:
            raise BadInput(f"--{name} must be a whole number of {least} to {most}, but is {text!r}")
        numbers[name] = int(text)
    return range(numbers["seed"], numbers["seed"] + numbers["repeat"])


def checked(runs: Sequence[SolverRun]) -> list[SolverRun]:
    """Runs of one instance, with what is wrong with their answers."""
    if not any(one.choices for one in runs):
        return list(runs)
    raw = read_raw(runs[0].instance.path)
    results = []
    for one in runs:
        wrong = []
        if one.choices:
            wrong = disagreements(
                raw,
                one.choices,
                cost=one.cost,
                bound=one.bound,
                peak=one.peak_usage,
                trace=one.trace,
                feasible=one.instance.known.best,
            )
        results.append(replace(one, failure="; ".join([one.failure, *wrong]).lstrip("; ")))
    return results


def run_all(
    instances: Sequence[Instance], solvers: Sequence[str], seeds: range, whole_process: bool
) -> tuple[list[SolverRun], bool]:
    """All runs, and whether an interrupt ended them early.

    Parameters
    ----------
    instances, solvers, seeds
        What to run, each with each.
    whole_process
        Whether starting and reading count towards the time limit.
    """
    done: list[SolverRun] = []
    for instance in instances:
        here: list[SolverRun] = []
        interrupted = False
        for solver, seed in ((solver, seed) for solver in solvers for seed in seeds):
            print(
                f"{instance.name}: {solver}, seed {seed}, {instance.time_limit:g} s",
                file=sys.stderr,
            )
            try:
                here.append(run(instance, solver, seed, whole_process=whole_process))
            except RunInterrupted as stop:
                here.append(stop.partial)
                interrupted = True
            except KeyboardInterrupt:
                interrupted = True
            if interrupted:
                break
        done += checked(here)
        if interrupted:
            return done, True
    return done, False


@contextmanager
def ending_on_termination() -> Iterator[None]:
    """Let a termination end the running process, too."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def report_runs(runs: Sequence[SolverRun], options: argparse.Namespace) -> None:
    """Print the table and write the file."""
    if options.markdown:
        print(search_tables.markdown(runs))
    else:
        terminal = Console()
        search_tables.show_runs(runs, terminal if terminal.is_terminal else Console(width=WIDTH))
    if options.json:
        from planner.output import write_text

        content = {"machine": search_tables.machine_line(), "runs": [r.as_dict() for r in runs]}
        write_text(options.json, json.dumps(content) + "\n")


def benchmark(options: argparse.Namespace) -> int:
    """Run, print, and say with which status to exit."""
    from costmodels.errors import InputError

    try:
        solvers, seeds = solvers_of(options), seeds_of(options)
        if options.json:
            from planner.output import check_writable

            check_writable(options.json)
        with tempfile.TemporaryDirectory(prefix="planner-") as folder, ending_on_termination():
            instances = instances_of(options, Path(folder))
            runs, interrupted = run_all(instances, solvers, seeds, options.whole_process)
        if runs and any(one.status != "failed" for one in runs):
            report_runs(runs, options)
    except (BadInput, InputError) as error:
        sys.exit(str(error))
    failures = [f"{one.instance.name}, {one.solver}: {one.failure}" for one in runs if one.failure]
    for failure in dict.fromkeys(failures):  # each once, however many runs failed alike
        print(failure, file=sys.stderr)
    if interrupted:
        return INTERRUPTED
    unsolved = options.smoke and not all(one.choices for one in runs)
    if unsolved:
        print("every solver must find a solution of the smoke, but one did not", file=sys.stderr)
    return 1 if unsolved or failures else 0


def main() -> None:
    """Read the arguments and run."""
    sys.exit(benchmark(parser().parse_args()))


if __name__ == "__main__":
    main()

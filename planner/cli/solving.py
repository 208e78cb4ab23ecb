"""`planner solve`: solve a problem file of the contest by the search behind the planner."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from costmodels.errors import plain
from costmodels.units import format_items
from planner.cli.completion import complete, complete_solver
from planner.cli.failures import BAD_PROBLEM, INFEASIBLE, UNSOLVED, Failure
from planner.cli.options import WholeNumber
from planner.cli.screen import progress, show, write, write_output
from planner.cli.showing import (
    STDOUT,
    Shown,
    check_figures_output,
    output_option,
    showing_options,
)
from planner.request.inputs.searching import SEED, SOLVER, TIME_LIMIT

if TYPE_CHECKING:
    from rich.console import Console

    from search.files.contest import ContestFile
    from search.problem import Assignment, Problem


class Solved(Struct, frozen=True, kw_only=True):
    """An answer to a problem file.

    Parameters
    ----------
    file
        The problem and its name.
    answer
        What was found.
    reading, solving
        How long that took. [s]
    """

    file: ContestFile
    answer: Assignment
    reading: float
    solving: float


@click.command(
    epilog="Exit status: 0 solved, 1 the problem file cannot be used, 2 an option cannot be used, "
    "3 proven to have no solution, 4 none found within the time limit."
)
@click.argument("problem", shell_complete=complete(None, (".json", ".gz")))
@click.option(
    "--time-limit",
    type=float,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop then with the best solution so far; reading the file does not count.",
)
@click.option(
    "--seed",
    type=WholeNumber(),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the solver.",
)
@click.option(
    "--search",
    "--solver",
    "solver",
    default="auto",
    show_default=True,
    metavar="NAME",
    shell_complete=complete_solver,
    help="auto, elimination, lagrangian, cp-sat, shortest-path, longest-path or exhaustive.",
)
@output_option("the solution as a JSON list")
@showing_options("as_json", "quiet")
def solve_command(
    problem: str, time_limit: float, seed: int, solver: str, output: str | None, shown: Shown
) -> None:
    """Solve a problem file.

    PROBLEM is a file in the form of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism,
    plain or gzipped, such as 'planner optimize --dump-problem' writes.
    """
    SEED.check(seed)
    TIME_LIMIT.check(time_limit)
    SOLVER.check(solver)
    shown.check(output)
    check_figures_output(output, [problem])
    solved = _read_and_solve(problem, time_limit, seed, solver, quiet=shown.quiet)
    _require_choices(solved, time_limit)
    if output is not None:
        from search.files.contest_output import solution_text

        write_output(output, solution_text(solved.answer.choices))
        if output == STDOUT:
            return
    if shown.as_json:
        write(json.dumps(_solved_facts(solved), indent=1))
        return
    if shown.quiet:
        write(solved_line(solved))
        return
    show(lambda console: show_solved(solved, console))
    if output is not None:
        write(f"\nsolution written to {output}")


def _read_and_solve(path: str, time_limit: float, seed: int, solver: str, *, quiet: bool) -> Solved:
    import search
    from search.files.contest import read_problem

    start = time.perf_counter()
    try:
        with progress(f"reading {path}", quiet=quiet):
            file = read_problem(path)
    except search.ProblemError as error:
        raise Failure(BAD_PROBLEM, str(error)) from None
    read = time.perf_counter()
    with progress(f"solving {path}", quiet=quiet, hint=" (Ctrl-C stops)") as tell:
        answer = search.solve(
            file.problem,
            solver=solver,
            time_limit=time_limit,
            seed=seed,
            watch=lambda cost, bound: tell(_so_far(cost, bound)),
        )
    return Solved(
        file=file,
        answer=answer,
        reading=read - start,
        solving=time.perf_counter() - read,
    )


def _so_far(cost: float, bound: float) -> str:
    """What is known while the search goes on."""
    if math.isinf(cost):
        return f"at least {_with_thousands(bound)}" if math.isfinite(bound) else "nothing known yet"
    gap = f", gap {(cost - bound) / abs(cost):.2%}" if cost and math.isfinite(bound) else ""
    return f"{_with_thousands(cost)}{gap}"


def _require_choices(solved: Solved, time_limit: float) -> None:
    """End the command where there is nothing to show."""
    from planner.notes import words
    from search import Status

    answer = solved.answer
    if answer.choices:
        return
    if answer.stopped_by == "interrupt":
        raise KeyboardInterrupt
    if answer.status is Status.INFEASIBLE:
        notes = [words(note).rstrip(".") for note in answer.notes] or [
            "Nothing is allowed and fits"
        ]
        hints = ["raise the usage limit"] if answer.shortage else []
        message = "; ".join([*notes, *hints])
        raise Failure(INFEASIBLE, f"{message[0].lower()}{message[1:]}")
    raise Failure(
        UNSOLVED,
        f"no solution was found within {time_limit:g} s, nor proven that there is none; raise "
        "--time-limit or choose another --search",
    )


def solved_line(solved: Solved) -> str:
    """The answer in one line."""
    from planner.report import figures

    answer = solved.answer
    parts = [
        plain(solved.file.name) or "unnamed problem",
        "proven optimal" if answer.status == "optimal" else str(answer.status),
        f"cost {_with_thousands(answer.cost)}",
        f"gap {figures.percent(answer.gap)}" if math.isfinite(answer.gap) else "no bound",
    ]
    if answer.stopped_by:
        parts.append(f"stopped early by {answer.stopped_by}")
    return ", ".join(parts)


def _solved_facts(solved: Solved) -> dict[str, object]:
    """The figures that a script reads."""
    from planner.notes import words

    problem, answer = solved.file.problem, solved.answer
    return {
        "name": plain(solved.file.name),
        "nodes": problem.num_nodes,
        "candidates": sum(problem.sizes),
        "edges": len(problem.edges),
        "status": str(answer.status),
        "cost": answer.cost,
        "lower_bound": answer.lower_bound if math.isfinite(answer.lower_bound) else None,
        "gap": answer.gap if math.isfinite(answer.gap) else None,
        "peak_usage_bytes": answer.peak_usage,
        "usage_limit_bytes": problem.usage_limit,
        "solver": answer.solver,
        "stopped_by": answer.stopped_by,
        "reading_s": solved.reading,
        "solving_s": solved.solving,
        "notes": [words(note) for note in answer.notes],
        "choices": [int(choice) for choice in answer.choices],
    }


def show_solved(solved: Solved, console: Console) -> None:
    """Write the answer as a plain table."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from planner.notes import words
    from planner.report import figures

    problem, answer = solved.file.problem, solved.answer
    console.print(Text(plain(solved.file.name) or "unnamed problem", style="bold"))
    console.print(Padding(Text(_size_of(problem)), (0, 0, 0, 2)))
    if answer.stopped_by:
        warning = f"stopped early by {answer.stopped_by}: the best solution so far"
        console.print(Padding(Text(warning, style="bold yellow"), (0, 0, 0, 2)))
    console.print()
    proven = answer.status == "optimal"
    bounded = math.isfinite(answer.lower_bound)
    gap = figures.percent(answer.gap) if math.isfinite(answer.gap) else "unknown"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text, style in (
        ("Status", "proven optimal" if proven else str(answer.status), ""),
        ("Cost", _with_thousands(answer.cost), "bold green"),
        ("Lower bound", _with_thousands(answer.lower_bound) if bounded else "none was proven", ""),
        ("Gap", gap, ""),
        ("Peak memory", _peak_of(problem, answer), ""),
        ("Path", answer.solver, ""),
        ("Time", f"{solved.reading:.2f} s to read, {solved.solving:.2f} s to solve", ""),
    ):
        grid.add_row(f"  {label}", Text(text, style=style))
    console.print(grid)
    if answer.notes:
        console.print()
        console.print(Text("Notes", style="bold"))
        notes = Table.grid(padding=(0, 1))
        for note in answer.notes:
            notes.add_row("  -", Text(words(note), overflow="fold"))
        console.print(notes)


def _size_of(problem: Problem) -> str:
    nodes = format_items(problem.num_nodes, "node")
    candidates = format_items(sum(problem.sizes), "candidate")
    return f"{nodes} with {candidates}, {format_items(len(problem.edges), 'edge')}"


def _peak_of(problem: Problem, answer: Assignment) -> str:
    from planner.report import figures

    peak, limit = answer.peak_usage, problem.usage_limit
    if limit is None:
        return f"{_with_thousands(peak)} bytes, without a limit"
    share = f" ({figures.percent(peak / limit)})" if limit else ""
    return f"{_with_thousands(peak)} of {_with_thousands(limit)} bytes{share}"


def _with_thousands(value: float) -> str:
    """A number with its thousands apart; costs of a file are whole, bounds need not be."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"

"""The planner's own search problems as files of the contest, for any solver to try.

Assumes: a file holds whole numbers, so costs are counted in the finest power of ten of a second in
which their sums stay exact; the name of the problem says which.
"""

from __future__ import annotations

import os

from planner.output import write_bytes
from search.files.contest_output import finest_unit, problem_bytes
from search.problem import Problem


def write_problem(path: str | os.PathLike[str], problem: Problem, what: str) -> None:
    """Write a problem with costs in seconds, gzipped where the path ends in .gz.

    Parameters
    ----------
    path
        Where to.
    problem
        The problem.
    what
        What it is about, for its name.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    unit = finest_unit(problem)
    data = problem_bytes(
        problem,
        name=f"{what}, costs in {unit:g} s",
        unit=unit,
        compressed=os.fspath(path).lower().endswith(".gz"),
    )
    write_bytes(path, data)

"""Reports of a plan: on the terminal, as a page, as Markdown."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from costmodels.errors import InputError, printable
from planner.output import write_text
from planner.plan import Plan

# The module of each kind of report by the suffix of its files: its `report_text` turns a plan into
# text. A new kind is a module of this folder and a row here.
KINDS = {".html": "html", ".htm": "html", ".md": "markdown"}


def report_kind(path: str | os.PathLike[str]) -> str:
    """The module of the kind of report that the suffix of a path stands for.

    Raises
    ------
    InputError
        When it stands for none.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in KINDS:
        known = tuple(KINDS)
        raise InputError(
            f"a report must end in {', '.join(known[:-1])} or {known[-1]} but the path is "
            f"'{os.fspath(path)}'; rename it"
        )
    return KINDS[suffix]


def write_report(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the report of a plan, of the kind that the suffix of the path says.

    Raises
    ------
    InputError
        When its suffix is of no kind of report, or it cannot be written to.
    """
    module = import_module(f"planner.report.{report_kind(path)}")
    write_text(path, printable(module.report_text(plan)))

"""Reports of a plan: on the terminal, as a page, as Markdown."""

from __future__ import annotations

import os
from pathlib import Path

from costmodels.errors import InputError, printable
from planner.output import check_writable, write_text
from planner.plan import Plan

SUFFIXES = (".html", ".htm", ".md")


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path that `write_report` could not write.

    Raises
    ------
    InputError
        When its suffix is of no kind of report, or it cannot be written to.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"a report must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} but the path is "
            f"'{os.fspath(path)}'; rename it"
        )
    check_writable(path)


def write_report(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the report of a plan, as a page or as Markdown by the suffix of the path."""
    check_report_path(path)
    if Path(path).suffix.lower() == ".md":
        from planner.report.markdown import markdown_report

        write_text(path, printable(markdown_report(plan)))
    else:
        from planner.report.html import html_report

        write_text(path, printable(html_report(plan)))

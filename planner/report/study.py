"""A study: on the terminal, as figures, as a table for spreadsheets, as a page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

import planner
from costmodels.errors import plain
from planner.plan import Plan
from planner.report import figures
from planner.report.console import show_list, show_sentence
from planner.report.html import page
from planner.report.sentences import gap_figure, how
from planner.study.run import Study, StudyRow

_FIGURES = (
    "step_time_s",
    "throughput_samples_per_s",
    "mfu",
    "peak_memory_bytes",
    "gap",
)


def show_study(study: Study, console: Console) -> None:
    """Write a study as a table, a row for each question, and what there is to say of some.

    Parameters
    ----------
    study
        The study.
    console
        Where to.
    """
    console.print(Text(study_title(study), style="bold"))
    if fixed := _common_facts(study):
        show_sentence(console, f"all with {fixed}")
    console.print()
    # a line each, however long: what is cut into columns that fit nobody can read
    for line in _lines(study):
        console.print(Text(line), soft_wrap=True)
    if remarks := _study_remarks(study):
        console.print()
        console.print(Text("Remarks", style="bold"))
        show_list(console, remarks)


def _lines(study: Study) -> list[str]:
    """The table; its last column is not filled up."""
    names = study.sweep.varied
    table = [["", *names, "step time", "throughput", "MFU", "memory", "gap", "how"]]
    for number, row in enumerate(study.rows, 1):
        table.append([str(number), *_given(row, names), *_cells(row)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    return [
        "  ".join(
            [
                cell.ljust(width) if 0 < place <= len(names) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(cells, widths, strict=False))
            ]
            + cells[-1:]
        )
        for cells in table
    ]


def study_title(study: Study) -> str:
    """The name of a study, and how far it is."""
    total = len(study.rows)
    asked = f"{total:,} question{'s' if total > 1 else ''}"
    done = "" if not study.unanswered else f", {total - study.unanswered:,} answered so far"
    return f"study {study.sweep.name}: {asked}{done}"


def _common_facts(study: Study) -> str:
    """Inputs that are the same for all questions, with their values."""
    varied, first = study.sweep.varied, study.rows[0].question.values
    return ", ".join(f"{name} {_text(first[name])}" for name in first if name not in varied)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return plain(f"{value:g}" if isinstance(value, float) else str(value))


def _given(row: StudyRow, names: Sequence[str]) -> list[str]:
    return [_text(row.question.values.get(name)) for name in names]


def _status_of(row: StudyRow) -> str:
    return "not answered yet" if row.answer is None else row.answer.status


def _plan(row: StudyRow) -> Plan | None:
    return None if row.answer is None else row.answer.plan


def _cells(row: StudyRow) -> list[str]:
    plan = _plan(row)
    if plan is None:
        return [*["-"] * 5, _status_of(row)]
    return [
        figures.seconds(plan.step_time_s),
        figures.count(plan.throughput),
        "-" if plan.mfu is None else figures.percent(plan.mfu),
        figures.size(plan.peak_memory),
        gap_figure(plan),
        how(plan),
    ]


def _study_remarks(study: Study) -> list[str]:
    """Why questions have no plan, and whose search was cut short; equal remarks once."""
    found: dict[str, list[int]] = {}
    for number, row in enumerate(study.rows, 1):
        plan = _plan(row)
        if plan is not None and plan.search.stopped_by:
            remark = f"the search was stopped early by the {plan.search.stopped_by}"
        elif plan is None and row.answer is not None:
            remark = f"{row.answer.status}, {row.answer.message}"
        else:
            continue
        found.setdefault(remark, []).append(number)
    return [f"{', '.join(map(str, numbers))}: {remark}" for remark, numbers in found.items()]


def study_facts(study: Study) -> dict[str, object]:
    """The figures that a script reads, with every plan in full."""
    rows = []
    for number, row in enumerate(study.rows, 1):
        facts = {"number": number, "inputs": dict(row.question.values), **_figures_of(row)}
        plan = _plan(row)
        if plan is not None:
            facts["plan"] = json.loads(plan.to_json())
        rows.append(facts)
    return {
        "study": study.sweep.name,
        "planner": planner.__version__,
        "unanswered": study.unanswered,
        "questions": rows,
    }


def _figures_of(row: StudyRow) -> dict[str, object]:
    plan = _plan(row)
    message = "" if row.answer is None else row.answer.message
    if plan is None:
        return {"status": _status_of(row), "message": message}
    values = (plan.step_time_s, plan.throughput, plan.mfu, plan.peak_memory, plan.search.gap)
    chosen = {
        "cluster": plan.cluster,
        "global_batch_size": plan.global_batch_size,
        "precision": plan.training.precision,
        "optimizer": plan.training.optimizer,
    }
    return {
        "status": _status_of(row),
        "message": message,
        **dict(zip(_FIGURES, values, strict=True)),
        "stopped_by": plan.search.stopped_by,
        "how": how(plan),
        "asked_with": chosen,
    }


def study_csv(study: Study) -> str:
    """The study as comma-separated values, a row for each question."""
    text = io.StringIO()
    inputs = study.sweep.inputs
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["number", *inputs, "status", *_FIGURES, "how", "message"])
    for number, row in enumerate(study.rows, 1):
        found = _figures_of(row)
        cells = [_csv_text(row.question.values.get(name)) for name in inputs]
        more = [_csv_text(found.get(name)) for name in ("status", *_FIGURES, "how", "message")]
        writer.writerow([number, *cells, *more])
    return text.getvalue()


def _csv_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(_csv_text, value))
    # figures in full, and not as people read them
    return repr(value) if isinstance(value, float) else plain(str(value))


def study_page(study: Study) -> str:
    """The study as a page for review."""
    rows: list[Mapping[str, object]] = [
        {
            "number": number,
            "given": _given(row, study.sweep.varied),
            "plan": _plan(row),
            "how": how(plan) if (plan := _plan(row)) is not None else _status_of(row),
        }
        for number, row in enumerate(study.rows, 1)
    ]
    facts = {
        "title": study_title(study),
        "common": _common_facts(study),
        "inputs": study.sweep.varied,
        "rows": rows,
        "remarks": _study_remarks(study),
        "version": planner.__version__,
    }
    return page("study.html", facts)

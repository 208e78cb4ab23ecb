"""Throughput of distributed SGD on the terminal: both models side by side, a row a cluster."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_bytes, format_seconds
from planner.distributed_sgd.result import SATURATION, Throughput, ThroughputRow, WorkerKind
from planner.report import figures
from planner.report.console import (
    plain_table,
    show_below,
    show_list,
    show_section,
    show_sentence,
)

_RULES = {"processor-sharing": "PS", "first-come": "FCFS", "hybrid": "hybrid", "": "ring"}
_MODES = {"sync": "Sync-SGD", "async": "Async-SGD"}


def show_throughput(found: Throughput, console: Console) -> None:
    """Write what was asked, the table, where it saturates, and what was assumed."""
    _show_question(found, console)
    console.print()
    show_below(console, _throughput_table(found))
    console.print()
    for text in _findings(found):
        show_sentence(console, text)
    for title, texts in (
        ("Approximations and limits", found.notes),
        ("Chosen, since not given", found.defaults),
    ):
        if texts:
            show_section(console, title)
            show_list(console, texts)


def _show_question(found: Throughput, console: Console) -> None:
    where = "a ring all-reduce"
    if found.architecture == "ps":
        number = found.servers
        where = "a parameter server" if number == 1 else f"{number} parameter servers"
    title = f"{found.model}, {_MODES[found.mode]} with {where}"
    console.print(Text(title, style="bold"))
    for kind in found.kinds:
        show_sentence(console, _worker(kind))
    cap = "" if found.flow_cap is None else f", {_gigabits(found.flow_cap)} a flow"
    links = (
        f"links of {_gigabits(found.bandwidth)}{cap}: "
        f"{format_bytes(found.model_bytes)} of parameters take {format_seconds(found.transfer_s)}; "
        f"transfers {'overlap' if found.overlap else 'do not overlap'} computation"
    )
    show_sentence(console, links)


def _gigabits(bandwidth: float) -> str:
    return f"{8.0 * bandwidth / 1e9:.4g} Gb/s"


def _worker(kind: WorkerKind) -> str:
    gpus = kind.device if kind.gpus == 1 else f"{kind.gpus} x {kind.device}"
    inside = "" if not kind.host_s else f", within the host {format_seconds(kind.host_s)}"
    return (
        f"worker {gpus}: {kind.samples:g} samples a step, forward "
        f"{format_seconds(kind.forward_s)}, backward {format_seconds(kind.backward_s)}{inside}, "
        f"update {figures.seconds(kind.update_s)}"
    )


def _throughput_table(found: Throughput) -> Table:
    both = found.rows[0].coarse is not None and found.rows[0].fine is not None
    table = plain_table()
    table.add_column("workers", justify="right", no_wrap=True)
    for name in ("coarse", "fine"):
        if getattr(found.rows[0], name) is not None:
            table.add_column(f"{name} /s", justify="right", no_wrap=True)
    if both:
        table.add_column("apart", justify="right", no_wrap=True)
    table.add_column("efficiency", justify="right", no_wrap=True)
    table.add_column("link use", justify="right", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("MVA", no_wrap=True)
    for row in found.rows:
        table.add_row(*_cells(row), style="yellow" if row.part else None)
    return table


def _cells(row: ThroughputRow) -> list[str]:
    cells = ["+".join(map(str, row.counts))]
    if row.coarse is not None:
        cells.append(figures.count(row.coarse.throughput))
    if row.fine is not None:
        spread = row.fine.deviation
        cells.append(
            figures.count(row.fine.throughput) + (f" ± {figures.count(spread)}" if spread else "")
        )
    if row.difference is not None:
        cells.append(f"{100.0 * row.difference:+.1f} %{' !' if row.part else '  '}")
    last, share = row.fine or row.coarse, row.fine_efficiency
    assert last is not None, "one of the models answers"
    cells.append(figures.percent(row.coarse_efficiency or 0.0 if share is None else share))
    cells.append(figures.percent(last.utilisation))
    rules = [_RULES[row.coarse.rule]] if row.coarse is not None else []
    rules += [_RULES[row.fine_rule]] if row.fine is not None else []
    cells.append("/".join(dict.fromkeys(rules)))
    exact = None if row.coarse is None else row.coarse.exact
    cells.append("-" if exact is None else "exact" if exact else "approximate")
    return cells


def _findings(found: Throughput) -> list[str]:
    last = "fine" if found.rows[0].fine is not None else "coarse"
    texts = [
        f"{_saturation(found).capitalize()} (from there on a worker adds less than "
        f"{SATURATION:.0%} of what it brings alone)."
    ]
    text = f"Efficiency and link use are those of the {last} model"
    if any(row.fine is not None and row.fine.deviation for row in found.rows):
        text += "; ± is what differs with how workers happen to begin"
    if any(row.fine is not None and row.coarse is not None for row in found.rows):
        text += "; rules that differ are coarse/fine"
    return [*texts, f"{text}."]


def throughput_line(found: Throughput) -> str:
    """The most workers in one line."""
    row = found.rows[-1]
    parts = [f"{found.model}, {_MODES[found.mode]}", f"{'+'.join(map(str, row.counts))} workers"]
    if row.coarse is not None:
        parts.append(f"coarse {figures.count(row.coarse.throughput)}/s")
    if row.fine is not None:
        parts.append(f"fine {figures.count(row.fine.throughput)}/s")
    return ", ".join([*parts, _saturation(found)])


def _saturation(found: Throughput) -> str:
    """Where each model says that throughput saturates."""
    parts = []
    for name, number in (("coarse", found.coarse_saturation), ("fine", found.fine_saturation)):
        if getattr(found.rows[0], name) is not None:
            where = f"at {number} workers" if number else "not within these numbers"
            parts.append(f"{name} {where}")
    return f"saturates: {', '.join(parts)}"

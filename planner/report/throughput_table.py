"""Throughput of distributed SGD on the terminal: both models side by side, a row a cluster."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from costmodels.units import format_bytes, format_seconds
from planner.distributed_sgd.result import SATURATION, Throughput, ThroughputRow, WorkerKind
from planner.report import figures

_RULES = {"processor-sharing": "PS", "first-come": "FCFS", "hybrid": "hybrid", "": "ring"}
_MODES = {"sync": "Sync-SGD", "async": "Async-SGD"}


def show_throughput(found: Throughput, console: Console) -> None:
    """Write what was asked, the table, where it saturates, and what was assumed."""
    _head(found, console)
    console.print()
    console.print(Padding(_table(found), (0, 0, 0, 2)))
    console.print()
    for text in _findings(found):
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    _list(console, "Approximations and limits", found.notes)
    _list(console, "Chosen, since not given", found.defaults)


def _head(found: Throughput, console: Console) -> None:
    where = "a ring all-reduce"
    if found.architecture == "ps":
        number = found.servers
        where = "a parameter server" if number == 1 else f"{number} parameter servers"
    title = f"{found.model}, {_MODES[found.mode]} with {where}"
    console.print(Text(title, style="bold"))
    for kind in found.kinds:
        console.print(Padding(Text(_worker(kind)), (0, 0, 0, 2)))
    cap = "" if found.flow_cap is None else f", {_gigabits(found.flow_cap)} a flow"
    links = (
        f"links of {_gigabits(found.bandwidth)}{cap}: "
        f"{format_bytes(found.model_bytes)} of parameters take {format_seconds(found.transfer_s)}; "
        f"transfers {'overlap' if found.overlap else 'do not overlap'} computation"
    )
    console.print(Padding(Text(links), (0, 0, 0, 2)))


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


def _table(found: Throughput) -> Table:
    both = found.rows[0].coarse is not None and found.rows[0].fine is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
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
    parts = []
    for name, number in (("coarse", found.coarse_saturation), ("fine", found.fine_saturation)):
        if getattr(found.rows[0], name) is not None:
            where = f"at {number} workers" if number else "not within these numbers"
            parts.append(f"{name} {where}")
    last = "fine" if found.rows[0].fine is not None else "coarse"
    texts = [
        f"Saturates: {', '.join(parts)} (from there on a worker adds less than {SATURATION:.0%} of "
        "what it brings alone)."
    ]
    text = f"Efficiency and link use are those of the {last} model"
    if any(row.fine is not None and row.fine.deviation for row in found.rows):
        text += "; ± is what differs with how workers happen to begin"
    if any(row.fine is not None and row.coarse is not None for row in found.rows):
        text += "; rules that differ are coarse/fine"
    return [*texts, f"{text}."]


def _list(console: Console, title: str, texts: tuple[str, ...]) -> None:
    if not texts:
        return
    console.print()
    console.print(Text(title, style="bold"))
    table = Table.grid(padding=(0, 1))
    for text in texts:
        table.add_row("  -", Text(text, overflow="fold"))
    console.print(table)

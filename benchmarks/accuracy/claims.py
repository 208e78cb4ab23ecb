"""What a paper says of an order or a limit, beside what is predicted, where it prints no times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A published statement.

    Parameters
    ----------
    about
        What it is about.
    published, predicted
        What it says, and what is predicted of it.
    holds
        Whether the prediction agrees; None where it cannot tell, such as between equal figures.
    """

    about: str
    published: str
    predicted: str
    holds: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Predictions, and the statements that they are held against.

    Parameters
    ----------
    name, source
        What it is and where the statements are published.
    rows
        Predictions, all with the same columns; times in milliseconds.
    claims
        The statements.
    notes
        What was assumed, and why some do not hold.
    """

    name: str
    source: str
    rows: tuple[Mapping[str, object], ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Statements that hold, that do not, and of which nothing can be told."""
        found = [claim.holds for claim in self.claims]
        return found.count(True), found.count(False), found.count(None)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "name": self.name,
            "source": self.source,
            "rows": [dict(row) for row in self.rows],
            "claims": [asdict(claim) for claim in self.claims],
            "notes": list(self.notes),
        }


def pairs_in_order(true: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Pairs in the same order in both, and all pairs that the first tells apart."""
    agreeing = total = 0
    for a, b in itertools.combinations(range(len(true)), 2):
        if true[a] != true[b]:
            total += 1
            agreeing += (true[a] - true[b]) * (predicted[a] - predicted[b]) > 0
    return agreeing, total


def ranks(times: Sequence[float]) -> list[int]:
    """Place of each, the fastest first."""
    order = sorted(range(len(times)), key=lambda place: times[place])
    return [order.index(place) + 1 for place in range(len(times))]


def _cell_text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table_of(rows: Sequence[Mapping[str, object]], title: str, caption: str = "") -> Table:
    """Rows as a table for people."""
    table = Table(title=title, caption=caption, title_justify="left")
    for key, value in rows[0].items():
        table.add_column(key, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(_cell_text(value) for value in row.values()))
    return table


def show_findings(findings: Findings, console: Console) -> None:
    """Print predictions, statements and notes."""
    console.print(table_of(findings.rows, findings.name, findings.source))
    words = {True: "holds", False: "DOES NOT HOLD", None: "cannot be told"}
    for claim in findings.claims:
        console.print(
            f"  {words[claim.holds]}: {claim.about}: published {claim.published}, "
            f"predicted {claim.predicted}"
        )
    if findings.claims:
        holding, failing, unknown = findings.counts
        console.print(f"{holding} of {len(findings.claims)} hold, {failing} do not, {unknown} open")
    for note in findings.notes:
        console.print(f"  note: {note}")
    console.print()

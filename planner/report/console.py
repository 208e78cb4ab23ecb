"""Headings, sentences and tables on the terminal, the same in everything that is shown there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# What stands below a heading is set in by that much. [columns]
INDENT = 2


def show_section(console: Console, title: str) -> None:
    """Begin a section."""
    console.print()
    console.print(Text(title, style="bold"))


def show_sentence(console: Console, text: str, style: str = "") -> None:
    """Write a sentence below a heading.

    Parameters
    ----------
    console
        Where to.
    text
        The sentence.
    style
        As of rich, such as "bold red".
    """
    show_below(console, Text(text, style=style))


def show_below(console: Console, what: Table | Text) -> None:
    """Write something below a heading."""
    console.print(Padding(what, (0, 0, 0, INDENT)))


def show_list(console: Console, texts: Iterable[str]) -> None:
    """Write sentences, each after a dash, and nothing where there are none."""
    table = Table.grid(padding=(0, 1))
    for text in texts:
        table.add_row("  -", Text(text, overflow="fold"))
    if table.row_count:
        console.print(table)


def show_facts(console: Console, facts: Iterable[tuple[str, str, str]]) -> None:
    """Write facts side by side with what they are.

    Parameters
    ----------
    console
        Where to.
    facts
        What each is, what is said of it, and its style.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text, style in facts:
        grid.add_row(f"  {label}", Text(text, style=style))
    console.print(grid)


def plain_table() -> Table:
    """A table without lines and without columns yet."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def terminal_table(headings: Sequence[str]) -> Table:
    """A plain table; headings that start with ">" are of numbers, with "~" of text that wraps."""
    table = plain_table()
    for heading in headings:
        table.add_column(
            heading.lstrip(">~"),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=not heading.startswith("~"),
            overflow="fold",
        )
    return table

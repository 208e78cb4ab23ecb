"""Rectangles and text as inline SVG: all that the charts of a report need.

Colours are classes that the style sheet of the page defines, for light and dark alike. Lengths are
in user units of the drawing, which are CSS pixels at full size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup
from msgspec import Struct

# Distinct fills of the style sheet; further ones are the same colours under a pattern.
NUM_COLOURS = 8
PATTERNS = ("", "stripes", "dots")
# About how wide a character is at the font size of labels.
CHARACTER = 6.4


class Part(Struct, frozen=True, kw_only=True):
    """A part of a stacked bar.

    Parameters
    ----------
    value
        Its length, in the unit of the bar.
    fill
        Class of its colour.
    tip
        What a reader sees when pointing at it.
    text
        Label within it, where there is room.
    ink
        Class of the label.
    """

    value: float
    fill: str
    tip: str
    text: str = ""
    ink: str = "inside"


def fill_of(index: int) -> str:
    """Classes of the colour of split number `index`."""
    pattern = PATTERNS[index // NUM_COLOURS % len(PATTERNS)]
    return f"s{index % NUM_COLOURS} {pattern}".rstrip()


def rectangle(x: float, y: float, width: float, height: float, fill: str, tip: str = "") -> Markup:
    """A rectangle with a tip; a second one on top carries the pattern, if it has any.

    Parameters
    ----------
    x, y
        Its upper left corner. [px]
    width, height
        Its size, taken as 0 where it is negative. [px]
    fill
        Classes of its colour and, after a space, of its pattern.
    tip
        What a reader sees when pointing at it.
    """
    colour, _, pattern = fill.partition(" ")
    box = Markup('x="{}" y="{}" width="{}" height="{}"').format(
        *(_coordinate(v) for v in (x, y, max(width, 0.0), max(height, 0.0)))
    )
    title = Markup("<title>{}</title>").format(tip) if tip else Markup()
    drawn = Markup('<rect {} class="{}"/>').format(box, colour)
    if pattern:
        drawn += Markup('<rect {} fill="url(#{})"/>').format(box, pattern)
    return Markup("<g>{}{}</g>").format(title, drawn) if tip or pattern else drawn


def text(x: float, y: float, label: str, kind: str = "", turn: float = 0.0) -> Markup:
    """A label.

    Parameters
    ----------
    x, y
        Where its first line begins, or whatever point its class says. [px]
    label
        The words.
    kind
        Its class.
    turn
        How far it is turned clockwise. [degrees]
    """
    turned = Markup(' transform="rotate({} {} {})"').format(
        _coordinate(turn), _coordinate(x), _coordinate(y)
    )
    return Markup('<text x="{}" y="{}"{}{}>{}</text>').format(
        _coordinate(x),
        _coordinate(y),
        Markup(' class="{}"').format(kind) if kind else Markup(),
        turned if turn else Markup(),
        label,
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> Markup:
    """A line.

    Parameters
    ----------
    x1, y1, x2, y2
        Its ends. [px]
    kind
        Its class.
    """
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(
        *(_coordinate(v) for v in (x1, y1, x2, y2)), kind
    )


def drawing(width: float, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    """A whole drawing.

    Parameters
    ----------
    width, height
        Its size. [px]
    label
        What a screen reader says instead.
    parts
        What is drawn, from the back to the front.
    """
    return Markup(
        '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">{3}</svg>'
    ).format(_coordinate(width), _coordinate(height), label, Markup("").join(parts))


def definitions() -> Markup:
    """The patterns of all drawings, once for a page."""
    shapes = {
        "stripes": '<path d="M-1 7 7 -1M3 11 11 3" class="mark"/>',
        "dots": '<circle cx="4" cy="4" r="1.7" class="mark"/>',
        "hatch": '<path d="M-1 7 7 -1M3 11 11 3" class="hatch"/>',
    }
    patterns = "".join(
        f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">{shape}</pattern>'
        for name, shape in shapes.items()
    )
    return Markup(
        f'<svg width="0" height="0" class="defs" aria-hidden="true"><defs>{patterns}</defs></svg>'
    )


def stacked(
    x: float, y: float, width: float, height: float, parts: Sequence[Part], whole: float
) -> Markup:
    """Parts side by side.

    Parameters
    ----------
    x, y
        The upper left corner of the bar. [px]
    width, height
        The size of the bar. [px]
    parts
        The parts, from left to right.
    whole
        What the whole bar stands for, in the unit of the parts.
    """
    drawn, at = Markup(), x
    for part in parts:
        extent = width * part.value / whole
        if extent <= 0.0:
            continue
        # a hair between neighbours, unless they are hairs themselves
        gap = 1.0 if extent > 3.0 else 0.0
        drawn += rectangle(at, y, extent - gap, height, part.fill, part.tip)
        if part.text and len(part.text) * CHARACTER + 6.0 <= extent:
            drawn += text(at + extent / 2.0, y + height / 2.0 + 4.0, part.text, part.ink)
        at += extent
    return drawn


def nice_ticks(most: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to no more than `most`, about as many as asked for."""
    if not most > 0.0:
        return [0.0]
    rough = most / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough * 0.999)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def cut(label: str, width: float) -> str:
    """A label as far as there is room for it."""
    room = int(width / CHARACTER)
    if len(label) <= room:
        return label
    return f"{label[: room - 1]}…" if room >= 7 else ""


def _coordinate(value: float) -> str:
    """A coordinate without needless digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"

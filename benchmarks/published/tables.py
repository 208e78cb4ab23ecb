"""Figures that papers print, as they lie in `data` with their sources."""

from __future__ import annotations

import csv
from pathlib import Path

PUBLISHED = Path(__file__).parent / "data"


def published_rows(name: str) -> list[dict[str, str]]:
    """Rows of a published table."""
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

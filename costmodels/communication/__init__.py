"""What moving data between devices costs: collectives and point-to-point messages."""

from __future__ import annotations

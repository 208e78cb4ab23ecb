"""Parts of questions that several tests ask."""

from __future__ import annotations

# Leaves the splits of one stage alone, as a value of `forbid`.
SPLITS_ALONE = "pipeline,accumulation,sharding,recompute"

"""Which rows a figure of a device was fitted on: a named half, told by a hash of the workload.

The half is that of workloads (model, devices, tokens of a step), so that rows of one job size all
lie in the same half: what is reported of the other half is of jobs that the fit never saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from benchmarks.accuracy.llm.measurement import Measurement
from benchmarks.accuracy.llm.words import entry_of


def fit_entry(of: Measurement) -> Mapping[str, Any] | None:
    """What was fitted on rows of the source of a row, None where nothing was."""
    return entry_of("fits", of.source.lower())


def in_fitted_half(of: Measurement) -> bool:
    """Whether a row lies in the half of its source that a figure was fitted on."""
    if fit_entry(of) is None:
        return False
    configuration = of.configuration
    sizes = configuration.sizes
    named = (sizes.name, sizes.sequence, configuration.gpu, configuration.gpus)
    text = "|".join(map(str, named))
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 0


def was_fitted_on(of: Measurement) -> bool:
    """Whether a figure was fitted on a row: bound by computation, by the rule of its source."""
    entry = fit_entry(of)
    if entry is None or not in_fitted_half(of) or of.doubt:
        return False
    timed = of.seconds is not None or of.flop_rate is not None
    configuration = of.configuration
    return (
        timed
        and configuration.tp <= int(entry["tp"])
        and configuration.pp <= int(entry["pp"])
        and configuration.gpus <= int(entry["gpus"])
    )

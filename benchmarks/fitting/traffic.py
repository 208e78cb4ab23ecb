"""Published timings of memory-bound layers, for fitting shares of the memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.fitting.data import ACESO, PIPEDREAM, Floats, TimingSource, column, held_out_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Rows of a memory-bound operation: input and output elements, and seconds of one pass."""

    source: TimingSource
    operation: str
    direction: str
    inputs: Floats
    outputs: Floats
    seconds: Floats
    held_out: NDArray[np.bool_] = field(repr=False)


def aceso_traffic(tables: Path) -> list[Traffic]:
    """Memory-bound operators of wide ResNets on one V100 in FP32."""
    frame = pd.read_csv(tables / "aceso_wresnet_ops_v100.csv")
    frame = frame[(frame.tp == 1) & (frame.strategy == "replicated") & frame.notes.isna()]
    kinds = {
        "bn": "batch_norm",
        "relu": "activation",
        "maxpool": "pool",
        "avgpool": "global_pool",
        "add": "add",
    }
    columns = {"forward": "fwd_us_incl_collective", "backward": "bwd_us_incl_collective"}
    result = []
    for kind, operation in kinds.items():
        part = frame[frame.kind == kind]
        part = part.groupby(["n", "c", "h", "w"], as_index=False)[list(columns.values())].median()
        inputs = column(part, "n") * column(part, "c") * column(part, "h") * column(part, "w")
        outputs = {"maxpool": inputs / 4, "avgpool": column(part, "n") * column(part, "c")}
        for direction, name in columns.items():
            # An addition hands its gradient on; nothing is to be measured there.
            if (kind, direction) == ("add", "backward"):
                continue
            result.append(
                Traffic(
                    source=ACESO,
                    operation=operation,
                    direction=direction,
                    inputs=inputs,
                    outputs=outputs.get(kind, inputs),
                    seconds=column(part, name) / 1e6,
                    held_out=held_out_rows(part[["n", "c", "h", "w"]]),
                )
            )
    return result


def pipedream_traffic(tables: Path) -> list[Traffic]:
    """Memory-bound layers of whole networks on a V100-class card in FP32."""
    frame = pd.read_csv(tables / "pipedream_layer_profiles.csv")
    before = frame.groupby("model").op.shift()
    # An activation after an in-place addition was timed together with it.
    frame = frame[(before != "Add") & (frame.input_bytes > 0)]
    kinds = {"BatchNorm2d": "batch_norm", "ReLU": "activation", "MaxPool2d": "pool"}
    result = []
    for kind, operation in kinds.items():
        part = frame[(frame.op == kind) & (frame.fwd_ms > 0) & (frame.bwd_total_ms > 0)]
        shape = ["input_bytes", "output_bytes"]
        part = part.groupby(shape, as_index=False)[["fwd_ms", "bwd_total_ms"]].median()
        for direction, name in {"forward": "fwd_ms", "backward": "bwd_total_ms"}.items():
            result.append(
                Traffic(
                    source=PIPEDREAM,
                    operation=operation,
                    direction=direction,
                    inputs=column(part, "input_bytes") / 4,
                    outputs=column(part, "output_bytes") / 4,
                    seconds=column(part, name) / 1e3,
                    held_out=held_out_rows(part[shape]),
                )
            )
    return result

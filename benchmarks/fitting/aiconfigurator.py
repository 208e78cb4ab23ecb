"""BF16 and FP8 timings of NVIDIA's aiconfigurator database, for fitting: products and attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fitting.data import (
    DEVICES,
    Timings,
    TimingSource,
    column,
    held_out_rows,
    product_work,
)
from costmodels.compute import Work
from costmodels.compute.roofline import BANDWIDTH_FRACTION

# Rows of a product from which on its error is told apart.
MANY = 1024
# Precisions as the tables call them; FP8 with one scale for a whole tensor.
CALLED = {"bf16": "bfloat16", "fp8": "fp8"}
HEAD_FEATURES = (64, 128, 256)


def _table(
    tables: Path, system: str, kind: str, dtypes: tuple[str, ...], called: str = "bfloat16"
) -> tuple[pd.DataFrame, TimingSource]:
    """Rows of one precision of one table of NVIDIA's aiconfigurator database, kernel time only."""
    (path,) = (tables / "aiconfigurator" / "data" / system / kind).glob("*/*/*.parquet")
    frame = pd.read_parquet(path)
    frame = frame[np.logical_and.reduce([frame[name] == called for name in dtypes])]
    source = TimingSource(
        name="aiconfigurator, github.com/ai-dynamo/aiconfigurator",
        licence="Apache-2.0",
        software=f"vLLM {frame.version.iloc[0]}",
    )
    return frame, source


def timed_products(
    tables: Path, system: str, *, apart: bool = False, precision: str = "bf16"
) -> list[Timings]:
    """Products of one precision.

    Parameters
    ----------
    tables, system
        Where the tables are, and of which machine.
    apart
        Whether those of many rows, as in training, are a source of their own.
    precision
        Key of `CALLED`.
    """
    frame, source = _table(tables, system, "gemm", ("gemm_dtype",), CALLED[precision])
    m, n, k = (column(frame, name) for name in "mnk")
    held_out = held_out_rows(frame[["m", "n", "k"]])
    seconds = column(frame, "latency") / 1e3
    # a layer in FP8 first casts its input: two bytes of a number read, one written
    cast = 3.0 * m * k * (precision == "fp8")
    beside = cast / (BANDWIDTH_FRACTION * DEVICES[system].memory_bandwidth)
    many = (m >= MANY) if apart else np.zeros(m.shape, dtype=bool)
    return [
        Timings(
            source=replace(source, name=source.name + what),
            device=DEVICES[system],
            precision=precision,
            parts={
                "forward": product_work("linear", np.ones(1), m[rows], n[rows], k[rows]),
            },
            seconds=seconds[rows],
            held_out=held_out[rows],
            beside=beside[rows],
        )
        for what, rows in (("", ~many), (f" ({MANY} rows and more)", many))
        if rows.any()
    ]


def timed_attention(tables: Path, system: str) -> list[Timings]:
    """Causal attention of whole sequences, forward.

    Left out are single tokens and heads of 512 features, which other kernels serve, heads of 192,
    whose values may be narrower, and windows that are hardly wider than a tile of scores.
    """
    frame, source = _table(tables, system, "attention", ("attn_dtype", "kv_cache_dtype"))
    if "window_size" not in frame:
        frame = frame.assign(window_size=0)
    narrow = (frame.window_size > 0) & (frame.window_size < MANY)
    frame = frame[(frame.isl > 1) & frame.head_dim.isin(HEAD_FEATURES) & ~narrow]
    shape = ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size"]
    samples, queries, heads, shared, features, window = (column(frame, name) for name in shape)
    hidden = np.where(window > 0, np.maximum(queries - window, 0.0), 0.0)
    work = Work(
        operation="attention",
        direction="forward",
        samples=samples * heads,
        channels=features,
        filters=features,
        in_extents=(queries,),
        out_extents=(queries,),
        groups=heads / shared,
        visible=(queries * (queries + 1) - hidden * (hidden + 1)) / (2.0 * queries**2),
    )
    # vLLM first writes keys and values to its cache: four bytes read, four written for a pair
    cached = 8.0 * samples * queries * shared * features
    return [
        Timings(
            source=source,
            device=DEVICES[system],
            precision="bf16",
            parts={"forward": work},
            seconds=column(frame, "latency") / 1e3,
            held_out=held_out_rows(frame[shape]),
            beside=cached / (BANDWIDTH_FRACTION * DEVICES[system].memory_bandwidth),
        )
    ]

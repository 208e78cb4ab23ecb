"""Published kernel timings as local work and seconds, for fitting and judging efficiency surfaces.

Reads the tables described in the data folder's README; nothing of them is copied. The devices here
are those of the measurements (a PCIe card where the publisher measured one), not those of the
planner's catalogue: an efficiency is a share of the peak of the device that was timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodels.compute import Work

Floats = NDArray[np.float64]
HALF = "16 bit inputs, 16 bit multiplication, 32 bit addition"
PSEUDO_HALF = "16 bit inputs, 32 bit multiplication, 32 bit addition"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedDevice:
    """A device as it was timed; the fixed cost of a kernel is fitted per source instead."""

    name: str
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    num_sms: int
    kernel_latency: float = 0.0


def _timed_device(
    name: str, sms: int, gb_per_s: float, fp32: float, half: float = 0.0, fp8: float = 0.0
) -> TimedDevice:
    peak = {"fp32": fp32 * 1e12}
    if half:
        peak |= {"fp16": half * 1e12, "bf16": half * 1e12}
    if fp8:
        peak |= {"fp8": fp8 * 1e12}
    return TimedDevice(name=name, peak_flops=peak, memory_bandwidth=gb_per_s * 1e9, num_sms=sms)


# Peaks of the vendors' data sheets at boost clock.
DEVICES = {
    "V100 32GB PCIe": _timed_device("V100 PCIe", 80, 900, 14.0, 112),
    "NVIDIA V100": _timed_device("V100 SXM2", 80, 900, 15.7, 125),
    "P100 16GB PCIe": _timed_device("P100 PCIe", 56, 732, 9.3),
    "NVIDIA Tesla P100": _timed_device("P100 PCIe", 56, 732, 9.3, 18.7),
    "A100 40GB PCIe": _timed_device("A100 PCIe 40 GB", 108, 1555, 19.5, 312),
    "A100 80GB PCIe": _timed_device("A100 PCIe 80 GB", 108, 1935, 19.5, 312),
    "T4": _timed_device("T4", 40, 320, 8.1, 65),
    "NVIDIA T4": _timed_device("T4", 40, 320, 8.1, 65),
    "NVIDIA GTX 1080 Ti": _timed_device("GTX 1080 Ti", 28, 484, 11.3),
    "NVIDIA GTX TitanXp": _timed_device("Titan Xp", 30, 548, 12.15),
    "Nvidia TitanX Pascal": _timed_device("Titan X (Pascal)", 28, 480, 10.97),
    "Nvidia TitanX": _timed_device("Titan X (Maxwell)", 24, 336, 6.6),
    "Nvidia Tesla M40": _timed_device("M40", 24, 288, 6.8),
    "a100_sxm": _timed_device("A100 SXM 80 GB", 108, 2039, 19.5, 312),
    "h100_sxm": _timed_device("H100 SXM", 132, 3352, 67, 989, 1979),
    "h200_sxm": _timed_device("H200 SXM", 132, 4800, 67, 989, 1979),
    "b200_sxm": _timed_device("B200 SXM", 148, 7700, 80, 2250, 4500),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSource:
    """Who measured what, for the provenance of a coefficient."""

    name: str
    licence: str
    software: str


NEUSIGHT = TimingSource(
    name="NeuSight, github.com/sitar-lab/NeuSight",
    licence="MIT",
    software="PyTorch 2.1.0, CUDA 12.1, cuDNN 8.9.2",
)
PIPEDREAM = TimingSource(
    name="PipeDream, github.com/msr-fiddle/pipedream",
    licence="MIT",
    software="PyTorch 0.4-1.0 (not stated)",
)
ACESO = TimingSource(
    name="Aceso, github.com/microsoft/SuperScaler",
    licence="MIT",
    software="PyTorch (not stated)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Rows of one source: the sum of the parts took so many seconds.

    Attributes
    ----------
    source
        Who measured what, for the provenance.
    device, precision
        What it ran on.
    parts
        Local work of the passes that were timed together, by direction.
    seconds
        Measured time of each row. [s]
    held_out
        Rows that no fit may see.
    beside
        What was timed with each row and is known otherwise. [s]
    """

    source: TimingSource
    device: TimedDevice
    precision: str
    parts: Mapping[str, Work]
    seconds: Floats
    held_out: NDArray[np.bool_] = field(repr=False)
    beside: Floats = field(default_factory=lambda: np.zeros(1), repr=False)


def held_out_rows(shapes: pd.DataFrame) -> NDArray[np.bool_]:
    """A quarter of the rows, chosen by a hash of the shape, so that repeats stay together."""
    keys = shapes.astype("int64").astype(str).agg(",".join, axis=1)
    return np.array([hashlib.sha256(key.encode()).digest()[0] % 4 == 0 for key in keys])


def column(frame: pd.DataFrame, name: str) -> Floats:
    """A column as 64-bit floats."""
    values: Floats = frame[name].to_numpy(dtype=np.float64)
    return values


def product_work(operation: str, batch: Floats, m: Floats, n: Floats, k: Floats) -> Work:
    """A plain matrix product as the forward pass of a linear layer or batched product."""
    if operation == "linear":
        return Work(operation="linear", direction="forward", samples=m, channels=k, filters=n)
    return Work(
        operation="matmul",
        direction="forward",
        samples=batch,
        channels=k,
        filters=n,
        in_extents=(m,),
        out_extents=(m,),
    )


def conv_work(frame: pd.DataFrame, direction: str) -> list[tuple[NDArray[np.bool_], Work]]:
    """The convolutions of a frame, one piece of work per kernel and stride."""
    pieces = []
    for (r, s, u, v), _ in frame.groupby(["r", "s", "stride_h", "stride_w"]):
        rows = (
            (frame.r == r) & (frame.s == s) & (frame.stride_h == u) & (frame.stride_w == v)
        ).to_numpy()
        part = frame[rows]
        outs = (
            np.floor((column(part, "h") + 2 * column(part, "pad_h") - r) / u) + 1,
            np.floor((column(part, "w") + 2 * column(part, "pad_w") - s) / v) + 1,
        )
        work = Work(
            operation="conv",
            direction=direction,
            samples=column(part, "n"),
            channels=column(part, "c"),
            filters=column(part, "k"),
            in_extents=(column(part, "h"), column(part, "w")),
            out_extents=outs,
            kernel=(int(r), int(s)),
            stride=(int(u), int(v)),
            groups=column(part, "groups") if "groups" in part else 1,
        )
        pieces.append((rows, work))
    return pieces


def conv_timings(
    frame: pd.DataFrame,
    directions: tuple[str, ...],
    *,
    source: TimingSource,
    device: TimedDevice,
    precision: str,
) -> list[Timings]:
    """Rows of a frame of convolutions with a column `seconds`, one entry per kernel and stride."""
    shape = ["n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w"]
    held_out = held_out_rows(frame[shape])
    pieces = {direction: conv_work(frame, direction) for direction in directions}
    return [
        Timings(
            source=source,
            device=device,
            precision=precision,
            parts={direction: parts[index][1] for direction, parts in pieces.items()},
            seconds=column(frame, "seconds")[rows],
            held_out=held_out[rows],
        )
        for index, (rows, _) in enumerate(pieces[directions[0]])
    ]


def neusight_conv(tables: Path, gpu: str, *, least: int = 1) -> list[Timings]:
    """Forward 3x3 convolutions; the kernel names say FP32 arithmetic, on A100 too.

    `least` is the least number of channels and of filters of the rows that are taken.
    """
    frame = pd.read_csv(tables / "neusight_conv_fwd.csv")
    frame = frame[(frame.gpu == gpu) & (frame.c >= least) & (frame.k >= least)]
    frame = frame.assign(seconds=lambda f: f.fwd_ms / 1e3)
    return conv_timings(frame, ("forward",), source=NEUSIGHT, device=DEVICES[gpu], precision="fp32")


def neusight_product(tables: Path, gpu: str, operation: str) -> list[Timings]:
    """Plain (`linear`) or batched (`matmul`) products in FP32."""
    frame = pd.read_csv(tables / "neusight_gemm_fwd.csv")
    op = {"linear": "linear", "matmul": "bmm"}[operation]
    frame = frame[(frame.gpu == gpu) & (frame.op == op)]
    dims = ["batch", "m", "n_out", "k_inner"]
    work = product_work(operation, *(column(frame, name) for name in dims))
    return [
        Timings(
            source=NEUSIGHT,
            device=DEVICES[gpu],
            precision="fp32",
            parts={"forward": work},
            seconds=column(frame, "fwd_ms") / 1e3,
            held_out=held_out_rows(frame[dims]),
        )
    ]


def _deepbench(frame: pd.DataFrame) -> TimingSource:
    software = str(frame.software.iloc[0]).replace("=", " ").replace(" Version", "")
    return TimingSource(
        name="DeepBench, github.com/baidu-research/DeepBench",
        licence="Apache-2.0",
        software=software,
    )


def deepbench_conv(tables: Path, gpu: str, precision: str, direction: str) -> list[Timings]:
    """One pass of DeepBench's training convolutions."""
    timed = {
        "forward": "fwd_ms",
        "backward_data": "bwd_data_ms",
        "backward_weight": "bwd_filter_ms",
    }[direction]
    names = {"fp32": ("fp32",), "fp16": (HALF, PSEUDO_HALF)}[precision]
    frame = pd.read_csv(tables / "deepbench_train_conv.csv")
    frame = frame[(frame.gpu == gpu) & frame.precision.isin(names) & frame[timed].notna()]
    frame = frame.assign(seconds=frame[timed] / 1e3)
    return conv_timings(
        frame,
        (direction,),
        source=_deepbench(frame),
        device=DEVICES[gpu],
        precision=precision,
    )


def deepbench_product(tables: Path, gpu: str, precision: str) -> list[Timings]:
    """DeepBench's training products, all transpositions."""
    names = {"fp32": ("fp32",), "fp16": (HALF, PSEUDO_HALF)}[precision]
    frame = pd.read_csv(tables / "deepbench_train_gemm.csv")
    frame = frame[(frame.gpu == gpu) & frame.precision.isin(names)]
    m, n, k = (column(frame, name) for name in "mnk")
    return [
        Timings(
            source=_deepbench(frame),
            device=DEVICES[gpu],
            precision=precision,
            parts={"forward": product_work("linear", np.ones(1), m, n, k)},
            seconds=column(frame, "time_ms") / 1e3,
            held_out=held_out_rows(frame[["m", "n", "k"]]),
        )
    ]


_CONV_SHAPE = [*("n", "c", "h", "w", "k", "r", "s"), *("pad_h", "pad_w", "stride_h", "stride_w")]


def pipedream_conv(tables: Path, direction: str, *, grouped: bool) -> list[Timings]:
    """Convolutions of whole networks on a V100-class card, without or with groups.

    `direction` is "forward" or "backward"; the latter was timed as one. The forward pass of a
    network's first layer is left out: it waits for its input to be copied.
    """
    frame = pd.read_csv(tables / "pipedream_layer_profiles.csv")
    frame = frame[(frame.op == "Conv2d") & frame.c.notna() & ((frame.groups > 1) == grouped)]
    frame = frame.assign(stride_h=frame.stride, stride_w=frame.stride)
    times = ["fwd_ms", "bwd_total_ms"]
    frame = frame.groupby([*_CONV_SHAPE, "groups"], as_index=False)[times].median()
    if direction == "forward":
        frame = frame[frame.c > 3].assign(seconds=lambda f: f.fwd_ms / 1e3)
    else:
        frame = frame.assign(seconds=frame.bwd_total_ms / 1e3)
    return _network_conv(frame, direction, PIPEDREAM)


def aceso_conv(tables: Path, direction: str) -> list[Timings]:
    """Convolutions of wide ResNets on one V100, where the times hold no collective."""
    frame = pd.read_csv(tables / "aceso_wresnet_ops_v100.csv")
    frame = frame[(frame.tp == 1) & (frame.kind == "conv") & frame.notes.isna()]
    frame = frame.assign(
        pad_h=frame["pad"], pad_w=frame["pad"], stride_h=frame.stride, stride_w=frame.stride
    )
    timed = "fwd_us_incl_collective" if direction == "forward" else "bwd_us_incl_collective"
    frame = frame.groupby(_CONV_SHAPE, as_index=False)[[timed]].median()
    return _network_conv(frame.assign(seconds=frame[timed] / 1e6), direction, ACESO)


def _network_conv(frame: pd.DataFrame, direction: str, source: TimingSource) -> list[Timings]:
    """Rows of a network on V100; its first layer has no backward-data pass."""
    device = DEVICES["NVIDIA V100"]
    passes: list[tuple[pd.DataFrame, tuple[str, ...]]]
    if direction == "forward":
        passes = [(frame, ("forward",))]
    else:
        both = ("backward_data", "backward_weight")
        passes = [(frame[frame.c > 3], both), (frame[frame.c <= 3], both[1:])]
    return [
        timings
        for part, directions in passes
        for timings in conv_timings(
            part, directions, source=source, device=device, precision="fp32"
        )
    ]

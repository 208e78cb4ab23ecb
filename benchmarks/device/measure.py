"""Measures local shapes on this machine's GPU with PyTorch and writes a cost table.

    python -m benchmarks.measure_device SHAPES.csv TABLE.csv [--precision fp32 --precision bf16]
        [--device cpu]

SHAPES.csv has the columns `operation` (conv, linear, matmul, batch_norm, layer_norm, pool,
activation or add), `samples`, `channels`, `filters`, `in_extents`, `kernel`, `stride`, `groups`,
and optionally `out_extents`, extents written as `56x56`; `benchmarks/measure_shapes.py` writes it
for whole networks. Every shape is timed in each of its passes (forward, backward-data and
backward-weight; forward and backward where there is no matrix product), and TABLE.csv is what
`costmodels.compute.CostTable` loads. Pooling is by maximum, the activation is ReLU.

A pass is one call of the library (`benchmarks/measure_passes.py`), so nothing of the framework is
timed but the launch; the library may search for its best convolution first, as it does in training.
Each time is the median of several batches of calls, between CUDA events or, on a CPU, by the clock;
a batch lasts some milliseconds, so that launches are hidden where the work is longer than they are.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.device.passes import Shape, calls_of
from costmodels.compute.table import COLUMNS

WARM_UP = 5
BATCHES = 9
BATCH_SECONDS = 5e-3
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
DEVICES = ("cuda", "cpu")
EXTRA = ("spread",)


def read_shapes(path: Path) -> list[Shape]:
    """Shapes of a CSV file; ends the program with one sentence where a cell is not usable."""
    shapes = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"the shapes {path} must be readable but are not ({error}); check the path")
    for line, cells in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            shapes.append(_shape(cells))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            sys.exit(f"line {line} of {path} is not a shape to measure ({error}); correct it")
    return shapes


def _shape(cells: Mapping[str, str]) -> Shape:
    def numbers(column: str) -> tuple[int, ...]:
        return tuple(_positive_number(part) for part in cells[column].split("x") if part)

    return Shape(
        operation=cells["operation"],
        samples=_positive_number(cells["samples"]),
        channels=_positive_number(cells["channels"]),
        filters=_positive_number(cells["filters"]),
        in_extents=numbers("in_extents"),
        out_extents=numbers("out_extents") if "out_extents" in cells else (),
        kernel=numbers("kernel"),
        stride=numbers("stride"),
        groups=_positive_number(cells.get("groups") or "1"),
    )


def _positive_number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{value} is below 1")
    return value


def time_call(torch: Any, call: Callable[[], object], device: str = "cuda") -> tuple[float, float]:
    """Median seconds of one call, and the spread of the batches relative to it."""
    batch = _batch_by_clock if device == "cpu" else _batch_by_events
    for _ in range(WARM_UP):
        call()
    once = batch(torch, call, 1)
    calls = max(1, min(1000, round(BATCH_SECONDS / max(once, 1e-7))))
    times = [batch(torch, call, calls) for _ in range(BATCHES)]
    middle = statistics.median(times)
    return middle, (max(times) - min(times)) / middle


def _batch_by_events(torch: Any, call: Callable[[], object], calls: int) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


def _batch_by_clock(torch: Any, call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def rows(
    torch: Any, shapes: list[Shape], precisions: list[str], device: str = "cuda"
) -> Iterator[dict[str, object]]:
    """Rows of the table; a shape that the library cannot run (out of memory) is reported and left
    out."""
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    for precision in precisions:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        for shape in shapes:
            calls: dict[str, Callable[[], object]] = {}
            try:
                calls = calls_of(torch, shape, dtypes.get(precision, torch.float32), device)
                measured = {way: time_call(torch, call, device) for way, call in calls.items()}
            except (RuntimeError, MemoryError) as error:
                reason = (str(error).splitlines() or ["out of memory"])[0]
                print(f"left out: {precision} {shape}: {reason}", file=sys.stderr)
                continue
            finally:
                calls.clear()
                if device == "cuda":
                    torch.cuda.empty_cache()
            for direction, (seconds, spread) in measured.items():
                yield {
                    **cells_of(shape),
                    "direction": direction,
                    "precision": precision,
                    "seconds": f"{seconds:.4e}",
                    "spread": f"{spread:.3f}",
                }


def cells_of(shape: Shape) -> dict[str, object]:
    """A shape as cells of a CSV file."""
    return {
        "operation": shape.operation,
        "samples": shape.samples,
        "channels": shape.channels,
        "filters": shape.filters,
        "in_extents": _join(shape.in_extents),
        "out_extents": _join(shape.out_extents),
        "kernel": _join(shape.kernel),
        "stride": _join(shape.stride),
        "groups": shape.groups,
    }


def _join(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def provenance(torch: Any, device: str = "cuda") -> dict[str, str]:
    """What the head of a table says of the machine and the software."""
    software, clock = f"PyTorch {torch.__version__}", "wall clock"
    name = f"CPU {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    if device == "cuda":
        name, clock = torch.cuda.get_device_name(), "CUDA events, cudnn.benchmark on"
        software += f", CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    return {
        "device": name,
        "software": software,
        "date": datetime.now(UTC).date().isoformat(),
        "method": f"{clock}, median of {BATCHES} batches of {BATCH_SECONDS * 1e3:g} ms, random "
        "data, channels before extents (NCHW)",
    }


def _import_torch(device: str) -> Any:
    try:
        import torch
    except ImportError:
        sys.exit("measuring needs PyTorch, which is not installed; pip install torch")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "measuring needs a CUDA device, PyTorch sees none; run it on a machine with a GPU or "
            "give --device cpu"
        )
    torch.backends.cudnn.benchmark = True
    return torch


def main() -> None:
    """Measure the shapes named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--device", default="cuda", choices=DEVICES)
    arguments = parser.parse_args()
    device = arguments.device
    usual = ["fp32", "bf16"] if device == "cpu" else ["fp32", "tf32", "bf16"]
    precisions = list(dict.fromkeys(arguments.precision or usual))
    if device == "cpu" and "tf32" in precisions:
        sys.exit("a CPU must be measured in fp32, bf16 or fp16, not in tf32; leave tf32 out")
    shapes = read_shapes(arguments.shapes)
    torch, count = _import_torch(device), 0
    partial = arguments.table.with_name(arguments.table.name + ".partial")
    with torch.no_grad(), partial.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {k} = {value}\n" for k, value in provenance(torch, device).items())
        writer = csv.DictWriter(file, [*COLUMNS, *EXTRA])
        writer.writeheader()
        for row in rows(torch, shapes, precisions, device):
            writer.writerow(row)
            file.flush()
            count += 1
    if not count:
        os.remove(partial)
        sys.exit("no shape could be measured, see the reasons above; choose smaller shapes")
    os.replace(partial, arguments.table)
    print(f"{count} times of {len(shapes)} shapes written to {arguments.table}")


if __name__ == "__main__":
    main()

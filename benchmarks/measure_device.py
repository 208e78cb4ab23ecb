"""Measures local shapes on this machine's GPU with PyTorch and writes a cost table.

    python -m benchmarks.measure_device SHAPES.csv TABLE.csv [--precision fp32 --precision bf16]

SHAPES.csv has the columns `operation` (conv, linear or matmul), `samples`, `channels`, `filters`,
`in_extents`, `kernel`, `stride`, `groups`, extents written as `56x56`. Every shape is timed in the
forward, backward-data and backward-weight pass, and TABLE.csv is what
`costmodels.compute.CostTable` loads. A pass is one call of the library, so nothing of the framework
is timed but the launch; a convolution is padded by half its kernel; the library may search for its
best algorithm first, as it does in training. Each time is the median of several batches of calls
between CUDA events; a batch lasts some milliseconds, so that launches are hidden.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from costmodels.compute.table import COLUMNS

WARM_UP = 5
BATCHES = 9
BATCH_SECONDS = 5e-3
DIRECTIONS = ("forward", "backward_data", "backward_weight")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
EXTRA = ("spread",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One local shape to be measured; extents are those of the input."""

    operation: str
    samples: int
    channels: int
    filters: int
    in_extents: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    groups: int

    @property
    def padding(self) -> tuple[int, ...]:
        """Rows and columns added on each side."""
        return tuple(size // 2 for size in self.kernel)

    @property
    def out_extents(self) -> tuple[int, ...]:
        """Extents of the output."""
        if not self.kernel:
            return self.in_extents
        dims = zip(self.in_extents, self.kernel, self.stride, self.padding, strict=True)
        return tuple((extent + 2 * pad - size) // step + 1 for extent, size, step, pad in dims)


def read_shapes(path: Path) -> list[Shape]:
    """Shapes of a CSV file; ends the program with one sentence where a cell is not usable."""
    shapes = []
    with path.open(encoding="utf-8", newline="") as file:
        for line, cells in enumerate(csv.DictReader(file), start=2):
            try:
                shapes.append(_shape(cells))
            except (KeyError, ValueError, TypeError) as error:
                sys.exit(f"line {line} of {path} is not a shape to measure ({error}); correct it")
    return shapes


def _shape(cells: Mapping[str, str]) -> Shape:
    def numbers(column: str) -> tuple[int, ...]:
        return tuple(_positive(part) for part in cells[column].split("x") if part)

    kernel = numbers("kernel")
    operation = cells["operation"]
    if operation not in ("conv", "linear", "matmul"):
        raise ValueError(f"operation {operation!r}")
    extents = numbers("in_extents")
    if operation == "conv" and not len(extents) == len(kernel) in (1, 2, 3):
        raise ValueError(f"{len(extents)} extents for a kernel of {len(kernel)} dims")
    return Shape(
        operation=operation,
        samples=_positive(cells["samples"]),
        channels=_positive(cells["channels"]),
        filters=_positive(cells["filters"]),
        in_extents=extents,
        kernel=kernel,
        stride=numbers("stride") or (1,) * len(kernel),
        groups=_positive(cells.get("groups") or "1"),
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{value} is below 1")
    return value


def passes(torch: Any, shape: Shape, dtype: Any) -> dict[str, Callable[[], object]]:
    """One call per direction, on random data that lies on the GPU."""

    def random(*dims: int) -> Any:
        return torch.randn(*dims, device="cuda", dtype=dtype)

    if shape.operation == "conv":
        inputs = random(shape.samples, shape.channels, *shape.in_extents)
        weight = random(shape.filters, shape.channels // shape.groups, *shape.kernel)
        gradient = random(shape.samples, shape.filters, *shape.out_extents)

        def backward(mask: list[bool]) -> Callable[[], object]:
            return lambda: torch.ops.aten.convolution_backward(
                *(gradient, inputs, weight, None, list(shape.stride), list(shape.padding)),
                *([1] * len(shape.kernel), False, [0] * len(shape.kernel), shape.groups, mask),
            )

        forward = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[len(shape.kernel)]
        options = {"stride": shape.stride, "padding": shape.padding, "groups": shape.groups}
        return {
            "forward": lambda: forward(inputs, weight, **options),
            "backward_data": backward([True, False, False]),
            "backward_weight": backward([False, True, False]),
        }
    rows = 1
    for extent in shape.in_extents:
        rows *= extent
    lead = (shape.samples, rows) if shape.operation == "matmul" else (shape.samples * rows,)
    inputs, gradient = random(*lead, shape.channels), random(*lead, shape.filters)
    # A linear layer keeps its weight as filters x channels.
    weight = random(*lead[:-1], shape.filters, shape.channels)
    return {
        "forward": lambda: torch.matmul(inputs, weight.mT),
        "backward_data": lambda: torch.matmul(gradient, weight),
        "backward_weight": lambda: torch.matmul(gradient.mT, inputs),
    }


def measure(torch: Any, call: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of one call, and the spread of the batches relative to it."""
    for _ in range(WARM_UP):
        call()
    once = _batch(torch, call, 1)
    calls = max(1, min(1000, round(BATCH_SECONDS / max(once, 1e-7))))
    times = [_batch(torch, call, calls) for _ in range(BATCHES)]
    middle = statistics.median(times)
    return middle, (max(times) - min(times)) / middle


def _batch(torch: Any, call: Callable[[], object], calls: int) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


def rows(torch: Any, shapes: list[Shape], precisions: list[str]) -> Iterator[dict[str, object]]:
    """Rows of the table; a shape that does not fit into memory is reported and left out."""
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    for precision in precisions:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        for shape in shapes:
            try:
                calls = passes(torch, shape, dtypes.get(precision, torch.float32))
                measured = {way: measure(torch, calls[way]) for way in DIRECTIONS}
            except torch.cuda.OutOfMemoryError:
                print(f"out of memory, left out: {precision} {shape}", file=sys.stderr)
                continue
            finally:
                calls = {}
                torch.cuda.empty_cache()
            for direction, (seconds, spread) in measured.items():
                yield {
                    "operation": shape.operation,
                    "direction": direction,
                    "precision": precision,
                    "samples": shape.samples,
                    "channels": shape.channels,
                    "filters": shape.filters,
                    "in_extents": _join(shape.in_extents),
                    "out_extents": _join(shape.out_extents),
                    "kernel": _join(shape.kernel),
                    "stride": _join(shape.stride),
                    "groups": shape.groups,
                    "seconds": f"{seconds:.4e}",
                    "spread": f"{spread:.3f}",
                }


def _join(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def provenance(torch: Any) -> dict[str, str]:
    """What the head of a table says of the machine and the software."""
    return {
        "device": torch.cuda.get_device_name(),
        "software": f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}",
        "date": datetime.now(UTC).date().isoformat(),
        "method": f"CUDA events, median of {BATCHES} batches of {BATCH_SECONDS * 1e3:g} ms, "
        "random data, cudnn.benchmark on",
    }


def main() -> None:
    """Measure the shapes named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    arguments = parser.parse_args()
    shapes = read_shapes(arguments.shapes)
    try:
        import torch
    except ImportError:
        sys.exit("measuring needs PyTorch, which is not installed; pip install torch")
    if not torch.cuda.is_available():
        sys.exit("measuring needs a CUDA device, PyTorch sees none; run it on a machine with a GPU")
    torch.backends.cudnn.benchmark = True
    with arguments.table.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {key} = {value}\n" for key, value in provenance(torch).items())
        writer = csv.DictWriter(file, [*COLUMNS, *EXTRA])
        writer.writeheader()
        for row in rows(torch, shapes, arguments.precision or ["fp32", "tf32", "bf16"]):
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()

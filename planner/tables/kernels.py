"""Tables of products and convolutions that NeuSight and DeepBench publish.

DeepBench states C = A B with the weight as A: the forward pass multiplies it by the activations
(NN), backward-data its transpose by the gradients (TN), and backward-weight gradients by transposed
activations (NT). Where it has several precisions of 16 bits, all of them are fp16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from costmodels.errors import InputError, plain
from planner.tables.found import Cells, Found, RowReader, read_csv, require_columns

_NEUSIGHT_PRODUCT: Final = ("op", "batch", "m", "k_inner", "n_out", "gpu", "precision", "fwd_ms")
_DEEPBENCH_PRODUCT: Final = ("m", "n", "k", "a_trans", "b_trans", "gpu", "precision", "time_ms")
_CONVOLUTION: Final = (
    *("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w"),
    *("gpu", "precision", "fwd_ms", "bwd_data_ms", "bwd_filter_ms"),
)
_PASSES: Final = {
    "fwd_ms": "forward",
    "bwd_data_ms": "backward_data",
    "bwd_filter_ms": "backward_weight",
}
_Reader = Callable[[Found, str, Cells, RowReader], None]


def read_neusight(path: str) -> list[Found]:
    """Products (`op` linear or bmm) and forward convolutions of NeuSight."""
    return _read(path, {"products": _NEUSIGHT_PRODUCT, "convolutions": _CONVOLUTION})


def read_deepbench(path: str) -> list[Found]:
    """Products and the three passes of convolutions of DeepBench's training benchmarks."""
    return _read(path, {"products": _DEEPBENCH_PRODUCT, "convolutions": _CONVOLUTION})


def _read(path: str, forms: dict[str, tuple[str, ...]]) -> list[Found]:
    rows = read_csv(path)
    form = require_columns(path, rows, forms)
    add: _Reader = _add_convolution
    if form == "products":
        add = _add_neusight if forms[form] is _NEUSIGHT_PRODUCT else _add_deepbench
    found: dict[str, Found] = {}
    for number, cells in enumerate(rows, start=2):
        device = str(cells["gpu"])
        one = found.setdefault(device, Found(device=device))
        if cells.get("software"):
            one.provenance["software"] = str(cells["software"])
        precision = _precision(str(cells["precision"]))
        if not precision:
            one.left_out[f"the precision {cells['precision']}"] += 1
        else:
            add(one, precision, cells, RowReader(path, number, cells))
    return list(found.values())


def _precision(text: str) -> str:
    if text in ("fp32", "tf32", "fp16", "bf16"):
        return text
    return "fp16" if text.startswith("16 bit inputs") else ""


def _add_neusight(found: Found, precision: str, cells: Cells, read: RowReader) -> None:
    batch, rows, columns, depth = (read.count(x) for x in ("batch", "m", "n_out", "k_inner"))
    seconds = read.amount("fwd_ms") / 1e3
    if cells["op"] == "linear":
        found.add("linear", "forward", precision, (batch * rows, depth, columns), seconds)
    elif cells["op"] == "bmm":
        sizes, extents = (batch, depth, columns), (rows,)
        found.add(
            "matmul", "forward", precision, sizes, seconds, in_extents=extents, out_extents=extents
        )
    else:
        found.left_out[f"the operation {cells['op']}"] += 1


def _add_deepbench(found: Found, precision: str, cells: Cells, read: RowReader) -> None:
    m, n, k = (read.count(column) for column in "mnk")
    seconds, layout = read.amount("time_ms") / 1e3, f"{cells['a_trans']}{cells['b_trans']}"
    if layout == "NN":
        found.add("linear", "forward", precision, (n, k, m), seconds)
    elif layout == "TN":
        found.add("linear", "backward_data", precision, (n, m, k), seconds)
    elif layout == "NT":
        found.add("linear", "backward_weight", precision, (k, n, m), seconds)
    else:
        found.left_out[f"the layout {layout}"] += 1


def _add_convolution(found: Found, precision: str, cells: Cells, read: RowReader) -> None:
    samples, channels, filters = (read.count(column) for column in "nck")
    ins, kernel = [read.count(x) for x in "hw"], [read.count(x) for x in "rs"]
    stride = [read.count(f"stride_{x}") for x in "hw"]
    pads = [_padding_cell(cells, f"pad_{x}") for x in "hw"]
    sides = zip(ins, pads, kernel, stride, strict=True)
    outs = [(extent + 2 * pad - size) // step + 1 for extent, pad, size, step in sides]
    if min(outs) < 1:
        found.left_out["a kernel larger than its input"] += 1
        return
    for column, direction in _PASSES.items():
        if cells[column] in ("", None):
            continue
        found.add(
            "conv",
            direction,
            precision,
            (samples, channels, filters),
            read.amount(column) / 1e3,
            in_extents=ins,
            out_extents=outs,
            kernel=kernel,
            stride=stride,
            groups=read.count("groups") if cells.get("groups") else 1,
        )


def _padding_cell(cells: Cells, column: str) -> int:
    try:
        pad = int(float(str(cells[column])))
    except (ValueError, OverflowError):
        pad = -1
    if pad < 0:
        raise InputError.rule(
            f"column {plain(column)}", "be at least 0", f"'{cells[column]}'", "correct the row"
        )
    return pad

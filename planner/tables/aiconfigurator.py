"""Tables of NVIDIA's aiconfigurator: products, attention of whole prompts, collectives.

They are parquet files (or CSV files, in older versions) that tell themselves apart by their
columns; latencies are in milliseconds and messages in elements. Precisions that layers are not
costed in, and kernels of other operations, are left out and counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from costmodels.errors import InputError, plain
from planner.tables.found import Cells, Found, RowReader, read_csv, require_columns

FORMS: Final = {
    "products": ("device", "gemm_dtype", "m", "n", "k", "latency"),
    "attention": (
        *("device", "op_name", "batch_size", "isl", "num_heads", "num_key_value_heads"),
        *("head_dim", "attn_dtype", "kv_cache_dtype", "latency"),
    ),
    "collectives": ("device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency"),
}
_PRECISIONS: Final = {"bfloat16": "bf16", "float16": "fp16"}
_COLLECTIVES: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_MESSAGE_ELEMENT: Final = {"half": 2, "int8": 1}
_NO_WINDOW: Final = ("0", "0.0", "-1", "-1.0")
_SUFFIXES: Final = (".parquet", ".csv", ".txt")


def read_aiconfigurator(path: str) -> list[Found]:
    """All tables of a file, or of a folder whatever their depth."""
    place = Path(path)
    files = [place]
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.suffix in _SUFFIXES)
        if not files:
            raise InputError(
                f"the folder {plain(path)} must hold tables of aiconfigurator "
                f"({', '.join(_SUFFIXES)}) but holds none; give the folder of a system"
            )
    found: dict[str, Found] = {}
    known = 0
    for file in files:
        rows = _rows(file)
        if place.is_dir() and not any(rows and set(rows[0]) >= set(x) for x in FORMS.values()):
            continue
        known += 1
        _add_table(found, str(file), rows, require_columns(str(file), rows, FORMS))
    if not known:
        raise InputError(
            f"the folder {plain(path)} must hold tables of products, attention or collectives but "
            f"none of its {len(files)} files has their columns; give the folder of a system"
        )
    return list(found.values())


def _rows(file: Path) -> list[Cells]:
    if file.suffix != ".parquet":
        return read_csv(str(file))
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            f"reading {plain(str(file))} needs the package pyarrow, which is missing; install "
            "'planner[tables]', or give a CSV file"
        ) from None
    try:
        rows: list[Cells] = pyarrow.parquet.read_table(file).to_pylist()
    except FileNotFoundError:
        raise InputError(f"the file {plain(str(file))} does not exist; check its name") from None
    except (OSError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{plain(str(file))} must be a parquet file but cannot be read as one ({reason}); "
            "give another file"
        ) from None
    return rows


def _add_table(found: dict[str, Found], path: str, rows: list[Cells], form: str) -> None:
    add = {"products": _add_product, "attention": _add_attention, "collectives": _add_collective}
    for number, cells in enumerate(rows, start=1):
        device = str(cells["device"])
        one = found.setdefault(device, Found(device=device))
        if cells.get("version"):
            one.provenance[f"software of {form}"] = (
                f"{cells.get('framework', '')} {cells['version']}"
            )
        add[form](one, path, number, cells)


def _add_product(found: Found, path: str, number: int, cells: Cells) -> None:
    precision = _PRECISIONS.get(str(cells["gemm_dtype"]))
    if precision is None:
        found.left_out[f"products in {cells['gemm_dtype']}"] += 1
        return
    read = RowReader(path, number, cells)
    sizes = [read.count(column) for column in "mkn"]
    found.add("linear", "forward", precision, sizes, read.amount("latency") / 1e3)


def _add_attention(found: Found, path: str, number: int, cells: Cells) -> None:
    precision = _PRECISIONS.get(str(cells["attn_dtype"]))
    if precision is None or cells["kv_cache_dtype"] != cells["attn_dtype"]:
        found.left_out[f"attention with keys in {cells['kv_cache_dtype']}"] += 1
        return
    if cells["op_name"] != "context_attention":
        found.left_out[str(cells["op_name"])] += 1
        return
    read = RowReader(path, number, cells)
    samples, length, heads, shared, width = (
        read.count(x) for x in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    )
    whole = str(cells.get("window_size") or 0) in _NO_WINDOW
    window = 0 if whole else read.count("window_size")
    hidden = max(length - window, 0) if window > 0 else 0
    found.add(
        "attention",
        "forward",
        precision,
        (samples * heads, width, width),
        read.amount("latency") / 1e3,
        in_extents=(length,),
        out_extents=(length,),
        groups=max(heads // shared, 1),
        visible=(length * (length + 1) - hidden * (hidden + 1)) / (2 * length**2),
    )


def _add_collective(found: Found, path: str, number: int, cells: Cells) -> None:
    collective = _COLLECTIVES.get(str(cells["op_name"]))
    element = _MESSAGE_ELEMENT.get(str(cells["nccl_dtype"]))
    if collective is None or element is None:
        found.left_out[f"{cells['op_name']} of {cells['nccl_dtype']}"] += 1
        return
    read = RowReader(path, number, cells)
    size = read.count("message_size") * element
    found.collectives.append(
        [collective, 1, read.count("num_gpus"), size, read.amount("latency") / 1e3]
    )

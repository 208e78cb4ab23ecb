"""What nccl-tests prints, and CSV tables that were collected from it.

Of the two times of a line, that of buffers apart (out of place) is taken. The log of an older
version does not say which collective it ran: the name of the file must tell then, or the operator
and the bus bandwidth do, which counts twice as much for an all-reduce (PERFORMANCE.md of
nccl-tests).
"""

from __future__ import annotations

import os
import re
from typing import Final

from costmodels.errors import InputError, plain, printable
from costmodels.units.tables import read_text
from planner.tables.found import Found, RowReader, read_csv, require_columns

_COLUMNS: Final = ("gpu", "nodes", "gpus", "collective", "bytes", "time_us", "busbw_GBps")
_NAMES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_RANK: Final = re.compile(r"#\s+Rank\s+(\d{1,9}).*?\bon\s+(\S+)\s+device\s+\S+\s+\[\S+\]\s+(.*)")
_LINE: Final = re.compile(
    r"\s*(\d{1,13})\s+\d+\s+\w+\s+(\w+)\s+-?\d+" + 3 * r"\s+(\d{1,12}(?:\.\d+)?)" + r"\s", re.ASCII
)
_NONE: Final = ("", "0", "0.0", None)
# Bus bandwidth is printed with two digits after the point.
_TELLING: Final = 1.0


def read_nccl_tests(path: str) -> list[Found]:
    """A log of nccl-tests, or a CSV table with its figures."""
    if os.path.splitext(path)[1].lower() == ".csv":
        return _read_csv(path)
    text = printable(read_text(path, f"the file {path}"))
    ranks = {int(m[1]): (m[2], m[3].strip()) for m in map(_RANK.match, text.splitlines()) if m}
    lines = [m for m in map(_LINE.match, text.splitlines()) if m]
    if not ranks or not lines:
        raise InputError(
            f"{plain(path)} must be the output of nccl-tests, with a line '#  Rank ...' for each "
            f"GPU and one for each size, but has {len(ranks)} and {len(lines)} of them; give the "
            "whole output"
        )
    hosts = len({host for host, _ in ranks.values()})
    found = Found(device=next(iter(ranks.values()))[1])
    collective = _collective(path, text, len(ranks), lines)
    for line in lines:
        size, seconds = int(line[1]), float(line[3]) * 1e-6
        if not size or not seconds or len(ranks) < 2:
            found.left_out["messages of no bytes or in no time"] += 1
        else:
            found.collectives.append([collective, hosts, len(ranks), size, seconds])
    return [found]


def _collective(path: str, text: str, num_gpus: int, lines: list[re.Match[str]]) -> str:
    started = re.search(r"Collective test starting: *(\w+)_perf", text)
    for told in (started[1] if started else "", os.path.basename(path).lower()):
        squeezed = told.replace("_", "").replace("-", "")
        for name, collective in _NAMES.items():
            if name in squeezed:
                return collective
    told = {line[2] for line in lines}
    ratios = [float(x[5]) / float(x[4]) for x in lines if float(x[4]) > _TELLING]
    if ratios and told == {"sum"}:
        ratio = sorted(ratios)[len(ratios) // 2]
        return "all_reduce" if ratio > 1.5 * (num_gpus - 1) / num_gpus else "reduce_scatter"
    raise InputError(
        f"{plain(path)} must tell which collective was timed but does not; put one of "
        f"{', '.join(_NAMES)} into its name"
    )


def _read_csv(path: str) -> list[Found]:
    rows = read_csv(path)
    require_columns(path, rows, {"nccl-tests": _COLUMNS})
    found: dict[str, Found] = {}
    for number, cells in enumerate(rows, start=2):
        device = str(cells["gpu"])
        one = found.setdefault(device, Found(device=device))
        collective = _NAMES.get(str(cells["collective"]).replace("_", ""))
        if collective is None:
            one.left_out[str(cells["collective"])] += 1
            continue
        read = RowReader(path, number, cells)
        hosts, gpus = read.count("nodes") if cells["nodes"] else 0, read.count("gpus")
        timed, rated = (cells[x] not in _NONE for x in ("time_us", "busbw_GBps"))
        if not hosts or gpus < 2 or gpus % hosts or cells["bytes"] in _NONE or not timed | rated:
            one.left_out["rows without hosts, bytes or time"] += 1
            continue
        size = read.count("bytes")
        if timed:
            seconds = read.amount("time_us") * 1e-6
        else:
            passes = 2 if collective == "all_reduce" else 1
            seconds = passes * (gpus - 1) / gpus * size / (read.amount("busbw_GBps") * 1e9)
        one.collectives.append([collective, hosts, gpus, size, seconds])
    return list(found.values())

"""Problem files in the form of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism.

Models: the JSON of github.com/google/iopddl, plain or gzipped. Every node has a half-open interval
and a list of whole costs and of whole usages; every edge has two nodes and its matrix row by row; a
cost of 10**18 or more forbids.
Assumes: files repeat few distinct lists very often, so a list is decoded once and its array shared.
Whole numbers from 2**53 on are refused, since float64 does not hold all of them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from typing import IO

import msgspec
import numpy as np
from msgspec import Struct

from search.errors import ProblemError
from search.problem import CostEdge, Problem
from search.problem.checks import EXACT_LIMIT

# A cost from here on forbids; so do files that this writes.
FORBIDDEN = 10**18
EXACT = int(EXACT_LIMIT)
_LARGEST = 2**63 - 1
# Unpacked: a few megabytes of gzip may hold gigabytes. [B]
LARGEST_FILE = 2**30
_GZIP_MAGIC = b"\x1f\x8b"
_HINT = "compare it with the files of github.com/google/iopddl"
_INTEGERS = msgspec.json.Decoder(list[int])


class _Nodes(msgspec.Struct):
    intervals: list[msgspec.Raw]
    costs: list[msgspec.Raw]
    usages: list[msgspec.Raw]


class _Edges(msgspec.Struct):
    nodes: list[msgspec.Raw]
    costs: list[msgspec.Raw]


class _Body(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    usage_limit: int | None = None
    name: str = ""


class _Content(msgspec.Struct):
    problem: _Body


class ContestFile(Struct, frozen=True, kw_only=True):
    """A problem and what its file calls it.

    Parameters
    ----------
    problem
        The problem.
    name
        The name that the file gives; it may be empty.
    """

    problem: Problem
    name: str


def read_problem(path: str | os.PathLike[str]) -> ContestFile:
    """Read a problem file, plain or gzipped, whatever its name.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    ProblemError
        When the file cannot be read or is not in the contest's form.
    """
    try:
        with open(path, "rb") as file:
            data = _limited(file, "file")
    except (OSError, ValueError) as error:
        if isinstance(error, ProblemError):
            raise
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ProblemError(
            f"{path} cannot be read ({reason}); check the path and its permissions"
        ) from None
    try:
        return _parsed_problem(_unzipped(data))
    except ProblemError as error:
        raise ProblemError(f"in {path}, {error}") from None


def _unzipped(data: bytes) -> bytes:
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return _limited(file, "gzip data")
    except (EOFError, OSError, zlib.error) as error:
        reason = str(error).rstrip(".")
        raise ProblemError(
            f"the gzip data must be whole, but is cut short or damaged ({reason}); fetch or write"
            " the file again"
        ) from None


def _limited(file: IO[bytes] | gzip.GzipFile, what: str) -> bytes:
    """All that a file holds, unless it is more than memory should be spent on."""
    data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ProblemError(
            f"the {what} must hold at most {LARGEST_FILE // 2**30} GiB, but holds more; cut the"
            " problem into smaller ones"
        )
    return data


def _decode(data: bytes) -> _Body:
    try:
        return msgspec.json.decode(data, type=_Content).problem
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        place = f"at {place.rstrip('`')}" if place else "at the top"
        raise ProblemError(
            f"the contest's form is not kept {place} ({what[:1].lower()}{what[1:]}); {_HINT}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ProblemError(
            f"the text must be JSON from beginning to end, but is not ({error}); fetch or write the"
            " file again"
        ) from None


def _parsed_problem(data: bytes) -> ContestFile:
    body = _decode(data)
    nodes, edges = body.nodes, body.edges
    _check_counts(nodes, edges)
    known: dict[bytes, np.ndarray] = {}
    costs = [
        _array(raw, f"costs of node {v}", known, least=1 - EXACT)
        for v, raw in enumerate(nodes.costs)
    ]
    # not those of costs: what forbids as a cost is too much as a usage
    known_usages: dict[bytes, np.ndarray] = {}
    usages = [
        _array(raw, f"usages of node {v}", known_usages, least=0, forbidding=False)
        for v, raw in enumerate(nodes.usages)
    ]
    limit = body.usage_limit
    if limit is not None and not 0 <= limit <= _LARGEST:
        raise ProblemError(
            f"the usage limit must lie between 0 and 2**63 - 1, but is {_cut_value(limit)};"
            " leave it out for no limit"
        )
    problem = Problem(
        costs=tuple(costs),
        edges=tuple(_edges(edges, [c.size for c in costs], known)),
        usages=tuple(usages),
        intervals=tuple(_interval(raw, v) for v, raw in enumerate(nodes.intervals)),
        usage_limit=limit,
    )
    return ContestFile(problem=problem, name=body.name)


def _check_counts(nodes: _Nodes, edges: _Edges) -> None:
    if not nodes.costs:
        raise ProblemError(f"a problem must have at least one node, but has none; {_HINT}")
    for what, count, of, wanted in (
        ("intervals", len(nodes.intervals), "nodes", len(nodes.costs)),
        ("lists of usages", len(nodes.usages), "nodes", len(nodes.costs)),
        ("lists of costs", len(edges.costs), "edges", len(edges.nodes)),
    ):
        if count != wanted:
            raise ProblemError(
                f"there must be as many {what} as {of}, that is {wanted}, but there are {count};"
                f" give one for each of the {of}"
            )


def _array(
    raw: msgspec.Raw,
    label: str,
    known: dict[bytes, np.ndarray],
    *,
    least: int,
    forbidding: bool = True,
) -> np.ndarray:
    """The list as a read-only array, the same one for the same text."""
    text = bytes(raw)
    array = known.get(text)
    if array is not None:
        return array
    values = _integers(text, label)
    if not values:
        raise ProblemError(
            f"the {label} must be at least one number, but the list is empty; give one for each"
            " candidate or pair of candidates"
        )
    low, high = min(values), max(values)
    if low < least or high > _LARGEST:
        rule = "at least 0" if least == 0 else "above -2**53"
        raise ProblemError(
            f"the {label} must be {rule} and fit in 64 bits, but one is"
            f" {_cut_value(low if low < least else high)}; correct that entry or use a larger unit"
        )
    whole = np.array(values, dtype=np.int64)
    forbidden = whole >= FORBIDDEN if forbidding else np.zeros(whole.shape, dtype=bool)
    inexact = (whole >= EXACT) & ~forbidden
    if inexact.any():
        also = ", or at least 10**18 (forbidden)" if forbidding else ""
        raise ProblemError(
            f"the {label} must be below 2**53, where sums are exact{also}, but one is"
            f" {whole[inexact][0]}; use a larger unit"
        )
    array = np.where(forbidden, np.inf, whole.astype(np.float64))
    array.setflags(write=False)
    known[text] = array
    return array


def _integers(text: bytes, label: str) -> list[int]:
    try:
        return _INTEGERS.decode(text)
    except ValueError as error:
        raise ProblemError(
            f"the {label} must be a list of whole numbers without a fraction, but"
            f" {_stranger(text, str(error))}; correct that entry"
        ) from None


def _stranger(text: bytes, reason: str) -> str:
    """What is there instead of a list of whole numbers."""
    try:
        value = msgspec.json.decode(text)
    except ValueError:  # numbers of thousands of digits, text in another encoding
        return f"are not ({reason.partition(' - at')[0].lower()})"
    if not isinstance(value, list):
        return f"they are {_cut_value(value)}"
    strange = next(v for v in value if isinstance(v, bool) or not isinstance(v, int))
    return f"one is {_cut_value(strange)}"


def _cut_value(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _interval(raw: msgspec.Raw, node: int) -> tuple[int, int] | None:
    """A half-open interval; None where the node is never live."""
    bounds = _integers(bytes(raw), f"bounds of the interval of node {node}")
    if not bounds:
        return None
    if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] <= _LARGEST:
        raise ProblemError(
            f"the interval of node {node} must be [start, end) with 0 <= start <= end < 2**63, but"
            f" is {_cut_value(bounds)}; correct it, or give [] for a node that is never live"
        )
    return None if bounds[0] == bounds[1] else (bounds[0], bounds[1])


def _edges(
    edges: _Edges, sizes: Sequence[int], known: dict[bytes, np.ndarray]
) -> Iterable[CostEdge]:
    """The edges; those with the same list and shape share one matrix."""
    matrices: dict[tuple[int, int], np.ndarray] = {}
    for number, (raw, costs) in enumerate(zip(edges.nodes, edges.costs, strict=True)):
        pair = _integers(bytes(raw), f"nodes of edge {number}")
        if len(pair) != 2 or pair[0] == pair[1] or not all(0 <= v < len(sizes) for v in pair):
            raise ProblemError(
                f"the nodes of edge {number} must be two different ones out of 0 to"
                f" {len(sizes) - 1}, but are {_cut_value(pair)}; add a cost that concerns one node"
                " to that node"
            )
        source, target = pair
        flat = _array(costs, f"costs of edge {number}", known, least=1 - EXACT)
        rows, columns = sizes[source], sizes[target]
        if flat.size != rows * columns:
            raise ProblemError(
                f"the costs of edge {number} from node {source} to node {target} must be {rows} x"
                f" {columns} = {rows * columns} numbers, row by row, but are {flat.size}; give one"
                " for each pair of candidates"
            )
        # `known` keeps every array, so that no id is taken twice
        key = (id(flat), rows)
        if key not in matrices:
            matrices[key] = flat.reshape(rows, columns)
        yield CostEdge(source=source, target=target, matrix=matrices[key])

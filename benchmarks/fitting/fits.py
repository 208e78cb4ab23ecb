"""Robust fits of efficiency surfaces and bandwidth shares to published timings.

Each surface is fitted by robust least squares on the logarithm of seconds, on three quarters of the
rows (chosen by a hash of the shape), and judged on the rest. Per source, a constant is fitted along
with it: what the publisher's way of timing adds to every kernel, such as the launch; it is not part
of the surface. A source whose library did not look for the best algorithm may also be slower by a
fitted factor: it then teaches how time depends on the shape, and the others teach the level. A weak
pull towards round figures keeps coefficients that the data do not tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.fitting import data as sd
from benchmarks.fitting.data import Floats, Timings
from benchmarks.fitting.traffic import Traffic
from costmodels.compute.attention import fitted_time
from costmodels.compute.surface import Surface
from costmodels.compute.work import TRAFFIC, Work

# Start and centre of the pull, lower and upper bound.
RANGES: dict[str, tuple[float, float, float]] = {
    "efficiency": (0.8, 0.05, 1.1),
    "tile_exponent": (0.15, 0.02, 1.0),
    "blocks_per_sm": (1.5, 1.0, 4.0),
    "quantisation": (0.4, 0.05, 1.0),
    "split_depth": (512.0, 16.0, 8192.0),
    "prologue_depth": (48.0, 1.0, 512.0),
    "bandwidth": (0.7, 0.15, 1.0),
    "sharpness": (2.5, 1.0, 8.0),
    "strided": (1.3, 0.5, 4.0),
    "winograd": (0.8, 0.2, 1.3),
    "transform_bandwidth": (0.7, 0.15, 2.0),
    "direct": (0.1, 0.005, 1.0),
    "direct_bandwidth": (0.5, 0.02, 1.0),
    "epilogue_depth": (48.0, 1.0, 512.0),
    "softmax_width": (50.0, 1.0, 400.0),
}
PRODUCT = tuple(RANGES)[:8]
WRITTEN_PRODUCT = (*PRODUCT, "epilogue_depth")
ATTENTION = (
    *("efficiency", "blocks_per_sm", "quantisation", "prologue_depth", "epilogue_depth"),
    *("bandwidth", "sharpness", "softmax_width"),
)
# A tile is as wide as a head, so fewer of them run at a time.
ATTENTION_LEAST = {"blocks_per_sm": 0.4}
CONV = tuple(RANGES)[:11]
CONV_PLAIN = tuple(RANGES)[:9]
# How the tiles of a convolution occupy the device: the same kernels run forward and backward-data.
OCCUPANCY = ("tile_exponent", "blocks_per_sm", "quantisation", "split_depth", "prologue_depth")
LEVEL = tuple(name for name in CONV if name not in OCCUPANCY)
# Output positions (samples times output extents) at which errors are reported.
POSITIONS = (100.0, 300.0, 1e3, 3e3, 1e4, 1e5, np.inf)
PULL = 0.1
# Logarithmic error beyond which a row counts as an outlier.
OUTLIER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBin:
    """Held-out rows of up to so many output positions: predicted over measured, mean |error|."""

    most_positions: float
    rows: int
    median_ratio: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceError:
    """How well one source is met: rows, mean |relative error| and mean log error held out."""

    source: sd.TimingSource
    rows: int
    held_out_rows: int
    held_out_error: float
    held_out_bias: float
    offset: float
    factor: float = 1.0
    bins: Sequence[ErrorBin] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Surfaces by direction and the errors of the sources they were fitted to."""

    surfaces: Mapping[str, Surface]
    errors: Sequence[SourceError]


@dataclass(slots=True, kw_only=True)
class _Problem:
    """The vector of unknowns: coefficients by direction, offsets by source, free factors."""

    timings: Sequence[Timings]
    names: Mapping[str, Sequence[str]]
    fixed: Mapping[str, Surface]
    slower: frozenset[str]
    laden: frozenset[str]
    least: Mapping[str, float]
    most: Mapping[str, float]
    keys: list[tuple[str, str]] = field(init=False)
    sources: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [(d, name) for d, names in self.names.items() for name in names]
        self.sources = sorted({t.source.name for t in self.timings})

    def bounds(self) -> tuple[Floats, Floats, Floats]:
        """Logarithms of start, lower and upper bound."""
        ranges = [
            (RANGES[n][0], self.least.get(n, RANGES[n][1]), self.most.get(n, RANGES[n][2]))
            for _, n in self.keys
        ]
        for source in self.sources:
            least = min(t.seconds.min() for t in self.timings if t.source.name == source)
            ranges.append((0.5 * least, 1e-8, 0.97 * least))
        ranges += [(1.1, 0.8, 3.0) for source in self.sources if source in self.slower]
        ranges += [(1.1, 1.0, 5.0) for source in self.sources if source in self.laden]
        start, low, high = np.log(np.array(ranges)).T
        return np.clip(start, low + 1e-6, high - 1e-6), low, high

    def unpack(
        self, vector: Floats
    ) -> tuple[dict[str, Surface], dict[str, float], dict[str, float], dict[str, float]]:
        """Surfaces, offsets, factors, and factors of `beside` of a vector of logarithms."""
        values = np.exp(vector)
        chosen: dict[str, dict[str, Any]] = {d: {} for d in self.names}
        for (direction, name), value in zip(self.keys, values, strict=False):
            chosen[direction][name] = float(value)
        surfaces = {d: replace(self.fixed[d], **c) for d, c in chosen.items()}
        rest = values[len(self.keys) :]
        offsets = dict(zip(self.sources, map(float, rest), strict=False))
        free = [source for source in self.sources if source in self.slower]
        rest = rest[len(self.sources) :]
        factors = dict(zip(free, map(float, rest), strict=False))
        laden = [source for source in self.sources if source in self.laden]
        loads = dict(zip(laden, map(float, rest[len(free) :]), strict=True))
        return surfaces, offsets, factors, loads

    def predict(self, vector: Floats, timings: Timings) -> Floats:
        """What the source would have measured. [s]"""
        surfaces, offsets, factors, loads = self.unpack(vector)
        seconds = np.zeros(timings.seconds.shape)
        for direction, work in timings.parts.items():
            # A product was timed as a forward pass, whichever surface it informs.
            surface = surfaces.get(direction) or surfaces["any"]
            seconds = seconds + fitted_time(surface, work, timings.device, timings.precision)
        name = timings.source.name
        beside = loads.get(name, 1.0) * timings.beside
        return offsets[name] + beside + factors.get(name, 1.0) * seconds


def fit(
    timings: Sequence[Timings],
    names: Mapping[str, Sequence[str]],
    *,
    fixed: Mapping[str, Surface] | None = None,
    slower: frozenset[str] = frozenset(),
    laden: frozenset[str] = frozenset(),
    least: Mapping[str, float] | None = None,
    most: Mapping[str, float] | None = None,
    even: bool = False,
) -> Fitted:
    """Fit the named coefficients of one surface per direction to all timings at once.

    Parameters
    ----------
    timings
        Rows to fit to.
    names
        Coefficients to fit, by direction.
    fixed
        Surfaces that hold the other coefficients.
    slower
        Names of sources whose times may be slower by a factor.
    laden
        Names of sources where what was timed beside may take a multiple of what is known.
    least, most
        Bounds other than those of `RANGES`.
    even
        Whether every source weighs the same. Otherwise it weighs as the square root of its rows.
    """
    centre: dict[str, Any] = {name: RANGES[name][0] for name in PRODUCT}
    start = {direction: Surface(**centre) for direction in names}
    problem = _Problem(
        timings=timings,
        names=names,
        fixed=fixed or start,
        slower=slower,
        laden=laden,
        least=least or {},
        most=most or {},
    )
    seen = [_timings_of(t, ~t.held_out) for t in timings if not t.held_out.all()]
    counts = {s: sum(t.seconds.size for t in seen if t.source.name == s) for s in problem.sources}
    # Residuals are squared, so these are square roots of weights.
    power = 0.5 if even else 0.25
    weights = {s: (max(counts.values()) / n) ** power for s, n in counts.items() if n}
    begin, low, high = problem.bounds()
    pulled = np.zeros(begin.size)
    pulled[: len(problem.keys)] = PULL

    def residuals(vector: Floats) -> Floats:
        parts = [
            np.log(problem.predict(vector, t) / t.seconds) * weights[t.source.name] for t in seen
        ]
        return np.concatenate([*parts, pulled * (vector - begin)])

    best = least_squares(
        residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, diff_step=1e-3
    )
    surfaces, *_ = problem.unpack(best.x)
    return Fitted(surfaces=surfaces, errors=_errors(problem, best.x))


def _errors(problem: _Problem, vector: Floats) -> list[SourceError]:
    _, offsets, factors, _ = problem.unpack(vector)
    result = []
    for name in problem.sources:
        own = [t for t in problem.timings if t.source.name == name]
        logs = [np.log(problem.predict(vector, t) / t.seconds)[t.held_out] for t in own]
        log = np.concatenate(logs)
        result.append(
            SourceError(
                source=own[0].source,
                rows=sum(t.seconds.size for t in own),
                held_out_rows=log.size,
                held_out_error=float(np.abs(np.expm1(log)).mean()) if log.size else 0.0,
                held_out_bias=float(log.mean()) if log.size else 0.0,
                offset=offsets[name],
                factor=factors.get(name, 1.0),
                bins=_error_bins(
                    np.concatenate([_output_positions(t)[t.held_out] for t in own]), log
                ),
            )
        )
    return result


def _output_positions(timings: Timings) -> Floats:
    work = next(iter(timings.parts.values()))
    return np.broadcast_to(work.outputs / work.filters, timings.seconds.shape)


def _error_bins(positions: Floats, log: Floats) -> tuple[ErrorBin, ...]:
    found = []
    for least, most in pairwise((0.0, *POSITIONS)):
        inside = log[(positions > least) & (positions <= most)]
        if inside.size:
            found.append(
                ErrorBin(
                    most_positions=most,
                    rows=inside.size,
                    median_ratio=float(np.exp(np.median(inside))),
                    error=float(np.abs(np.expm1(inside)).mean()),
                )
            )
    return tuple(found)


def _timings_of(timings: Timings, rows: NDArray[np.bool_]) -> Timings:
    def pick(work: Work) -> Work:
        changed: dict[str, Any] = {}
        for name in work.__struct_fields__:
            value = getattr(work, name)
            if isinstance(value, np.ndarray) and value.size == rows.size:
                changed[name] = value[rows]
            elif name.endswith("_extents"):
                changed[name] = tuple(extent[rows] for extent in value)
        return replace(work, **changed)

    return dataclasses.replace(
        timings,
        parts={direction: pick(work) for direction, work in timings.parts.items()},
        seconds=timings.seconds[rows],
        held_out=timings.held_out[rows],
        beside=np.broadcast_to(timings.beside, rows.shape)[rows],
    )


def fit_share(rows: Traffic, memory_bandwidth: float) -> tuple[float, SourceError]:
    """Share of the memory bandwidth that one memory-bound pass reaches, by one source."""
    reads, writes, extra = TRAFFIC[(rows.operation, rows.direction)]
    moved = 4 * (reads * rows.inputs + writes * rows.outputs) + extra * rows.outputs
    ideal = moved / memory_bandwidth

    def logs(vector: Floats, mask: NDArray[np.bool_]) -> Floats:
        offset, share = np.exp(vector)
        errors: Floats = np.log((offset + ideal[mask] / share) / rows.seconds[mask])
        return errors

    high = np.log([rows.seconds.min(), 1.0])
    low = np.log([1e-8, 0.05])
    start = np.clip(np.log([rows.seconds.min() / 2, 0.7]), low, high - 1e-6)
    best = least_squares(
        logs, start, bounds=(low, high), args=(~rows.held_out,), loss="soft_l1", f_scale=0.1
    )
    log = logs(best.x, rows.held_out)
    error = SourceError(
        source=rows.source,
        rows=rows.seconds.size,
        held_out_rows=log.size,
        held_out_error=float(np.abs(np.expm1(log)).mean()) if log.size else 0.0,
        held_out_bias=float(log.mean()) if log.size else 0.0,
        offset=float(np.exp(best.x[0])),
    )
    return float(np.exp(best.x[1])), error

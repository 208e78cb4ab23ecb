"""Consecutive layers that are split alike, as one row: a plan is read in runs, not in layers.

Layers are split alike when they cut their outputs into the same blocks. The features of an output
are `filter` in layers with a weight matrix, and `channel` or `head` in all others, so a convolution
of 4 filter blocks and the batch norm of 4 channel blocks after it belong to one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from costmodels.distribution import Distribution
from planner.plan import LayerPlan, Plan

# Layers whose `channel` is summed over; elsewhere it indexes the output.
_WEIGHT_MATRIX_KINDS = frozenset({"conv", "linear", "embedding"})

# More runs than this are listed by their places in blocks, or as their main ones.
MAX_RUNS = 24
# Splits of less than this part of the time are not named in one line: they would read "0 %".
LEAST_NAMED = 0.005

Split = tuple[tuple[str, tuple[int, ...]], ...]


class LayerRun(Struct, frozen=True, kw_only=True):
    """Consecutive layers that are split alike.

    Parameters
    ----------
    key
        Letter of the split, the same wherever the split comes back.
    label
        The split level by level, such as "host: height 4 | network: sample 16".
    short
        The split over all levels, such as "sample 16 x height 4".
    layers
        The layers in the order of the forward pass.
    span
        The first and the last layer.
    """

    key: str
    label: str
    short: str
    layers: tuple[LayerPlan, ...]
    span: str

    @property
    def time(self) -> float:
        """All but gradient all-reduces. [s]"""
        return sum(layer.time for layer in self.layers)


def split_of(layer: LayerPlan) -> Split:
    """What two layers have in common when they are split alike."""
    return tuple(
        sorted(
            (_output_dim(layer.kind, dim), tuple(degrees))
            for dim, degrees in layer.degrees.items()
            if math.prod(degrees) > 1
        )
    )


def _output_dim(kind: str, dim: str) -> str:
    return "filter" if dim in ("channel", "head") and kind not in _WEIGHT_MATRIX_KINDS else dim


def group_runs(layers: Iterable[LayerPlan]) -> list[tuple[LayerPlan, ...]]:
    """Cut layers in order into the longest runs that are split alike."""
    groups: list[list[LayerPlan]] = []
    for layer in layers:
        if groups and split_of(groups[-1][0]) == split_of(layer):
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return [tuple(group) for group in groups]


def letter(index: int) -> str:
    """A, B, ..., Z, AA, AB, ... for 0, 1, ..."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def runs_of_plan(plan: Plan) -> list[LayerRun]:
    """The runs of a plan in the order of the forward pass.

    Splits are lettered by the time that is spent under them, so that A is the main one.
    """
    groups = group_runs(plan.layers.values())
    times: dict[Split, float] = {}
    kinds: dict[Split, list[LayerPlan]] = {}
    for group in groups:
        split = split_of(group[0])
        times[split] = times.get(split, 0.0) + sum(layer.time for layer in group)
        kinds.setdefault(split, []).extend(group)
    order = sorted(times, key=lambda s: -times[s])  # stable: the first one of equals comes first
    keys = {split: letter(i) for i, split in enumerate(order)}
    labels = {split: _split_labels(split, kinds[split], plan) for split in order}
    runs = []
    for group in groups:
        split = split_of(group[0])
        label, short = labels[split]
        first, last = group[0].name, group[-1].name
        span = first if len(group) == 1 else f"{first} .. {last}"
        runs.append(LayerRun(key=keys[split], label=label, short=short, layers=group, span=span))
    return runs


def runs_of_blocks(runs: Sequence[LayerRun]) -> list[LayerRun]:
    """Runs at the same place of repeated blocks, split alike, as one run.

    Layers are at the same place when their names differ in numbers only: those of `h.0.mlp` to
    `h.11.mlp`.
    """
    together: dict[tuple[str, tuple[str, ...]], list[LayerRun]] = {}
    for run in runs:
        place = tuple(_without_numbers(layer.name) for layer in run.layers)
        together.setdefault((run.key, place), []).append(run)
    found = []
    for alike in together.values():
        layers = tuple(layer for run in alike for layer in run.layers)
        span = alike[0].span if len(alike) == 1 else _span_of_blocks(alike[0])
        found.append(replace(alike[0], layers=layers, span=span))
    return found


def folded_blocks(runs: Sequence[LayerRun]) -> tuple[list[LayerRun], Mapping[str, int]]:
    """Runs without the layers that repeat those of an earlier block, and how often all others are.

    Layers repeat one another when they are at the same place of their blocks, split alike, and take
    the same time to three digits.
    """
    seen: dict[tuple[object, ...], str] = {}
    counts: dict[str, int] = {}
    kept = []
    for run in runs:
        layers = []
        for layer in run.layers:
            times = (layer.forward_s, layer.backward_s, layer.reduction_s, layer.shuffle_s)
            place = _without_numbers(layer.name)
            first = seen.setdefault((run.key, place, *(f"{t:.2e}" for t in times)), layer.name)
            counts[first] = counts.get(first, 0) + 1
            if first == layer.name:
                layers.append(layer)
        if layers:
            kept.append(replace(run, layers=tuple(layers)))
    return kept, counts


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _span_of_blocks(run: LayerRun) -> str:
    """The first and the last layer of a run, whatever the block."""
    first, last = (_without_numbers(run.layers[place].name) for place in (0, -1))
    return first if len(run.layers) == 1 else f"{first} .. {last}"


def _split_labels(split: Split, layers: Sequence[LayerPlan], plan: Plan) -> tuple[str, str]:
    """How a split is written, by level and over all levels; the dims as the layers call them."""
    distribution = Distribution(degrees=dict(split), shape=layers[0].shape)
    names: dict[str, None] = {}
    for layer in layers:
        for dim, degrees in layer.degrees.items():
            if math.prod(degrees) > 1 and _output_dim(layer.kind, dim) == "filter":
                names[dim] = None
    features = "/".join(sorted(names, key=("filter", "channel", "head").index))
    by_level = distribution.describe(plan.level_names)
    over_all = str(distribution)
    if features:
        by_level = by_level.replace("filter ", f"{features} ")
        over_all = over_all.replace("filter ", f"{features} ")
    return by_level, over_all


def shares(plan: Plan) -> Mapping[str, tuple[LayerRun, int, float]]:
    """For each letter a run that shows the split, its layers and its time, most time first. [s]"""
    result: dict[str, tuple[LayerRun, int, float]] = {}
    for run in runs_of_plan(plan):
        _, count, seconds = result.get(run.key, (run, 0, 0.0))
        result[run.key] = (run, count + len(run.layers), seconds + run.time)
    return dict(sorted(result.items(), key=lambda item: (len(item[0]), item[0])))


def main_split(plan: Plan, most: int = 2) -> str:
    """The splits with most time, such as "sample 16 x height 4 (82 %), filter 4 (12 %)".

    Parameters
    ----------
    plan
        The plan.
    most
        How many to name; the others are counted. [items]
    """
    times: dict[str, float] = {}
    for run, _, seconds in shares(plan).values():
        # splits at unlike levels may be one in short
        times[run.short] = times.get(run.short, 0.0) + seconds
    rows = sorted(times.items(), key=lambda row: -row[1])
    total = sum(times.values())
    if len(rows) == 1 or total <= 0.0:
        return rows[0][0]
    main = [(short, time / total) for short, time in rows[:most] if time >= LEAST_NAMED * total]
    text = ", ".join(f"{short} ({100.0 * share:.0f} %)" for short, share in main)
    return f"{text}, {len(rows) - len(main)} more" if len(rows) > len(main) else text

"""Stages from their entries: which layers, on which devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy.blocks import cut_stages
from costmodels.strategy.entries import Description, StageEntry
from costmodels.strategy.strategy import Stage
from costmodels.strategy.tree import Node, find_nodes, unknown_pattern
from costmodels.strategy.usual import pipeline_stages


def device_text(devices: tuple[int, int]) -> str:
    """Devices as they are written, such as "0-7"."""
    first, end = devices
    return str(first) if end == first + 1 else f"{first}-{end - 1}"


def block_shape(
    devices: tuple[int, int], shape: Sequence[int], label: str = "a stage"
) -> tuple[int, ...]:
    """Members of each level that some neighbouring devices are.

    Inner levels must be whole before a further child of the next level begins.

    Parameters
    ----------
    devices
        The first device and the one after the last.
    shape
        All devices: members of each level, from the inside out. [items]
    label
        What the error message calls them.
    """
    first, end = devices
    total = math.prod(shape)
    if not 0 <= first < end <= total:
        raise InputError.rule(
            f"{label}",
            f"be on devices 0 to {total - 1}",
            f"on {device_text(devices)}",
            "change its devices or ask for more GPUs",
        )
    result, left, below = [], end - first, 1
    fits = True
    for size in shape:
        part = size if left % size == 0 else left
        # what is less than a child of a level lies inside one, wherever that is
        fits &= part == 1 or (first % below == 0 and first // below % size + part <= size)
        result.append(part)
        left //= part
        below *= size
    if not fits:
        raise InputError(
            f"{label} must be on whole blocks of the cluster, whose levels have "
            f"{' x '.join(map(str, shape))} members (inside out), but is on devices "
            f"{device_text(devices)}; use all devices of a level before more of the next"
        )
    return tuple(result)


def selected(tree: Node, pattern: str, label: str) -> tuple[Node, ...]:
    """The nodes that a pattern fits.

    Parameters
    ----------
    tree
        The layers of the network.
    pattern
        What to look for.
    label
        What error messages call the entry that has the pattern.

    Raises
    ------
    InputError
        When it fits none.
    """
    nodes = find_nodes(tree, pattern)
    if not nodes:
        raise InputError(
            f"{label} must name layers of the network but '{pattern}' fits none; the closest are "
            f"{unknown_pattern(tree, pattern)}"
        )
    return nodes


def _layers_of(tree: Node, patterns: Sequence[str], label: str) -> dict[str, None]:
    return {
        name: None
        for pattern in patterns
        for node in selected(tree, pattern, label)
        for name in node.own_layers
    }


def _stage_layers(tree: Node, graph: Graph, entries: Sequence[StageEntry]) -> list[list[str]]:
    """The layers of each stage, in the order of the forward pass."""
    stage_of: dict[str, int] = {}
    for number, entry in enumerate(entries):
        for name in _layers_of(tree, entry.layers, entry.label):
            if name in stage_of:
                before = entries[stage_of[name]].label
                raise InputError.rule(
                    f"layer '{name}'",
                    "be in one stage",
                    f"in {before} and {entry.label}",
                    "take it out of one",
                )
            stage_of[name] = number
    left = [layer.name for layer in graph.compute_layers if layer.name not in stage_of]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise InputError(
            f"every layer must be in a stage but '{left[0]}'{more} is in none; add it to the "
            f"layers of {entries[0].label} or a later one"
        )
    parts: list[list[str]] = [[] for _ in entries]
    for layer in graph.compute_layers:
        here = stage_of[layer.name]
        for edge in graph.producers[layer.name]:
            source = stage_of.get(edge.source, 0)
            if source > here:
                raise InputError(
                    f"stages must be in the order of the forward pass but layer '{layer.name}' of "
                    f"{entries[here].label} reads '{edge.source}' of {entries[source].label}; "
                    "change their order or move the layer"
                )
        parts[here].append(layer.name)
    return parts


def _all_or_none(entries: Sequence[StageEntry], having: Sequence[bool], what: str) -> bool:
    """Whether all entries have something, which none must have if one does not."""
    if any(having) and not all(having):
        first, other = entries[having.index(True)], entries[having.index(False)]
        raise InputError(
            f"all stages or none must have {what} but {first.label} has and {other.label} has "
            "not; add them"
        )
    return any(having)


def _check_groups(stages: Sequence[Stage], entries: Sequence[StageEntry]) -> None:
    for i, (stage, entry) in enumerate(zip(stages, entries, strict=True)):
        for other, before in zip(stages[:i], entries, strict=False):
            (a, b), (c, d) = stage.group, other.group
            if (a, b) != (c, d) and a < d and c < b:
                raise InputError(
                    f"two stages must share all devices or none but {before.label} has "
                    f"{device_text(other.group)} and {entry.label} has "
                    f"{device_text(stage.group)}; separate them"
                )


def place_stages(
    description: Description,
    tree: Node,
    graph: Graph,
    shape: Sequence[int],
    weights: Mapping[str, float] | None = None,
) -> tuple[Stage, ...]:
    """The stages of a description.

    Parameters
    ----------
    description
        Its entries.
    tree, graph
        The network.
    shape
        All devices: members of each level, from the inside out. [items]
    weights
        What a network that is cut evenly is balanced by, see `cut_stages`.
    """
    entries = description.stages
    if not entries:
        parts = cut_stages(graph, description.groups * description.chunks, weights)
        return pipeline_stages(parts, shape, description.groups)
    if _all_or_none(entries, [bool(entry.layers) for entry in entries], "layers"):
        chosen = _stage_layers(tree, graph, entries)
    else:
        chosen = [list(part) for part in cut_stages(graph, len(entries), weights)]
    if _all_or_none(entries, [entry.devices is not None for entry in entries], "devices"):
        stages = tuple(
            Stage(
                layers=tuple(part),
                first_device=entry.devices[0],
                shape=block_shape(entry.devices, shape, entry.label),
            )
            for part, entry in zip(chosen, entries, strict=True)
            if entry.devices is not None
        )
    else:
        stages = pipeline_stages(chosen, shape, len(entries))
    _check_groups(stages, entries)
    return tuple(
        replace(stage, recompute=_segments(tree, stage, entry))
        for stage, entry in zip(stages, entries, strict=True)
    )


def _segments(tree: Node, stage: Stage, entry: StageEntry) -> tuple[tuple[str, ...], ...]:
    """The segments of a stage entry, each in the order of the forward pass."""
    segments: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for patterns in entry.recompute:
        chosen = _layers_of(tree, patterns, entry.label)
        wrong = next((n for n in chosen if n not in stage.layers or n in seen), None)
        if wrong is not None:
            reason = "another segment" if wrong in seen else "another stage"
            raise InputError(
                f"{entry.label} must recompute layers of its own, each in one segment, but "
                f"'{wrong}' is of {reason}; take it out"
            )
        seen |= set(chosen)
        segments.append(tuple(name for name in stage.layers if name in chosen))
    return tuple(sorted(segments, key=lambda segment: stage.layers.index(segment[0])))

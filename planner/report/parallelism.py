"""The splits of a transformer in the terms of those who train them: data, tensor, context, expert.

Nothing of it is in a plan: it is read off the splits of the layers, and only where all of them are
split in that way.
"""

from __future__ import annotations

import math

from planner.plan import LayerPlan, Plan
from planner.report.runs import main_split

# Dims whose split is tensor parallelism.
_TENSOR = frozenset({"filter", "channel", "head"})
# Kinds whose work tensor parallelism shares out; all others may be split by sequence instead.
_SHARED_OUT = frozenset({"linear", "attention", "activation", "glu", "rotary", "loss"})


def split_words(plan: Plan) -> str:
    """How layers are split, in the shortest words that say it."""
    return (parallelism(plan) if plan.is_staged else "") or main_split(plan)


def parallelism(plan: Plan) -> str:
    """The splits as degrees, such as "data 32 x tensor 4 with sequence parallelism".

    Empty where the network has no attention, or where its layers are not all split like that.
    """
    ways = [(layer, _ways_of(layer)) for layer in plan.layers.values()]
    attention = [found for layer, found in ways if layer.kind == "attention"]
    if not attention or any(found != attention[0] for found in attention[1:]):
        return ""
    data, context, tensor, expert = attention[0]
    if expert > 1:
        return ""
    experts: set[tuple[int, int]] = set()
    sequence = False
    # the narrow layers of latent attention are whole: positions of its keys are of all heads
    latent = any(layer.kind == "rotary" and found[2] < tensor for layer, found in ways)
    cut = _SHARED_OUT - {"linear", "rotary"} if latent else _SHARED_OUT
    for layer, (samples, positions, features, apart) in ways:
        if "expert" in layer.degrees:
            experts.add((apart, features))
        elif samples != data or not _as_asked(
            positions, features, context, tensor, cut=layer.kind in cut
        ):
            return ""
        sequence |= positions > context
    if len(experts) > 1:
        return ""
    degrees = [("data", data), ("context", context), ("tensor", tensor)]
    for apart, features in experts:
        degrees.append(("expert", apart))
        if features != tensor:
            degrees.append(("expert tensor", features))
    text = " x ".join(
        f"{name} {degree}" for name, degree in degrees if degree > 1 or name == "expert tensor"
    )
    return f"{text} with sequence parallelism" if sequence else text


def _ways_of(layer: LayerPlan) -> tuple[int, int, int, int]:
    """Ways of samples, positions, features and experts; no other dim is split in transformers."""
    total = {dim: math.prod(degrees) for dim, degrees in layer.degrees.items()}
    features = math.prod(total.get(dim, 1) for dim in _TENSOR)
    return total.get("sample", 1), total.get("sequence", 1), features, total.get("expert", 1)


def _as_asked(positions: int, features: int, context: int, tensor: int, *, cut: bool) -> bool:
    """Whether a layer is split as context and tensor parallelism split it.

    Parameters
    ----------
    positions, features
        Ways of a layer. [ways]
    context, tensor
        The degrees of attention. [ways]
    cut
        Whether it must be cut by its features.
    """
    if cut:
        return positions == context and features == tensor
    return features in (1, tensor) and positions in (context, context * tensor)

"""A mixture of experts: the router, tokens on their way to experts, and back.

Between `dispatch` and `combine` a tensor has an axis of experts, and each expert has as many slots
for the tokens of a sample as are sent to it. A linear layer that reads such a tensor has a weight
for each expert. Expert parallelism is a split of that axis: where dispatching leaves the samples
split and the experts are split instead, the shuffle between both is the all-to-all; where
dispatching itself splits experts, its input is gathered and the outputs are summed up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import own_dims, relabel
from costmodels.graph.layer import Axis, Layer, Tensor


@layer_kind("router")
def router(name: str, inputs: Sequence[Tensor], *, experts: int, bias: bool = False) -> Layer:
    """Scores of the experts for every token; its weight is not split, since a token needs them all.

    The choice of the best and the softmax of their scores take next to nothing, and are left out.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    experts
        Number of experts; with one, a gate. [items]
    bias
        Whether each expert has one.
    """
    (x,) = inputs
    kept = {a.name: a.extent for a in x.axes if a.name != "hidden"}
    channels = x.extent("hidden")
    dims = {**kept, "filter": experts, "channel": channels}
    y = [Axis(name=n, extent=e, dim=n) for n, e in kept.items()]
    return Layer(
        name=name,
        kind="router",
        operation="linear",
        dims=dims,
        inputs=(relabel(x, own_dims(x)),),
        output=Tensor(axes=(*y, Axis(name="hidden", extent=experts, dim="filter"))),
        weight_dims=("filter", "channel"),
        parameters=experts * channels + experts * bias,
        keeps_inputs=True,
        splittable=frozenset(kept),
    )


@layer_kind("dispatch")
def dispatch(
    name: str, inputs: Sequence[Tensor], *, experts: int, top_k: int, capacity: float = 1.0
) -> Layer:
    """Copies every token into a slot of each expert that the router chose for it.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    experts, top_k
        Number of experts, and how many a token is sent to. [items]
    capacity
        Slots of an expert over an even share of the tokens: the capacity factor where tokens are
        dropped, and else how much more than its share the busiest expert gets.
    """
    (x,) = inputs
    if not 1 <= top_k <= experts:
        raise InputError.rule(
            f"layer '{name}': top_k", f"be from 1 to the {experts} experts", top_k, "correct it"
        )
    if not 0 < capacity <= experts:
        raise InputError.rule(
            f"layer '{name}': capacity",
            f"be above 0 and at most the {experts} experts",
            f"{capacity:g}",
            "1 is an even share",
        )
    tokens = x.extent("sequence")
    # a product of floats may end just above a whole number
    slots = max(1, math.ceil(round(tokens * top_k * capacity / experts, 9)))
    axes = {a.name: a for a in x.axes}
    y = (
        Axis(name="sample", extent=x.extent("sample"), dim="sample"),
        Axis(name="sequence", extent=slots, dim="sequence"),
        Axis(name="expert", extent=experts, dim="expert"),
        Axis(name="hidden", extent=axes["hidden"].extent, dim="channel"),
    )
    dims = {
        "sample": x.extent("sample"),
        "sequence": tokens,
        "expert": experts,
        "channel": axes["hidden"].extent,
    }
    return Layer(
        name=name,
        kind="dispatch",
        dims=dims,
        inputs=(relabel(x, own_dims(x)),),
        output=Tensor(axes=y),
        # the token of each slot
        saved_bytes=8 * x.extent("sample") * slots * experts,
        splittable=frozenset(dims),
    )


@layer_kind("combine", num_inputs=2)
def combine(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Sums up what its experts made of each token, weighted by the scores, its second input."""
    y, scores = inputs
    if y.extent("expert") != scores.extent("hidden"):
        raise InputError(
            f"layer '{name}': the router must have a score for each of the {y.extent('expert')} "
            f"experts but has {scores.extent('hidden')}; correct the layers before it"
        )
    tokens = scores.extent("sequence")
    dims = {
        "sample": y.extent("sample"),
        "sequence": tokens,
        "expert": y.extent("expert"),
        "channel": y.extent("hidden"),
    }
    score_dims: dict[str, str | None] = {
        "sample": "sample",
        "sequence": "sequence",
        "hidden": "expert",
    }
    out = (
        Axis(name="sample", extent=dims["sample"], dim="sample"),
        Axis(name="sequence", extent=tokens, dim="sequence"),
        Axis(name="hidden", extent=dims["channel"], dim="channel"),
    )
    return Layer(
        name=name,
        kind="combine",
        dims=dims,
        inputs=(relabel(y, own_dims(y)), relabel(scores, score_dims)),
        output=Tensor(axes=out),
        keeps_inputs=True,
        splittable=frozenset(dims),
    )

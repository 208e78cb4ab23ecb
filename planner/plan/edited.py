"""Whether the splits of a plan are those of its figures and placements, told by a hash.

A plan may be edited and asked about again, which costs what was written. What shows or exports it
as it is takes its times, its memory and its placements from the file: those must be of its splits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from costmodels.errors import InputError
from planner.plan.carried import digest

if TYPE_CHECKING:
    from planner.plan.plan import Plan

# Its name among the hashes of a plan. Files without it cannot tell. Whoever adds fields to what is
# hashed raises the version of the files, and lets `planner.plan.older` take it out of those before.
NAME = "splits"


def splits_digest(plan: Plan) -> str:
    """SHA-256 of how a plan trains its network, and of where its tensors lie."""
    layers = {
        name: (dict(layer.degrees), layer.shape, layer.sharded, layer.shard_size)
        for name, layer in plan.layers.items()
    }
    more = (plan.gather_again, plan.ring_attention, plan.keep_products, plan.offload, plan.shares)
    return digest([layers, plan.stages, plan.schedule, more, plan.sharding])


def with_splits_digest(plan: Plan) -> Plan:
    """A plan that says what its splits are."""
    hashes: Mapping[str, str] = {**plan.hashes, NAME: splits_digest(plan)}
    return dataclasses.replace(plan, hashes=hashes)


def check_unedited(plan: Plan, where: str) -> Plan:
    """A plan whose figures and placements are those of its splits.

    Parameters
    ----------
    plan
        The plan.
    where
        What error messages call its file.

    Raises
    ------
    InputError
        When splits or placements were changed after the plan was made.
    """
    if plan.hashes.get(NAME, known := splits_digest(plan)) != known:
        raise InputError(
            f"{where} was edited: its times, memory and placements must be those of its splits but "
            "are of others; cost it with 'planner evaluate MODEL --strategy FILE -o NEW', and use "
            "what that writes"
        )
    return plan

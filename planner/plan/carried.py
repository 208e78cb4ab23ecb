"""What a plan was made for, and how it is told that something else is the same: by hash.

A plan carries the network and the cluster that are not built in, and every table of measured
times, so that its file can be used where theirs are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from costmodels.cluster import Cluster, Device
from costmodels.errors import InputError
from costmodels.graph import Network


class CarriedTable(Struct, frozen=True, kw_only=True):
    """A table of measured times: its name, and the text of its file."""

    name: str
    text: str


class Carried(Struct, frozen=True, kw_only=True):
    """What a plan needs that is not built in.

    Parameters
    ----------
    network, cluster
        Those it was made for; None where they are built in.
    runtime
        The figures of the runtime that differ from those of a runtime that says nothing.
    tables
        The measured times that it rests on, in the order in which they were given.
    """

    network: Network | None = None
    cluster: Cluster | None = None
    runtime: Mapping[str, Any] | None = None
    tables: tuple[CarriedTable, ...] = ()


NOTHING_CARRIED = Carried()


def leave_out_unsaid(document: MutableMapping[str, dict[str, object]]) -> None:
    """Take out of the document of a plan what only few plans say, and this one does not."""
    carried: Any = document["carried"]
    rows: list[tuple[Any, str]] = [
        (document, "shares"),
        (document, "idle_gpus"),
        (carried, "runtime"),
    ]
    if carried["cluster"] is not None:
        rows.append((carried["cluster"], "groups"))
    for place, name in rows:
        if not place[name]:
            del place[name]


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def network_digest(model: Network, batch: int) -> str:
    """SHA-256 of a network and a global batch."""
    return digest([model, batch])


def cluster_digest(cluster: Cluster) -> str:
    """SHA-256 of a cluster."""
    # whole numbers in fields of floats are floats, as they are when a file is read
    cluster = msgspec.convert(msgspec.to_builtins(cluster, enc_hook=dict), Cluster)
    stated: dict[str, object] = {
        "name": cluster.name,
        "levels": [structs.asdict(level) for level in cluster.levels],
        "host_level": cluster.host_level,
        "device": _stated_device(cluster.device),
    }
    if cluster.groups:
        stated["groups"] = [
            {
                "name": group.name,
                "hosts": group.hosts,
                "device": _stated_device(group.device),
                "levels": [structs.asdict(level) for level in group.levels],
            }
            for group in cluster.groups
        ]
    return digest(stated)


def _stated_device(device: Device) -> dict[str, object]:
    return {
        key: dict(value) if isinstance(value, Mapping) else value
        for key in device.__struct_fields__
        for value in [getattr(device, key)]
    }


def tables_digest(texts: Sequence[str]) -> str:
    """SHA-256 of the texts of tables of measured times."""
    return digest([hashlib.sha256(text.encode()).hexdigest() for text in texts])


def check_carried(
    carried: Carried, hashes: Mapping[str, str], batch: int, where: str, advice: str
) -> None:
    """Refuse what does not agree with the hashes of the plan that carries it.

    Parameters
    ----------
    carried
        What a plan carries.
    hashes
        Its hashes, by input.
    batch
        Its global batch. [samples]
    where
        What error messages call its file.
    advice
        What to do next.

    Raises
    ------
    InputError
        When one of them was changed.
    """
    found = {}
    if carried.network is not None:
        found["network"] = network_digest(carried.network, batch)
    if carried.cluster is not None:
        found["cluster"] = cluster_digest(carried.cluster)
    if carried.tables:
        found["tables"] = tables_digest([table.text for table in carried.tables])
    for what, value in found.items():
        if hashes.get(what) != value:
            noun = "tables that it carries" if what == "tables" else f"{what} that it carries"
            raise InputError(
                f"{where} is no valid plan: the {noun} must have the hash that the plan states but "
                f"was changed; {advice}"
            )

"""Networks as they are trained: with a padded vocabulary, or experts that are loaded unevenly."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.graph import LayerSpec, Network, build_graph


def _embedded(network: Network) -> tuple[int, set[str]]:
    """The rows of the largest table of tokens, and the layers whose features are its rows."""
    tables = [spec for spec in network.layers if spec.kind == "embedding"]
    if not tables:
        raise InputError(
            f"network '{network.name}': a padded vocabulary needs an embedding of tokens but it "
            "has none; leave --vocab-padding out"
        )
    rows = max(spec.options["rows"] for spec in tables)
    of_size = {
        spec.name
        for spec in network.layers
        if spec.options.get("rows") == rows
        or (spec.kind == "linear" and spec.options["filters"] == rows and _ends(network, spec))
    }
    return rows, of_size


def _ends(network: Network, head: LayerSpec) -> bool:
    """Whether nothing but a bias lies between a layer and the loss."""
    readers = [spec for spec in network.layers if head.name in spec.inputs]
    return bool(readers) and all(
        spec.kind == "loss" or (spec.kind == "bias" and _ends(network, spec)) for spec in readers
    )


def padded_vocabulary(network: Network, multiple: int) -> Network:
    """The network with a vocabulary rounded up to a multiple.

    Parameters
    ----------
    network
        A network with an embedding of tokens.
    multiple
        Such as 128 times the ways of tensor parallelism. [items]

    Raises
    ------
    InputError
        When it embeds no tokens.
    """
    rows, names = _embedded(network)
    padded = -(-rows // multiple) * multiple
    return _with_options(
        network,
        {
            spec.name: {"rows" if spec.kind == "embedding" else "filters": padded}
            for spec in network.layers
            if spec.name in names
        },
    )


def with_capacity(network: Network, capacity: float) -> Network:
    """The network with so many slots of an expert over an even share of the tokens.

    Parameters
    ----------
    network
        A network with experts.
    capacity
        See the kind "dispatch".

    Raises
    ------
    InputError
        When it has no experts.
    """
    sent = [spec.name for spec in network.layers if spec.kind == "dispatch"]
    if not sent:
        raise InputError(
            f"network '{network.name}': a capacity needs experts but it has none; leave "
            "--expert-capacity out"
        )
    changed = _with_options(network, {name: {"capacity": capacity} for name in sent})
    build_graph(changed, 1)
    return changed


def _with_options(network: Network, changes: dict[str, dict[str, object]]) -> Network:
    """The network with some options of some layers changed."""

    def changed() -> Iterator[LayerSpec]:
        for spec in network.layers:
            more = changes.get(spec.name)
            yield replace(spec, options={**spec.options, **more}) if more else spec

    return replace(network, layers=tuple(changed()))

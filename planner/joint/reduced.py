"""A network without the blocks that repeat what is known: what one costs, all that are alike do.

A block is what the layers of one number in their names make up, such as `h.3`. One that equals the
block before it, and reads as much of it as that one reads of its own, is left out; its layers are
represented by those of the block before.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from costmodels.graph import Graph, LayerSpec, Network
from costmodels.simulation.buckets import unit_of

Form = tuple[tuple[object, ...], ...]


class Reduced(Struct, frozen=True, kw_only=True):
    """A network of distinct blocks.

    Parameters
    ----------
    network
        The network without the blocks that repeat others.
    like
        For every layer of the whole network, the one of the reduced network that it is like.
    """

    network: Network
    like: Mapping[str, str]

    @classmethod
    def of(cls, network: Network, graph: Graph) -> Reduced:
        """The distinct blocks of a network.

        Parameters
        ----------
        network, graph
            The network, and what it is on samples of any number.
        """
        blocks: dict[str, list[LayerSpec]] = {}
        for spec in network.layers:
            blocks.setdefault(unit_of(spec.name), []).append(spec)
        like: dict[str, str] = {}
        before: dict[str, tuple[str, Form]] = {}  # of each series: the last block, and its form
        for unit, specs in blocks.items():
            series = unit.rpartition(".")[0]
            previous, known = before.get(series, ("", ()))
            form = _relative_form(specs, unit, previous)
            found = {spec.name: spec.name for spec in specs}
            if previous and form == known and len(specs) > 1:
                others = {name: like[previous + name[len(unit) :]] for name in found}
                # what it reads may have other sizes, although it is built alike
                if all(_cost_alike(graph, *pair) for pair in others.items()):
                    found = others
            like.update(found)
            before[series] = (unit, form)
        kept = tuple(
            _rewired(spec, like) for spec in network.layers if like[spec.name] == spec.name
        )
        return cls(network=replace(network, layers=kept), like=like)


def _cost_alike(graph: Graph, name: str, other: str) -> bool:
    """Whether two layers cost the same."""
    return graph.layers[name].signature == graph.layers[other].signature


def _relative_form(specs: list[LayerSpec], unit: str, previous: str) -> Form:
    """What a block is, whatever its number.

    Parameters
    ----------
    specs
        Its layers.
    unit, previous
        Its name and that of the block before it, empty for the first one.
    """

    def relative(name: object) -> object:
        if not isinstance(name, str):
            return name
        if name == unit or name.startswith(f"{unit}."):
            return "this", name[len(unit) :]
        if previous and (name == previous or name.startswith(f"{previous}.")):
            return "previous", name[len(previous) :]
        return name

    return tuple(
        (
            spec.name[len(unit) :],
            spec.kind,
            tuple(map(relative, spec.inputs)),
            tuple(sorted((key, relative(value)) for key, value in spec.options.items())),
        )
        for spec in specs
    )


def _rewired(spec: LayerSpec, like: Mapping[str, str]) -> LayerSpec:
    """A layer that reads, and shares the weight of, what represents its inputs and its owner."""
    options = dict(spec.options)
    if isinstance(options.get("share"), str):
        options["share"] = like.get(options["share"], options["share"])
    inputs = tuple(like.get(name, name) for name in spec.inputs)
    return replace(spec, inputs=inputs, options=options)

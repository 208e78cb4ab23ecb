"""Sums over units of layers: a block, or what lies between blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.intp]


class Units:
    """The units of a network, by the places of their layers.

    Parameters
    ----------
    places
        The layers of each unit, in the order of the forward pass.
    """

    def __init__(self, places: Sequence[Sequence[int]]) -> None:
        self.places = places
        self.firsts: Numbers = np.array([layers[0] for layers in places], dtype=np.intp)
        flat = [layer for layers in places for layer in layers]
        self.order: Numbers = np.array(flat, dtype=np.intp)
        self.num_layers = len(flat)
        # units of as many layers are summed at once
        alike: dict[int, list[int]] = {}
        for number, layers in enumerate(places):
            alike.setdefault(len(layers), []).append(number)
        self.alike = [
            (np.array(numbers), np.array([places[number] for number in numbers]))
            for numbers in alike.values()
        ]

    def sums(self, values: Floats) -> Floats:
        """What values of all layers are for each unit."""
        found = np.empty(len(self.firsts))
        for numbers, layers in self.alike:
            found[numbers] = values[layers].sum(axis=1)
        return found

    def largest(self, values: Floats) -> Numbers:
        """The layer of each unit that has the most."""
        found = np.empty(len(self.firsts), dtype=np.intp)
        for numbers, layers in self.alike:
            found[numbers] = layers[np.arange(len(layers)), values[layers].argmax(axis=1)]
        return found

    def of_layers(self, values: Floats) -> Floats:
        """What values of all units are for each of their layers."""
        found = np.empty(self.num_layers)
        found[self.order] = np.repeat(values, [len(layers) for layers in self.places])
        return found

    def from_each(self, values: Floats) -> Floats:
        """What values of each layer and of those after it are, of the same unit."""
        lengths = [len(layers) for layers in self.places]
        through = np.append(0.0, values[self.order].cumsum())
        found = np.empty(self.num_layers)
        ends = through[np.cumsum(lengths)]
        found[self.order] = np.repeat(ends, lengths) - through[:-1]
        return found

    def at_firsts(self, values: Floats) -> Floats:
        """What values of all layers are for each unit, at its first layer."""
        found = np.zeros(self.num_layers)
        found[self.firsts] = self.sums(values)
        return found

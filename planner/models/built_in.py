"""A network that can be built at several input sizes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from costmodels.errors import InputError
from costmodels.graph import Network


class BuiltInNetwork(Struct, frozen=True, kw_only=True):
    """A built-in network and the input sizes that it takes.

    Parameters
    ----------
    description
        One line for a list.
    make
        Makes the network for an input size.
    size
        Published input size: pixels or voxels a side, or tokens. [items]
    minimum
        Smallest input size. [items]
    multiple
        What input sizes must be a multiple of. [items]
    sizes
        All input sizes there are, when the architecture depends on them. [items]
    unit
        What the input size counts.
    """

    description: str
    make: Callable[[int], Network]
    size: int
    minimum: int = 32
    multiple: int = 1
    sizes: tuple[int, ...] = ()
    unit: str = "pixels a side"

    @property
    def source(self) -> str:
        """Where the architecture is published."""
        return self.make(self.size).source

    def build(self, name: str, input_size: int | None = None) -> Network:
        """The network at an input size, at the published one by default. [items]"""
        size = self.size if input_size is None else input_size
        rule = ""
        if self.sizes:
            if size not in self.sizes:
                rule = f"one of {', '.join(map(str, self.sizes))}"
        elif size < self.minimum or size % self.multiple:
            rule = f"a multiple of {self.multiple} and " if self.multiple > 1 else ""
            rule += f"at least {self.minimum}"
        if rule:
            raise InputError(
                f"the input size of {name} must be {rule} {self.unit} but is {size}; the published "
                f"size is {self.size}"
            )
        return self.make(size)

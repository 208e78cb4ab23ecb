"""Local shapes that can be measured: one row of a table but for its direction and precision."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from msgspec import Struct, structs
from msgspec.structs import replace

from costmodels.compute import Work

DENSE: Final = ("conv", "linear", "matmul")
WINDOWED: Final = ("conv", "pool")
ALIKE: Final = (
    *("batch_norm", "layer_norm", "activation", "add", "dropout", "softmax", "loss"),
    "global_pool",
)
"""Operations with as many features before as after."""

OPERATIONS: Final = (*DENSE, "attention", "pool", "pad", *ALIKE, "sgd_update", "adam_update")

# Columns of a table that tell shapes apart.
SHAPE_COLUMNS: Final = (
    *("operation", "samples", "channels", "filters", "in_extents", "out_extents"),
    *("kernel", "stride", "groups", "visible"),
)


class Shape(Struct, frozen=True, kw_only=True):
    """One local shape to be measured.

    Parameters
    ----------
    operation
        One of `OPERATIONS`.
    samples, channels, filters, in_extents, kernel, stride, groups, visible
        As of `costmodels.compute.Work`.
    out_extents
        Extents of the output; by default those that padding by half the kernel gives.

    Raises
    ------
    ValueError
        When no library runs it, such as a part of a group of filters.
    """

    operation: str
    samples: int
    channels: int
    filters: int
    in_extents: tuple[int, ...] = ()
    out_extents: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    groups: int = 1
    visible: float = 1.0

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(f"operation {self.operation!r} is none of {', '.join(OPERATIONS)}")
        windowed = self.operation in WINDOWED
        if windowed and not len(self.in_extents) == len(self.kernel) in (1, 2, 3):
            count = len(self.in_extents)
            raise ValueError(f"{count} extents for a kernel of {len(self.kernel)} dims")
        if not windowed and self.kernel:
            raise ValueError(f"a kernel for a {self.operation}")
        if not self.stride:
            structs.force_setattr(self, "stride", (1,) * len(self.kernel))
        if len(self.stride) != len(self.kernel):
            raise ValueError(f"{len(self.stride)} strides for a kernel of {len(self.kernel)} dims")
        if not self.out_extents and self.operation != "global_pool":
            structs.force_setattr(self, "out_extents", self._half_padded())
        self._check_extents()
        if self.operation == "attention":
            self._check_attention()
        elif self.channels % self.groups or self.filters % self.groups:
            raise ValueError(f"{self.groups} groups that divide not both channels and filters")
        if self.operation in (*ALIKE, "pool", "pad") and self.channels != self.filters:
            raise ValueError(f"a {self.operation} that changes the number of channels")

    def _check_extents(self) -> None:
        if min((*self.in_extents, *self.out_extents), default=1) < 1:
            raise ValueError("an extent below 1")
        if self.operation == "global_pool":
            if not self.in_extents or max(self.out_extents, default=1) > 1:
                raise ValueError("a global_pool that leaves extents")
            return
        if len(self.out_extents) != len(self.in_extents):
            raise ValueError(f"{len(self.out_extents)} output for {len(self.in_extents)} extents")
        if self.operation == "pad":
            if any(n > m for n, m in zip(self.in_extents, self.out_extents, strict=True)):
                raise ValueError("a pad whose output has less room than its input")
            return
        changes = (*WINDOWED, "attention")
        if self.operation not in changes and self.out_extents != self.in_extents:
            raise ValueError(f"a {self.operation} whose output has other extents than its input")

    def _check_attention(self) -> None:
        if len(self.in_extents) != 1 or self.samples % self.groups:
            raise ValueError("an attention whose heads share keys unequally")
        (keys,) = self.in_extents
        causal = (keys + 1) / (2 * keys)
        if self.visible < 1.0 and (
            self.out_extents != self.in_extents or abs(self.visible - causal) > 1e-9
        ):
            raise ValueError("an attention whose mask is not the plain causal one")

    def _half_padded(self) -> tuple[int, ...]:
        if not self.kernel:
            return self.in_extents
        dims = zip(self.in_extents, self.kernel, self.stride, strict=True)
        return tuple((extent + 2 * (k // 2) - k) // step + 1 for extent, k, step in dims)

    @property
    def window_dims(self) -> list[tuple[int, int]]:
        """Padding on each side and extent of the input that is run, for each windowed dim."""
        extents = zip(self.in_extents, self.out_extents, self.kernel, self.stride, strict=True)
        return [_window_padding(*dim) for dim in extents]

    @property
    def flattened(self) -> Shape:
        """The shape that takes the same time: a linear layer multiplies all positions alike."""
        if self.operation != "linear" or not self.in_extents:
            return self
        rows = self.samples * math.prod(self.in_extents)
        return replace(self, samples=rows, in_extents=(), out_extents=())

    def cells(self) -> dict[str, object]:
        """The shape as cells of a table."""
        lists = ("in_extents", "out_extents", "kernel", "stride")
        joined = {name: "x".join(map(str, getattr(self, name))) for name in lists}
        return {name: joined.get(name, getattr(self, name)) for name in SHAPE_COLUMNS}

    def work(self, direction: str) -> Work:
        """The local work of one of its passes."""
        return Work(
            operation=self.operation,
            direction=direction,
            samples=np.array([float(self.samples)]),
            channels=np.array([float(self.channels)]),
            filters=np.array([float(self.filters)]),
            in_extents=tuple(np.array([float(n)]) for n in self.in_extents),
            out_extents=tuple(np.array([float(n)]) for n in self.out_extents),
            kernel=self.kernel,
            stride=self.stride,
            groups=np.array([float(self.groups)]),
            visible=self.visible,
        )


def _window_padding(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding on each side of a windowed dim, and extent of the input that is run.

    Parameters
    ----------
    inputs, outputs, kernel, stride
        Extents and window of the dim.
    """
    covered = (outputs - 1) * stride + kernel
    least = covered - inputs  # both sides together; up to stride - 1 more changes nothing
    padding = min(max(least + stride - 1, 0) // 2, kernel // 2)
    if 2 * padding >= least and padding * 2 <= least + stride - 1:
        return padding, inputs
    padding = min(max(least, 0) // 2, kernel // 2)
    return padding, covered - 2 * padding

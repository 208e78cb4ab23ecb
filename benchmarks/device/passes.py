"""What is timed for one local shape: one call of PyTorch for each pass, on random data.

A pass is the very operation that training would run, called without the framework's automatic
differentiation. Weights and statistics of batch norm are kept in fp32, as mixed precision does.

A convolution or pooling is padded so that it makes the outputs that the shape asks for; a local
piece at the edge of a split may have inputs that no symmetric padding leads to its outputs from,
and is then run with the inputs that its outputs need (halo included). Dilation is left out: a
dilated convolution is run as a plain one with the same inputs and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

DENSE: Final = ("conv", "linear", "matmul")
WINDOWED: Final = ("conv", "pool")
OPERATIONS: Final = (*DENSE, "batch_norm", "layer_norm", "pool", "activation", "add")

Calls = dict[str, Callable[[], object]]
Random = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One local shape to be measured.

    Parameters
    ----------
    operation
        One of `OPERATIONS`.
    samples, channels, filters, in_extents, kernel, stride, groups
        As of `costmodels.compute.Work`.
    out_extents
        Extents of the output; by default those that padding by half the kernel gives.
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
            object.__setattr__(self, "stride", (1,) * len(self.kernel))
        if len(self.stride) != len(self.kernel):
            raise ValueError(f"{len(self.stride)} strides for a kernel of {len(self.kernel)} dims")
        if not self.out_extents:
            object.__setattr__(self, "out_extents", self._half_padded())
        if len(self.out_extents) != len(self.in_extents):
            raise ValueError(f"{len(self.out_extents)} output for {len(self.in_extents)} extents")
        if min((*self.in_extents, *self.out_extents), default=1) < 1:
            raise ValueError("an extent below 1")
        if not windowed and self.out_extents != self.in_extents:
            raise ValueError(f"a {self.operation} whose output has other extents than its input")
        if self.channels % self.groups or self.filters % self.groups:
            raise ValueError(f"{self.groups} groups that divide not both channels and filters")
        if self.operation not in DENSE and self.channels != self.filters:
            raise ValueError(f"a {self.operation} that changes the number of channels")

    def _half_padded(self) -> tuple[int, ...]:
        if not self.kernel:
            return self.in_extents
        dims = zip(self.in_extents, self.kernel, self.stride, strict=True)
        return tuple((extent + 2 * (k // 2) - k) // step + 1 for extent, k, step in dims)

    @property
    def window_dims(self) -> list[tuple[int, int]]:
        """Padding on each side and extent of the input that is run, for each windowed dim."""
        extents = zip(self.in_extents, self.out_extents, self.kernel, self.stride, strict=True)
        return [_padding(*dim) for dim in extents]


def _padding(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[int, int]:
    covered = (outputs - 1) * stride + kernel
    least = covered - inputs  # both sides together; up to stride - 1 more changes nothing
    padding = min(max(least + stride - 1, 0) // 2, kernel // 2)
    if 2 * padding >= least and padding * 2 <= least + stride - 1:
        return padding, inputs
    padding = min(max(least, 0) // 2, kernel // 2)
    return padding, covered - 2 * padding


def calls_of(torch: Any, shape: Shape, dtype: Any, device: str = "cuda") -> Calls:
    """One call per direction, on random data that lies on the device.

    Parameters
    ----------
    torch
        The module.
    shape
        What to run.
    dtype
        PyTorch's type of the activations.
    device
        "cuda" or "cpu".
    """

    def random(*dims: int, dtype: Any = dtype) -> Any:
        return torch.randn(*dims, device=device, dtype=dtype)

    if shape.operation == "conv":
        return _conv(torch, shape, random)
    if shape.operation in DENSE:
        return _product_calls(torch, shape, random)
    if shape.operation == "pool":
        return _pool(torch, shape, random)
    if shape.operation == "batch_norm":
        return _batch_norm(torch, shape, random)
    if shape.operation == "layer_norm":
        return _layer_norm(torch, shape, random)
    dims = (shape.samples, shape.channels, *shape.in_extents)
    first, second = random(*dims), random(*dims)
    if shape.operation == "add":
        # backward the gradients are added that meet where the residual branch forks
        return dict.fromkeys(("forward", "backward"), lambda: torch.add(first, second))
    return {
        "forward": lambda: torch.relu(first),
        "backward": lambda: torch.ops.aten.threshold_backward(second, first, 0),
    }


def _conv(torch: Any, shape: Shape, random: Random) -> Calls:
    padding, extents = zip(*shape.window_dims, strict=True)
    inputs = random(shape.samples, shape.channels, *extents)
    weight = random(shape.filters, shape.channels // shape.groups, *shape.kernel)
    gradient = random(shape.samples, shape.filters, *shape.out_extents)

    def backward(mask: list[bool]) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(
            *(gradient, inputs, weight, None, list(shape.stride), list(padding)),
            *([1] * len(shape.kernel), False, [0] * len(shape.kernel), shape.groups, mask),
        )

    forward = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[len(shape.kernel)]
    options = {"stride": shape.stride, "padding": padding, "groups": shape.groups}
    return {
        "forward": lambda: forward(inputs, weight, **options),
        "backward_data": backward([True, False, False]),
        "backward_weight": backward([False, True, False]),
    }


def _product_calls(torch: Any, shape: Shape, random: Random) -> Calls:
    rows = math.prod(shape.in_extents)
    lead = (shape.samples, rows) if shape.operation == "matmul" else (shape.samples * rows,)
    inputs, gradient = random(*lead, shape.channels), random(*lead, shape.filters)
    # A linear layer keeps its weight as filters x channels.
    weight = random(*lead[:-1], shape.filters, shape.channels)
    return {
        "forward": lambda: torch.matmul(inputs, weight.mT),
        "backward_data": lambda: torch.matmul(gradient, weight),
        "backward_weight": lambda: torch.matmul(gradient.mT, inputs),
    }


def _pool(torch: Any, shape: Shape, random: Random) -> Calls:
    padding, extents = zip(*shape.window_dims, strict=True)
    kernel, stride, outputs = shape.kernel, shape.stride, shape.out_extents
    if len(kernel) == 1:  # the library itself runs one dim as two
        padding, extents, outputs = (0, *padding), (1, *extents), (1, *outputs)
        kernel, stride = (1, *kernel), (1, *stride)
    aten, count = torch.ops.aten, len(kernel)
    windows = (list(kernel), list(stride), list(padding), [1] * count, False)
    inputs = random(shape.samples, shape.channels, *extents)
    gradient = random(shape.samples, shape.channels, *outputs)
    forward = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}[count]
    backward = {
        2: aten.max_pool2d_with_indices_backward,
        3: aten.max_pool3d_with_indices_backward,
    }[count]
    indices = forward(inputs, *windows)[1]
    return {
        "forward": lambda: forward(inputs, *windows),
        "backward": lambda: backward(gradient, inputs, *windows, indices),
    }


def _batch_norm(torch: Any, shape: Shape, random: Random) -> Calls:
    dims = (shape.samples, shape.channels, *shape.in_extents)
    inputs, gradient = random(*dims), random(*dims)
    weight, bias, mean = (random(shape.channels, dtype=torch.float32) for _ in range(3))
    variance = mean * mean + 1

    # what the functional form and its gradient call, with cuDNN where the library prefers it
    def forward() -> Any:
        return torch.ops.aten._batch_norm_impl_index(
            inputs, weight, bias, mean, variance, True, 0.1, 1e-5, True
        )

    _, saved_mean, saved_scale, reserved, variant = forward()
    return {
        "forward": forward,
        "backward": lambda: torch.ops.aten._batch_norm_impl_index_backward(
            *(variant, inputs, gradient, weight, mean, variance, saved_mean, saved_scale),
            *(True, 1e-5, [True, True, True], reserved),
        ),
    }


def _layer_norm(torch: Any, shape: Shape, random: Random) -> Calls:
    dims = (shape.samples, *shape.in_extents, shape.channels)
    inputs, gradient = random(*dims), random(*dims)
    weight, bias = random(shape.channels), random(shape.channels)
    aten, over = torch.ops.aten, [shape.channels]
    _, mean, scale = aten.native_layer_norm(inputs, over, weight, bias, 1e-5)
    return {
        "forward": lambda: aten.native_layer_norm(inputs, over, weight, bias, 1e-5),
        "backward": lambda: aten.native_layer_norm_backward(
            gradient, inputs, over, mean, scale, weight, bias, [True, True, True]
        ),
    }

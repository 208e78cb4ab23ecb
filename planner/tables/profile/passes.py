"""What is timed for one local shape: one call of PyTorch for each pass, on random data.

A pass is the very operation that training would run, called without the framework's automatic
differentiation (but of attention, whose backward pass has no call of its own). Weights and
statistics of batch norm are kept in fp32, as mixed precision does. Pooling is by maximum, the
activation is ReLU, gradients are summed with momentum.

A convolution or pooling is padded so that it makes the outputs that the shape asks for; a local
piece at the edge of a split may have inputs that no symmetric padding leads to its outputs from,
and is then run with the inputs that its outputs need (halo included). Dilation is left out: a
dilated convolution is run as a plain one with the same inputs and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from planner.tables.profile.shape import Shape

Calls = dict[str, Callable[[], object]]


class _Maker(Struct, frozen=True):
    """Makes random tensors on a device.

    Parameters
    ----------
    torch
        The module.
    dtype, device
        Of the tensors.
    """

    torch: ModuleType
    dtype: object
    device: str

    def __call__(self, *dims: int, dtype: object = None) -> Any:
        return self.torch.randn(*dims, device=self.device, dtype=dtype or self.dtype)


def calls_of(torch: ModuleType, shape: Shape, dtype: object, device: str) -> Calls:
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
    return MAKERS[shape.operation](torch, shape, _Maker(torch, dtype, device))


def _conv_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
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


def _product_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    # a linear layer of groups is one product a group, such as those of experts
    rows, count = math.prod(shape.in_extents), shape.samples
    lead = (count, rows) if shape.operation == "matmul" else (count * rows,)
    lead = (shape.groups, *lead) if shape.groups > 1 else lead
    channels, filters = shape.channels // shape.groups, shape.filters // shape.groups
    inputs, gradient = random(*lead, channels), random(*lead, filters)
    # A linear layer keeps its weight as filters x channels.
    weight = random(*lead[:-1], filters, channels)
    return {
        "forward": lambda: torch.matmul(inputs, weight.mT),
        "backward_data": lambda: torch.matmul(gradient, weight),
        "backward_weight": lambda: torch.matmul(gradient.mT, inputs),
    }


def _pool_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
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


def _pad_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    """A block is copied into a new tensor that has room for its halo."""
    block = random(shape.samples, shape.channels, *shape.in_extents)
    room = (shape.samples, shape.channels, *shape.out_extents)

    def pad() -> object:
        padded = block.new_empty(room)
        middle = padded
        for dim, extent in enumerate(shape.in_extents, start=2):
            middle = middle.narrow(dim, (room[dim] - extent) // 2, extent)
        middle.copy_(block)
        return padded

    return {"forward": pad}


def _batch_norm_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
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


def _layer_norm_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
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


def _features_last(shape: Shape) -> tuple[int, ...]:
    """Features last, as of sequences."""
    return (shape.samples, *shape.in_extents, shape.channels)


def _activation_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    first, second = random(*_features_last(shape)), random(*_features_last(shape))
    return {
        "forward": lambda: torch.relu(first),
        "backward": lambda: torch.ops.aten.threshold_backward(second, first, 0),
    }


def _add_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    first, second = random(*_features_last(shape)), random(*_features_last(shape))
    # backward the gradients are added that meet where the residual branch forks
    return dict.fromkeys(("forward", "backward"), lambda: torch.add(first, second))


def _dropout_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    inputs = random(*_features_last(shape))
    _, mask = torch.native_dropout(inputs, 0.1, True)
    return {
        "forward": lambda: torch.native_dropout(inputs, 0.1, True),
        "backward": lambda: torch.ops.aten.native_dropout_backward(inputs, mask, 1 / 0.9),
    }


def _softmax_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    inputs = random(*_features_last(shape))
    outputs = torch.softmax(inputs, -1)
    backward = torch.ops.aten._softmax_backward_data
    return {
        "forward": lambda: torch.softmax(inputs, -1),
        "backward": lambda: backward(inputs, outputs, -1, inputs.dtype),
    }


def _loss_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    """Softmax and cross entropy over the features."""
    inputs = random(math.prod(_features_last(shape)[:-1]), shape.channels)
    target = torch.zeros(inputs.shape[0], dtype=torch.int64, device=inputs.device)
    logs = torch.log_softmax(inputs, -1)
    one, total = random(1).squeeze(0), random(1).squeeze(0)
    aten = torch.ops.aten

    def backward() -> object:
        gradient = aten.nll_loss_backward(one, logs, target, None, 1, -100, total)
        return aten._log_softmax_backward_data(gradient, logs, -1, inputs.dtype)

    return {
        "forward": lambda: aten.nll_loss(torch.log_softmax(inputs, -1), target),
        "backward": backward,
    }


def _global_pool_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    dims = (shape.samples, shape.channels, *shape.in_extents)
    inputs, gradient = random(*dims), random(*dims[:2], *([1] * len(shape.in_extents)))
    over, count = tuple(range(2, len(dims))), math.prod(shape.in_extents)
    return {
        "forward": lambda: torch.mean(inputs, over),
        "backward": lambda: gradient.expand(dims) / count,
    }


def _attention_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    """`samples` are heads of samples, of which `groups` share keys and values."""
    (keys,), (queries,), heads = shape.in_extents, shape.out_extents, shape.samples
    shared = max(heads // shape.groups, 1)
    held = {
        "query": random(1, heads, queries, shape.channels),
        "key": random(1, shared, keys, shape.channels),
        "value": random(1, shared, keys, shape.filters),
    }
    gradient = random(1, heads, queries, shape.filters)
    options = {"is_causal": shape.visible < 1.0, "enable_gqa": shared < heads}
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.enable_grad():
        leaves = {name: tensor.requires_grad_() for name, tensor in held.items()}
        outputs = attend(**leaves, **options)

    def forward() -> object:
        # what the backward pass needs is kept, as in training
        with torch.enable_grad():
            return attend(**leaves, **options)

    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(
            outputs, list(leaves.values()), gradient, retain_graph=True
        ),
    }


def _sgd_update_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    """SGD with momentum, in single precision."""
    weight, gradient, momentum = (random(shape.samples, dtype=torch.float32) for _ in range(3))

    def update() -> None:
        torch._foreach_mul_([momentum], 0.9)
        torch._foreach_add_([momentum], [gradient])
        torch._foreach_add_([weight], [momentum], alpha=-1e-6)

    return {"forward": update}


def _adam_update_calls(torch: ModuleType, shape: Shape, random: _Maker) -> Calls:
    """Adam, in single precision, step by step as the optimizers of PyTorch take it."""
    weight, gradient, mean = (random(shape.samples, dtype=torch.float32) for _ in range(3))
    square = mean * mean

    def update() -> None:
        torch._foreach_lerp_([mean], [gradient], 0.1)
        torch._foreach_mul_([square], 0.999)
        torch._foreach_addcmul_([square], [gradient], [gradient], 0.001)
        root = torch._foreach_sqrt([square])
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_([weight], [mean], root, -1e-6)

    return {"forward": update}


MAKERS: Final[Mapping[str, Callable[[ModuleType, Shape, _Maker], Calls]]] = {
    "conv": _conv_calls,
    "linear": _product_calls,
    "matmul": _product_calls,
    "attention": _attention_calls,
    "batch_norm": _batch_norm_calls,
    "layer_norm": _layer_norm_calls,
    "pool": _pool_calls,
    "pad": _pad_calls,
    "global_pool": _global_pool_calls,
    "activation": _activation_calls,
    "add": _add_calls,
    "dropout": _dropout_calls,
    "softmax": _softmax_calls,
    "loss": _loss_calls,
    "sgd_update": _sgd_update_calls,
    "adam_update": _adam_update_calls,
}
"""How to run each operation that can be measured."""

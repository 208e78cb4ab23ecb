"""A network description as a module of PyTorch, so that a plan of it can be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costmodels.errors import InputError
from costmodels.graph import Graph, Layer, LayerSpec, Network, build_graph

_FUNCTIONS = {"gelu_tanh": "gelu", "swish": "silu", "hard_sigmoid": "hardsigmoid"}
_FUNCTIONS |= {"hard_tanh": "hardtanh", "hard_swish": "hardswish"}


class NetworkModule(nn.Module):
    """The layers of a network, in order; it returns what its loss reads.

    Parameters
    ----------
    network
        The network, of one input and with at most one loss.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        graph = build_graph(network, 2)
        rows = {row.name: row for row in network.layers}
        self.sources: list[tuple[str, list[str], str]] = []
        self.parts = nn.ModuleList()
        for layer in graph.compute_layers:
            if layer.kind == "loss":
                continue
            sources = [edge.source for edge in graph.producers[layer.name]]
            if layer.kind not in _MAKERS or layer.shares_weight_with or layer.frozen_parameters:
                raise InputError(
                    f"{network.name} cannot be run: layers of kind {layer.kind} with these options "
                    f"('{layer.name}') are not written out in PyTorch; give a module of it"
                )
            self.parts.append(_MAKERS[layer.kind](graph, layer, rows[layer.name]))
            self.sources.append((layer.name, sources, layer.kind))
        losses = [layer for layer in graph.compute_layers if layer.kind == "loss"]
        if len(losses) != 1:
            raise InputError(
                f"{network.name} cannot be run: it must have one loss but has {len(losses)}; give "
                "a module of it"
            )
        self.last = graph.producers[losses[0].name][0].source

    def forward(self, x: Tensor) -> Tensor:
        """What the loss reads."""
        done = {"input": x}
        for part, (name, sources, _) in zip(self.parts, self.sources, strict=True):
            done[name] = part(*(done.get(source, x) for source in sources))
        return done[self.last]


def calm_norms(module: nn.Module) -> nn.Module:
    """A module whose batch norms keep the gradients of many layers from growing, and errors."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.affine:
            nn.init.uniform_(part.weight, 0.05, 0.15)
            nn.init.uniform_(part.bias, -0.2, 0.2)
    return module


class _Function(nn.Module):
    """A function of one or several tensors."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: Tensor) -> Tensor:
        """Call it."""
        found: Tensor = self.function(*xs)
        return found


class _Flat(nn.Linear):
    """A product of all features of a sample."""

    def forward(self, x: Tensor) -> Tensor:
        """Flatten and multiply."""
        return super().forward(x.flatten(1))


def _made_windows(layer: Layer) -> dict[str, Any]:
    rows = list(layer.windows.values())
    return {
        "kernel_size": tuple(row.kernel for row in rows),
        "stride": tuple(row.stride for row in rows),
        "padding": tuple(row.padding for row in rows),
    }


def _made_conv(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    options: Mapping[str, Any] = row.options
    place = len(layer.windows) - 1
    channels, filters = layer.inputs[0].extent("channel"), layer.output.extent("channel")
    more = {**_made_windows(layer), "bias": bool(options.get("bias", False))}
    if layer.transposed:
        kinds: Sequence[Any] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        found: nn.Module = kinds[place](channels, filters, **more)
        return found
    more["dilation"] = tuple(window.dilation for window in layer.windows.values())
    if options.get("padding") == "same":
        if any(window.stride > 1 for window in layer.windows.values()):
            raise InputError(
                f"layer '{layer.name}' cannot be run: padding 'same' must be with stride 1 but is "
                "not; give a module of the network"
            )
        more["padding"] = "same"
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    made: nn.Module = kinds[place](channels, filters, groups=layer.groups, **more)
    return made


def _made_linear(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    features = layer.dims["channel"]
    kind = _Flat if len(layer.inputs[0].axes) > 2 else nn.Linear
    return kind(features, layer.dims["filter"], bias=bool(row.options.get("bias", True)))


def _made_pool(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    place = len(layer.windows) - 1
    maximum = row.options.get("mode", "max") == "max"
    kinds: Sequence[Any] = (
        (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
        if maximum
        else (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
    )
    ceil = bool(row.options.get("ceil_mode", False))
    found: nn.Module = kinds[place](**_made_windows(layer), ceil_mode=ceil)
    return found


def _made_batch_norm(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    count = len(layer.output.axes) - 2
    kinds = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return kinds[count](layer.output.extent("channel"), affine=layer.parameters > 0)


def _made_activation(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    name = str(row.options.get("function", "relu"))
    if name == "gelu_tanh":
        return nn.GELU(approximate="tanh")
    name = _FUNCTIONS.get(name, name)
    function = getattr(F, name, None) or getattr(torch, name, None)
    if function is None or name == "identity":
        raise InputError(
            f"layer '{layer.name}' cannot be run: its function '{name}' is none of PyTorch; give "
            "a module of the network"
        )
    return _Function(function)


def _made_scale(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    count = len(layer.inputs[0].axes)
    return _Function(lambda x, gate: x * gate.reshape(*gate.shape, *[1] * (count - gate.dim())))


def _made_upsample(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    return nn.Upsample(scale_factor=float(row.options.get("factor", 2)))


def _made_mean(graph: Graph, layer: Layer, row: LayerSpec) -> nn.Module:
    dims = tuple(range(2, len(layer.inputs[0].axes)))
    return _Function(lambda x: x.mean(dims))


def _added_up(*xs: Tensor) -> Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


_MAKERS: dict[str, Callable[[Graph, Layer, LayerSpec], nn.Module]] = {
    "conv": _made_conv,
    "linear": _made_linear,
    "pool": _made_pool,
    "batch_norm": _made_batch_norm,
    "activation": _made_activation,
    "scale": _made_scale,
    "upsample": _made_upsample,
    "global_pool": _made_mean,
    "add": lambda graph, layer, row: _Function(_added_up),
    "concat": lambda graph, layer, row: _Function(lambda *xs: torch.cat(xs, 1)),
    "dropout": lambda graph, layer, row: nn.Dropout(float(row.options.get("rate", 0.5))),
}

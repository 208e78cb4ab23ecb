"""What ranks do in tests of applied plans."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from other_modules import Paired
from torch import Tensor, nn

import planner
import planner.torch
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import LayerSpec, Network
from planner.plan.sharding import known_sharding
from planner.planning.optimize import plan_of_strategy
from planner.request.request import Request
from planner.request.setting import resolve
from planner.torch.apply.convolution import sums
from planner.torch.apply.convolution.convolved import convolved_blocks
from planner.torch.apply.convolution.site import Site
from planner.torch.apply.exchange import Exchange
from planner.torch.verify.scaled import SmallPlan
from planner.torch.verify.work import RankTask, run_rank

FAULTS = ("halo gradient", "weight gradient", "corner", "bias")


def mixed_plan() -> SmallPlan:
    """Space cut in two dims, filters and channels, in a few layers."""

    def row(name: str, kind: str, source: str, **options: Any) -> LayerSpec:
        return LayerSpec(name=name, kind=kind, inputs=(source,), options=options)

    network = Network(
        name="small",
        input_shape={"channel": 3, "height": 8, "width": 8},
        layers=(
            row("stem", "conv", "input", filters=4, kernel=3, padding=1, bias=True),
            row("relu", "activation", "stem"),
            row("body", "conv", "relu", filters=8, kernel=3, padding=1, bias=True),
            row("wide", "conv", "body", filters=8, kernel=3, stride=2, padding=1, bias=True),
            row("pool", "global_pool", "wide"),
            row("fc", "linear", "pool", filters=6),
            row("loss", "loss", "fc"),
        ),
    )
    space = {"height": (2, 1), "width": (1, 2)}
    splits = {
        "stem": space,
        "relu": space,
        "body": space,
        "wide": {"filter": (2, 1), "channel": (1, 2)},
        "pool": {"sample": (2, 1), "channel": (1, 2)},
        "fc": {"sample": (2, 1), "channel": (1, 2)},
        "loss": {"channel": (2, 1)},
    }
    return SmallPlan(
        network=network,
        batch=4,
        distributions={
            name: Distribution(degrees=degrees, shape=(2, 2)) for name, degrees in splits.items()
        },
        left_out=(),
    )


def volume() -> Network:
    """A 3-D U-Net of two levels."""
    rows = [
        LayerSpec(name=name, kind=kind, inputs=tuple(reads.split()), options=options)
        for name, kind, reads, options in (
            ("conv1", "conv", "input", {"filters": 4, "kernel": 3, "padding": 1}),
            ("bn1", "batch_norm", "conv1", {}),
            ("relu1", "activation", "bn1", {"function": "leaky_relu"}),
            ("conv2", "conv", "relu1", {"filters": 8, "kernel": 3, "padding": 1, "stride": 2}),
            ("bn2", "batch_norm", "conv2", {"statistics": "spatial"}),
            ("relu2", "activation", "bn2", {}),
            ("conv3", "conv", "relu2", {"filters": 8, "kernel": 3, "padding": 2, "dilation": 2}),
            ("pool", "pool", "conv3", {"kernel": 3, "stride": 1, "padding": 1, "mode": "average"}),
            (
                *("up", "conv", "pool"),
                {"filters": 4, "kernel": 2, "stride": 2, "bias": True, "transposed": True},
            ),
            ("cat", "concat", "relu1 up", {}),
            ("conv4", "conv", "cat", {"filters": 8, "kernel": 3, "padding": 1, "bias": True}),
            ("out", "conv", "conv4", {"filters": 4, "kernel": 1, "bias": True}),
            ("loss", "loss", "out", {}),
        )
    ]
    shape = {"channel": 1, "depth": 8, "height": 10, "width": 8}
    return Network(name="volume", input_shape=shape, layers=tuple(rows))


def with_faults(task: RankTask) -> dict[str, Any]:
    """How far one step is from one process, without a fault and with each."""
    move, bias = Exchange.move, sums.with_bias

    def found() -> Any:
        outcome = run_rank(task)
        return [outcome.gradients[0], outcome.losses[0]] if outcome.losses else None

    def faulty(wrong: Callable[..., Tensor]) -> Any:
        Exchange.move = wrong
        try:
            return found()
        finally:
            Exchange.move = move

    def outside(self: Exchange, y: Tensor, source: Any, target: Any, dims: Any) -> Tensor:
        """Zero where a tensor lies outside of the rank's own box in some dims at once."""
        own, read = source.boxes[self.rank], target[self.rank]
        away = torch.ones(y.shape, dtype=torch.bool)
        for dim in dims:
            place = torch.arange(*read[dim])
            beyond = (place < own[dim][0]) | (place >= own[dim][1])
            away &= beyond.view([-1 if n == dim else 1 for n in range(y.dim())])
        return y.masked_fill(away, 0.0)

    def no_halo_gradient(
        self: Any, x: Tensor, source: Any, target: Any, why: Any, fill: float = 0.0
    ) -> Tensor:
        y = move(self, x, source, target, why, fill)
        if why.cause == "halo" and why.backward and why.layer.startswith("parts.2"):
            y = outside(self, y, source, target, (2,))
        return y

    def no_sum(
        self: Any, x: Tensor, source: Any, target: Any, why: Any, fill: float = 0.0
    ) -> Tensor:
        if why.cause == "gradient" and why.layer.startswith("parts.2"):
            return x
        return move(self, x, source, target, why, fill)

    def no_corner(
        self: Any, x: Tensor, source: Any, target: Any, why: Any, fill: float = 0.0
    ) -> Tensor:
        y = move(self, x, source, target, why, fill)
        if why.cause == "halo" and not why.backward:
            y = outside(self, y, source, target, (2, 3))
        return y

    told = {"none": found()}
    told["halo gradient"] = faulty(no_halo_gradient)
    told["weight gradient"] = faulty(no_sum)
    told["corner"] = faulty(no_corner)
    sums.with_bias = lambda site, x, node, dim=1: (
        x if site.name.endswith("5") else bias(site, x, node, dim)
    )
    try:
        told["bias"] = found()
    finally:
        sums.with_bias = bias
    return told


def copied_numbers(ways: dict[str, int]) -> tuple[dict[str, int], int]:
    """What each operator writes that copies, in the passes of one convolution of a block.

    Numbers by operator, and those of the block.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    found: dict[str, int] = {}

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any, options: Any) -> Any:
            made = operator(*args, **(options or {}))
            name = operator.overloadpacket.__name__
            copies = ("copy_", "add_", "cat", "clone", "constant_pad_nd", "zeros", "new_zeros")
            if name in copies:
                found[name] = found.get(name, 0) + made.numel()
            return made

    site = site_of(ways)
    box = site.inputs[0].boxes[site.rank]
    x = torch.ones([stop - start for start, stop in box], requires_grad=True)
    weight = torch.ones(4, 4, 3, 3, requires_grad=True)
    with Copies():
        y = convolved_blocks(x, weight, site, 1)
        y.backward(torch.ones_like(y))
    return found, x.numel()


def site_of(ways: dict[str, int]) -> Site:
    """A convolution of 3 x 3 on this rank, which space is split for."""
    options = {"filters": 4, "kernel": 3, "padding": 1}
    network = Network(
        name="one",
        input_shape={"channel": 4, "height": 16, "width": 16},
        layers=(LayerSpec(name="conv", kind="conv", inputs=("input",), options=options),),
    )
    ranks = math.prod(ways.values())
    setting = resolve(Request(source=network, gpus=ranks, cluster="lassen", global_batch_size=2))
    graph, shape = setting.graph, setting.machine.topology.shape
    degrees = {dim: (n, *(1 for _ in shape[1:])) for dim, n in ways.items()}
    split = {"conv": Distribution(degrees=degrees, shape=shape)}
    sharding = known_sharding(plan_of_strategy(setting, split, "space").sharding)
    layer = sharding.layer("conv")
    return Site(
        layer=graph.layers["conv"],
        sources=(),
        sharding=layer,
        mesh=sharding.meshes[layer.mesh],
        nodes=(),
        data=set(),
        known={},
        moves={},
        exchange=Exchange(),
        held=lambda node: (torch.empty(0), None),  # type: ignore[arg-type, return-value]
        training=lambda: True,
        drops=lambda: True,
    )


class Small(nn.Module):
    """A few layers with synchronised batch norm."""

    def __init__(self, filters: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, filters, 3, padding=1),
            nn.SyncBatchNorm(filters),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(filters, 12, 3, padding=1, groups=4),
        )
        self.fc = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.fc(y.mean((2, 3)))


def _planned(strategy: str, degree: int | None, gpus: int = 4) -> planner.Plan:
    return planner.evaluate(
        Small,
        inputs=torch.empty(2, 3, 8, 8),
        gpus=gpus,
        strategy=strategy,
        degree=degree,
        cluster="lassen",
        global_batch_size=8,
    )


def second_names() -> Any:
    """The rank's block of a weight with two names, whether it is one, and what it is saved as."""
    asked: Any = {"inputs": torch.empty(2, 16), "gpus": 2, "global_batch_size": 8}
    plan = planner.evaluate(Paired, strategy="filter", cluster="lassen", **asked)
    module = planner.torch.apply(plan, Paired())
    saved = module.state_dict()
    module.load_state_dict({name: torch.ones_like(one) for name, one in saved.items()})
    weights: Any = [module.get_submodule(name).weight for name in ("first", "second")]
    one = weights[0] is weights[1] and bool((weights[0] == 1).all())
    names = [name for name, _ in module.named_parameters()]
    return tuple(weights[0].shape), set(saved) == set(Paired().state_dict()), one, names


def checkpoint(folder: str) -> list[str]:
    """What is wrong when training goes on under another plan."""
    import torch.distributed.checkpoint as saving

    from planner.torch.trace import alone

    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(8, 3, 8, 8, generator=generator), torch.randint(6, (8,), generator=generator))
        for _ in range(4)
    ]
    alike = Small().double()
    rule = torch.optim.SGD(alike.parameters(), lr=0.1)
    said = []
    for x, y in batches:
        rule.zero_grad()
        with alone():
            loss = F.cross_entropy(alike(x), y)
        loss.backward()
        rule.step()
        said.append(float(loss.detach()))
    first = planner.torch.apply(_planned("data+spatial", 2), Small().double())
    found = _trained(first, batches[:2])
    saving.save({"model": first.state_dict()}, checkpoint_id=folder)
    second = planner.torch.apply(_planned("filter", None), Small(8).double())
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    state = {"model": second.state_dict()}
    saving.load(state, checkpoint_id=folder)
    second.load_state_dict(state["model"])
    found += _trained(second, batches[2:])
    wrong = [f"{a} {b}" for a, b in zip(found, said, strict=True) if abs(a - b) > 1e-12]
    mean = dict(alike.named_buffers())["body.1.running_mean"]
    layout = second._constants.layouts["body.1.running_mean"]
    block = layout.boxes[second._rank][0]
    own = dict(second.named_buffers())["body.1.running_mean"]
    if (own - mean[slice(*block)]).abs().max() > 1e-12:
        wrong.append(f"running mean {own} {mean}")
    return wrong


def _trained(module: Any, batches: Any) -> list[float]:
    rule = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for x, y in batches:
        rule.zero_grad()
        losses.append(
            float(module.step(module.local_batch(x), target=module.local_batch(y, "target")))
        )
        rule.step()
    return losses


def refusals() -> list[str]:
    """What is said of a plan for other ranks, and of one for another module."""
    found = []
    for plan, model in ((_planned("data", None), Small()), (_planned("data", None, 2), Small(16))):
        try:
            planner.torch.apply(plan, model)
        except InputError as error:
            found.append(str(error))
    return found


def dies() -> None:
    """The second rank ends at once, while the first waits for it."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os._exit(7)
    dist.recv(torch.zeros(1), 1)

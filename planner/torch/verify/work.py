"""What each rank does: the steps of the plan and, on the first one, those of one process."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import Tensor, nn

from costmodels.errors import InputError
from costmodels.graph import Network
from planner.plan.sharding import Sharding
from planner.torch.apply.convolution.module import ConvolutionModule
from planner.torch.apply.convolution.site import Site
from planner.torch.built import NetworkModule, calm_norms
from planner.torch.nodes import operator_of
from planner.torch.source import make_module, traced_source
from planner.torch.verify.apart import farthest
from planner.torch.verify.charged import Key
from planner.torch.verify.precision import all_in_double
from planner.torch.verify.reference import Steps, reference_steps


class RankTask(Struct, frozen=True, kw_only=True):
    """What is run.

    Parameters
    ----------
    network, batch
        The network, and samples of a step. [items]
    source
        "package.module:name" of the module, empty for a network that is written out.
    sharding
        Where tensors lie.
    seed, steps
        Of the random numbers, and how many steps. [items]
    """

    network: Network
    batch: int
    source: str
    sharding: Sharding
    seed: int
    steps: int


class RankOutcome(Struct, kw_only=True):
    """What a rank found.

    Parameters
    ----------
    losses, gradients, weights
        Largest differences from one process, of each step or after the last; the largest gradient
        and weight beside them. Only of the first rank.
    worst
        The parameter whose gradient differs most.
    shapes
        Layers whose blocks have another shape than the plan says: layer, tensor, what it is and
        what it should be.
    checked
        Blocks whose shapes were compared. [items]
    numbers
        What it received in the first step.
    """

    losses: list[float] = field(default_factory=list)
    gradients: list[tuple[float, float]] = field(default_factory=list)
    weights: tuple[float, float] = (0.0, 0.0)
    worst: str = ""
    shapes: list[tuple[str, str, str]] = field(default_factory=list)
    checked: int = 0
    numbers: dict[Key, float] = field(default_factory=dict)


def make(task: RankTask) -> nn.Module:
    """The module of a task, with the same weights on every rank."""
    torch.manual_seed(task.seed)
    torch.set_default_dtype(torch.float64)
    module: nn.Module = make_module(task.source) if task.source else NetworkModule(task.network)
    return calm_norms(module).to(torch.float64)


def run_rank(task: RankTask) -> RankOutcome:
    """The steps of a task on this rank."""
    model = make(task)
    original = copy.deepcopy(model)
    shape = (task.batch, *task.network.input_shape.values())
    with all_in_double():
        traced = traced_source(model, torch.empty(shape))
    names = _names_in_module(task, traced.network)
    back = {other: name for name, other in names.items()}
    sharding = replace(
        task.sharding,
        layers={names[name]: layer for name, layer in task.sharding.layers.items()},
        shuffles=(),
    )
    module = ConvolutionModule(model, traced, sharding, task.batch)
    module.drops = False
    outcome = RankOutcome()
    watch_shapes(module, outcome, back)
    batches = _batches(task, module)
    optimizer = _optimizer(module.parameters())
    losses: list[Tensor] = []
    gradients: list[dict[str, Tensor]] = []
    for step, (x, target) in enumerate(batches):
        optimizer.zero_grad()
        module.messages()
        losses.append(
            module.step(module.local_batch(x), target=module.local_batch(target, "target"))
        )
        if step == 0:
            numbers: dict[Key, float] = defaultdict(float)
            for one in module.messages():
                place = " -> ".join(back.get(name, name) for name in one.layer.split(" -> "))
                numbers[place, one.cause, one.backward] += one.numbers
            outcome.numbers = dict(numbers)
        gradients.append(module.full_gradients())
        optimizer.step()
    weights = module.full_parameters()
    if torch.distributed.get_rank() == 0:
        norms = [site for site in module.sites.values() if is_batch_norm(site)]
        with all_in_double():
            said = reference_steps(original, batches, norms, _optimizer)
        _compare(outcome, (losses, gradients, weights), said)
        if isinstance(original, NetworkModule):
            _, part, last = outcome.worst.split(".", 2)
            outcome.worst = f"{original.sources[int(part)][0]}.{last}"
    return outcome


def run_tasks(tasks: Sequence[RankTask]) -> list[RankOutcome]:
    """The steps of several tasks, one after the other."""
    return [run_rank(task) for task in tasks]


def is_batch_norm(site: Site) -> bool:
    """Whether a layer is a batch norm, and not another norm that is costed as one."""
    known = site.layer.kind in ("batch_norm", "opaque")
    return known and operator_of(site.node) == "batch_norm"


def _optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9)


def _names_in_module(task: RankTask, network: Network) -> dict[str, str]:
    """Layers of the task's network by name: what they are called in the traced module."""
    said = list(task.sharding.layers)
    rows = [row for row in network.layers if row.kind != "input"]
    kinds = {row.name: row.kind for row in task.network.layers}
    for name, row in zip(said, rows, strict=False):
        if kinds[name] != row.kind:
            raise InputError(
                f"the module must have the layers of the plan but has '{row.name}' ({row.kind}) "
                f"in place of '{name}' ({kinds[name]}); give the module that was planned"
            )
    if len(said) != len(rows):
        raise InputError(
            f"the module must have the {len(said)} layers of the plan but has {len(rows)}; give "
            "the module that was planned"
        )
    return {name: row.name for name, row in zip(said, rows, strict=True)}


def _batches(task: RankTask, module: ConvolutionModule) -> list[tuple[Tensor, Tensor]]:
    """What each step reads, and compares with."""
    generator = torch.Generator().manual_seed(task.seed + 1)
    shape = (task.batch, *task.network.input_shape.values())
    last = next(reversed(list(module.sites.values()))).sharding.inputs[0].shape
    return [
        (
            torch.randn(shape, generator=generator),
            torch.randint(last[1], (last[0], *last[2:]), generator=generator),
        )
        for _ in range(task.steps)
    ]


def watch_shapes(module: ConvolutionModule, outcome: RankOutcome, names: dict[str, str]) -> None:
    """Compare the shapes of the blocks that every layer reads and writes with the plan's.

    Parameters
    ----------
    module
        What runs.
    outcome
        Where differences are put down.
    names
        What the plan calls each layer.
    """
    layouts = module.sites

    def seen(layer: str, what: str, x: Tensor) -> None:
        site = layouts[layer]
        number = int(what.split()[1]) if " " in what else 0
        layout = site.output if what == "output" else site.inputs[number]
        tensor = site.sharding.output if what == "output" else site.sharding.inputs[number]
        wanted = tuple(stop - start for start, stop in layout.boxes[site.rank])
        most = tensor.local_shape
        outcome.checked += 1
        fits = all(extent <= limit for extent, limit in zip(x.shape, most, strict=True))
        if tuple(x.shape) != wanted or not fits:
            outcome.shapes.append((f"{names[layer]} {what}", str(list(x.shape)), str(list(wanted))))

    module.watcher = seen


def _compare(
    outcome: RankOutcome,
    found: Steps,
    said: Steps,
) -> None:
    """Put down how far the ranks are from one process.

    Parameters
    ----------
    outcome
        Where.
    found, said
        Losses, gradients and weights of both.
    """
    losses, gradients, weights = said
    outcome.losses = [float((a - b).abs()) for a, b in zip(found[0], losses, strict=True)]
    worst = 0.0
    for mine, theirs in zip(found[1], gradients, strict=True):
        if mine.keys() != theirs.keys():
            raise InputError("the module must have the parameters of the original but has others")
        apart, largest, name = farthest(mine, theirs)
        outcome.gradients.append((apart, largest))
        if largest and apart >= worst * largest:
            worst, outcome.worst = apart / largest, name
    outcome.weights = farthest(found[2], weights)[:2]


def _warm_up() -> None:
    """Trace a small module, so that processes which are forked later need not load all that."""
    torch.set_num_threads(1)
    layers = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU())
    traced_source(layers, (2, 1, 2, 2))


_warm_up()

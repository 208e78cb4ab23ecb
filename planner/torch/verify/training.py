"""What each rank does to verify a plan of a transformer: its steps, and those of one process."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from costmodels.graph import Network
from planner.models.transformer import Transformer
from planner.plan import Plan
from planner.torch.apply.tracing import planned_extents
from planner.torch.apply.transformers import PlannedTransformer, apply_transformer
from planner.torch.source import make_module
from planner.torch.verify.apart import farthest
from planner.torch.verify.reference import output_of
from planner.torch.verify.small import SmallTransformer, small_network


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """What is run.

    Parameters
    ----------
    plan
        The plan.
    network
        The network that it is of.
    source
        "package.module:name" of the module, empty for a description in small.
    one, stack
        That description.
    seed, steps
        Of the random numbers, and how many steps. [items]
    fault
        Spoils the module that a plan was applied to, to see that it is found out.
    """

    plan: Plan
    network: Network
    source: str
    one: Transformer | None
    stack: str
    seed: int
    steps: int
    fault: Callable[[PlannedTransformer], None] | None = None


@dataclass(slots=True, kw_only=True)
class Trained:
    """What a rank found.

    Parameters
    ----------
    losses, gradients, weights
        Largest differences from one process, of each step or after the last; the largest gradient
        and weight beside them. Only of the first rank.
    worst
        The parameter whose gradient differs most.
    shapes, checked
        Blocks of another shape than the plan says, and how many were compared. [items]
    numbers
        What it received in the first step, by layer or layers, cause and pass. [items]
    """

    losses: list[float] = field(default_factory=list)
    gradients: list[tuple[float, float]] = field(default_factory=list)
    weights: tuple[float, float] = (0.0, 0.0)
    worst: str = ""
    shapes: list[tuple[str, str, str]] = field(default_factory=list)
    checked: int = 0
    numbers: dict[tuple[str, str, bool], float] = field(default_factory=dict)


def make_transformer(source: str, one: Transformer | None, stack: str, tokens: int) -> nn.Module:
    """The module that is run.

    Parameters
    ----------
    source, one, stack
        As of `TrainingTask`.
    tokens
        Of a sample. [items]
    """
    if source:
        module: nn.Module = make_module(source)
        return module
    assert one is not None, "there is a module or a description"
    return SmallTransformer(small_network(one, stack, "small", tokens), one)


def train(task: TrainingTask) -> Trained:
    """The steps of a task on this rank."""
    torch.manual_seed(task.seed)
    tokens = next(iter(task.plan.input_shape.values()))
    model = make_transformer(task.source, task.one, task.stack, tokens).double().train()
    for each in model.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
    original = copy.deepcopy(model)
    if any(layer.kind == "combine" for layer in task.plan.layers.values()):
        # CPUs have no grouped products of doubles: one process runs expert after expert
        choose = getattr(original, "set_experts_implementation", None)
        if choose is not None:
            choose("eager")
    planned = apply_transformer(task.plan, model)
    if task.fault is not None:
        task.fault(planned)
    found = Trained()

    def told(what: str, is_: str, said: str) -> None:
        found.checked += 1
        if is_ != said:
            found.shapes.append((what, is_, said))

    planned.watch(told)
    optimizer, single = (
        torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (planned, original)
    )
    compare = dist.get_rank() == 0
    for step, (x, target) in enumerate(_random_batches(task, planned, original)):
        optimizer.zero_grad()
        planned.messages()
        loss = planned.step(planned.local_batch(x), target=planned.local_batch(target, "target"))
        if step == 0:
            numbers: dict[tuple[str, str, bool], float] = defaultdict(float)
            for one in planned.messages():
                numbers[one.layer, one.cause, one.backward] += one.numbers
            found.numbers = dict(numbers)
        gradients = planned.full_gradients()
        optimizer.step()
        if compare:
            single.zero_grad()
            reference = _single_loss(original, x, target)
            reference.backward()
            found.losses.append(float((loss - reference.detach()).abs()))
            said = {n: p.grad for n, p in original.named_parameters() if p.grad is not None}
            apart, largest, worst = farthest(gradients, said)
            if apart >= max((row[0] for row in found.gradients), default=0.0):
                found.worst = worst
            found.gradients.append((apart, largest))
            single.step()
    weights = planned.full_parameters()
    if compare:
        apart, largest, _ = farthest(weights, dict(original.named_parameters()))
        found.weights = apart, largest
    return found


def _single_loss(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    output = output_of(model, x)
    return functional.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))


def _random_batches(
    task: TrainingTask, planned: PlannedTransformer, model: nn.Module
) -> list[tuple[Tensor, Tensor]]:
    """What each step reads, and compares with.

    Parameters
    ----------
    task, planned
        What is run, and the module that runs it.
    model
        The module of one process.
    """
    generator = torch.Generator().manual_seed(task.seed + 1)
    shape = (task.plan.global_batch_size, *planned_extents(task.plan))
    features = planned.num_features
    tokens = list(task.plan.input_shape) == ["sequence"]
    found, wanted = [], None
    for _ in range(task.steps):
        if tokens:
            x = torch.randint(planned.num_rows, shape, generator=generator)
        else:
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if wanted is None:
            with torch.no_grad():
                wanted = output_of(copy.deepcopy(model), x).shape[:-1]
        found.append((x, torch.randint(features, wanted, generator=generator)))
    return found

"""What each rank does to verify a plan of a transformer: its steps, and those of one process."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from msgspec import Struct, field
from torch import Tensor, nn
from torch.nn import functional

from costmodels.graph import Network
from planner.models.traced.shapes import parse_shape
from planner.models.transformer import Transformer
from planner.plan import Plan
from planner.torch.apply.transformers import PlannedTransformer, apply_transformer
from planner.torch.built import NetworkModule, calm_norms
from planner.torch.nodes import arguments, operator_of
from planner.torch.source import make_module
from planner.torch.trace import alone
from planner.torch.verify.apart import farthest
from planner.torch.verify.precision import all_in_double, backward_in_double
from planner.torch.verify.reference import norms_by_samples, output_of
from planner.torch.verify.small import SmallTransformer, small_network

if TYPE_CHECKING:
    from torch.fx import Node


# How often a dropout drops while plans are compared: less often than numbers can tell.
_NEVER = 1e-300


class TrainingTask(Struct, frozen=True, kw_only=True):
    """What is run.

    Parameters
    ----------
    plan
        The plan.
    network
        The network that it is of.
    source
        "package.module:name" of the module, empty for a description in small.
    inputs
        Shapes of the inputs of the module as text; none for the one that the plan tells.
    one, stack
        That description.
    written
        A network that is written out layer by layer in place of both.
    names
        What its layers are called in the plan.
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
    inputs: tuple[str, ...] = ()
    written: Network | None = None
    names: Mapping[str, str] = {}
    fault: Callable[[PlannedTransformer], None] | None = None


class Trained(Struct, kw_only=True):
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
    if task.written is not None:
        model = calm_norms(NetworkModule(task.written)).double().train()
    else:
        model = make_transformer(task.source, task.one, task.stack, tokens).double().train()
    for each in model.modules():
        if isinstance(each, nn.Dropout) and each.p:
            each.p = _NEVER  # at 0 there would be no layer
    original = copy.deepcopy(model)
    if any(layer.kind == "combine" for layer in task.plan.layers.values()):
        # CPUs have no grouped products of doubles: one process runs expert after expert
        choose = getattr(original, "set_experts_implementation", None)
        if choose is not None:
            choose("eager")
    with all_in_double():
        planned = apply_transformer(task.plan, model, inputs=task.inputs or None)
    if task.fault is not None:
        task.fault(planned)
    found = Trained()

    def told(what: str, is_: str, said: str) -> None:
        found.checked += 1
        if is_ != said:
            found.shapes.append((what, is_, said))

    planned.watch(told)
    # with the usual eps, gradients that are nothing but rounding would move weights
    optimizer, single = (
        torch.optim.AdamW(one.parameters(), lr=1e-3, eps=1e-4) for one in (planned, original)
    )
    blocks_of_norms = _blocks_of_norms(planned)
    compare = dist.get_rank() == 0
    names = _names_of_inputs(task, planned)
    for step, (given, target) in enumerate(_random_batches(task, planned, original, names)):
        optimizer.zero_grad()
        planned.messages()
        blocks = [planned.local_batch(one, slot) for slot, one in enumerate(given)]
        loss = planned.step(*blocks, target=planned.local_batch(target, "target"))
        if step == 0:
            numbers: dict[tuple[str, str, bool], float] = defaultdict(float)
            for one in planned.messages():
                numbers[one.layer, one.cause, one.backward] += one.numbers
            found.numbers = dict(numbers)
        gradients = planned.full_gradients()
        optimizer.step()
        if compare:
            single.zero_grad()
            with norms_by_samples(blocks_of_norms), all_in_double(), alone():
                reference = _single_loss(original, names, given, target)
                backward_in_double(reference)
            found.losses.append(float((loss - reference.detach()).abs()))
            said = {n: p.grad for n, p in original.named_parameters() if p.grad is not None}
            apart, largest, worst = farthest(gradients, said)
            if apart >= max((row[0] for row in found.gradients), default=0.0):
                found.worst = worst
            found.gradients.append((apart, largest))
            single.step()
    weights = planned.full_parameters()
    if compare:
        # a weight that nothing uses is no part of the plan
        trained = {n: p for n, p in original.named_parameters() if p.grad is not None}
        apart, largest, _ = farthest(weights, trained)
        found.weights = apart, largest
    return found


def _single_loss(
    model: nn.Module, names: Sequence[str], given: Sequence[Tensor], target: Tensor
) -> Tensor:
    output = _single_output(model, names, given)
    return functional.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))


def _single_output(model: nn.Module, names: Sequence[str], given: Sequence[Tensor]) -> Tensor:
    rows = list(zip(names, given, strict=True))
    by_place = [one for name, one in rows if not name]
    return output_of(model, *by_place, **{name: one for name, one in rows if name})


def _blocks_of_norms(planned: PlannedTransformer) -> list[int]:
    """Blocks of samples that each batch norm has statistics of, in order. [items]"""
    plan = planned.plan
    layers = (
        planned.traced.layer_of(node)
        for node in planned.traced.nodes
        if operator_of(node) == "batch_norm"
    )
    count = plan.schedule.micro_batches
    return [
        count
        if plan.placements(layer).statistics_sums
        else count * plan.layers[layer].distribution.degree("sample")
        for layer in layers
    ]


def _names_of_inputs(task: TrainingTask, planned: PlannedTransformer) -> list[str]:
    """The name of each input that the module is called with by name; empty for the others."""
    named = {parse_shape(one)[0] for one in task.inputs}
    return [node.name if node.name in named else "" for node in planned.traced.inputs]


def _random_batches(
    task: TrainingTask, planned: PlannedTransformer, model: nn.Module, names: Sequence[str]
) -> list[tuple[list[Tensor], Tensor]]:
    """What each step reads, and compares with.

    Parameters
    ----------
    task, planned
        What is run, and the module that runs it.
    model, names
        The module of one process, and the names of its inputs.
    """
    generator = torch.Generator().manual_seed(task.seed + 1)
    batch = task.plan.global_batch_size
    features = planned.num_features
    found, wanted = [], None
    for _ in range(task.steps):
        given = [_random_input(node, batch, generator) for node in planned.traced.inputs]
        if wanted is None:
            with torch.no_grad(), alone():
                wanted = _single_output(copy.deepcopy(model), names, given).shape[:-1]
        found.append((given, torch.randint(features, wanted, generator=generator)))
    return found


def _random_input(node: Node, batch: int, generator: torch.Generator) -> Tensor:
    """Numbers of one input: rows of the table that looks them up, where one does.

    Parameters
    ----------
    node, batch, generator
        The input, how many samples there are, and what draws. [items]
    """
    example = node.meta["val"]
    shape = (batch, *example.shape[1:])
    if example.dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    rows = _rows_looked_up(node)
    if rows is None:  # a mask, that hides the second half of every other sample
        mask = torch.ones(shape, dtype=example.dtype)
        if len(shape) == 2:
            mask[1::2, -(-shape[1] // 2) :] = 0
        return mask
    return torch.randint(rows, shape, generator=generator).to(example.dtype)


def _rows_looked_up(node: Node) -> int | None:
    """Rows of the smallest table that whole numbers are looked up in, None where none is."""
    found: list[int] = []
    seen, waiting = {node}, [node]
    while waiting:
        for user in waiting.pop().users:
            if operator_of(user) == "embedding":
                found.append(arguments(user)["weight"].meta["val"].shape[0])
            value = user.meta.get("val")
            whole = isinstance(value, Tensor) and not value.dtype.is_floating_point
            if whole and user not in seen:
                seen.add(user)
                waiting.append(user)
    return min(found, default=None)

"""Verify a plan of a transformer: run it in small on a few ranks, and compare with one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from planner.plan import Plan
from planner.torch.verify.charged import Key, charged_numbers
from planner.torch.verify.found import is_same_size
from planner.torch.verify.reasons import MessageSizes
from planner.torch.verify.scaled import has_room, smaller_networks
from planner.torch.verify.small import small_description
from planner.torch.verify.staged import Outline, outline_of, planned_as, small_plan
from planner.torch.verify.training import Trained, TrainingTask, make_transformer

# Tokens of a sample of what replaces a built-in transformer. [items]
_TOKENS = 16


def transformer_training(
    plan: Plan,
    ranks: int,
    *,
    module: str = "",
    inputs: tuple[str, ...] = (),
    seed: int = 0,
    steps: int = 3,
    written: Network | None = None,
    fault: Callable[..., None] | None = None,
) -> TrainingTask:
    """What is run in place of a plan.

    Parameters
    ----------
    plan, ranks
        The plan, and on how many ranks it is verified. [items]
    module
        "package.module:name" of the module that was planned, empty for a built-in network.
    inputs, seed, steps, fault
        As of `TrainingTask`.
    written
        A built-in network that is none of transformers.

    Raises
    ------
    InputError
        When the plan cannot be run so.
    """
    from planner.torch.apply.tracing import planned_shapes
    from planner.torch.source import network_of_source

    outline = outline_of(plan, ranks)
    if written is not None:
        return _training_of_layers(plan, written, outline, ranks, (seed, steps))
    tokens = next(iter(plan.input_shape.values())) if module else _TOKENS
    described = None
    if not module:
        heads = max(4, 2 * max((_most_ways(plan, "head"), _most_ways(plan, "filter")), default=1))
        described = small_description(plan.model, len(outline.blocks), min(heads, 16))
        if described is None:
            raise InputError(
                f"the plan must be of a network that is written out in PyTorch, or its module must "
                f"be named, but is of {plan.model}; name it with --module package.module:name"
            )
    one, stack = described if described is not None else (None, "")
    model = make_transformer(module, one, stack, tokens)
    shapes: object = planned_shapes(plan) if module else f"2,{tokens}:int64"
    shapes = inputs or shapes
    network = network_of_source(model, shapes)
    names = {row.name: planned_as(row.name, plan, outline, not module) for row in network.layers}
    small, _ = small_plan(plan, network, outline, names)
    return TrainingTask(
        plan=small,
        network=network,
        source=module,
        one=one,
        stack=stack,
        seed=seed,
        steps=steps,
        inputs=inputs,
        fault=fault,
    )


def _training_of_layers(
    plan: Plan, whole: Network, outline: Outline, ranks: int, numbers: tuple[int, int]
) -> TrainingTask:
    """What is run in place of a plan of a built-in network of images.

    Parameters
    ----------
    plan, whole, outline
        The plan, its network, and what is kept of it.
    ranks, numbers
        On how many ranks it is run, the seed, and how many steps. [items]
    """
    from planner.torch.built import NetworkModule
    from planner.torch.source import network_of_source

    for one in smaller_networks(whole, ranks):
        shapes = ",".join(map(str, (2, *one.input_shape.values())))
        network = network_of_source(NetworkModule(one), shapes)
        traced, rows = (build_graph(each, 2).compute_layers for each in (network, one))
        # where images are so small that nothing is left of space, some layers are others
        if [row.kind for row in traced] != [row.kind for row in rows]:
            continue
        names = {row.name: layer.name for row, layer in zip(traced, rows, strict=True)}
        small, graph = small_plan(plan, network, outline, names)
        if has_room(graph, small.strategy.distributions):
            return TrainingTask(
                plan=small,
                network=network,
                source="",
                one=None,
                stack="",
                seed=numbers[0],
                steps=numbers[1],
                written=one,
                names=names,
            )
    raise InputError(
        f"{plan.model} cannot be run in small on {ranks} ranks: PyTorch has other layers of it, or "
        "norms have too few numbers; verify a module of it (--module package.module:name)"
    )


def _most_ways(plan: Plan, dim: str) -> int:
    """The most ways that a dim is split."""
    return max((row.distribution.degree(dim) for row in plan.layers.values()), default=1)


def verify_transformer(
    plan: Plan,
    ranks: int,
    *,
    module: str = "",
    inputs: tuple[str, ...] = (),
    seed: int = 0,
    steps: int = 3,
    written: Network | None = None,
    fault: Callable[..., None] | None = None,
) -> tuple[TrainingTask, list[Trained]]:
    """Run a plan in small, and what every rank found; arguments as of `transformer_training`.

    Parameters
    ----------
    plan, ranks, module, inputs, seed, steps, written, fault
        As there.
    """
    from planner.torch.verify.ranks import on_ranks
    from planner.torch.verify.training import train

    task = transformer_training(
        plan,
        ranks,
        module=module,
        inputs=inputs,
        seed=seed,
        steps=steps,
        written=written,
        fault=fault,
    )
    found: list[Trained] = on_ranks(train, task.plan.gpus, task)
    return task, found


def transformer_charges(
    task: TrainingTask, received: Mapping[Key, float], topology: Topology
) -> list[tuple[Key, float, float, str]]:
    """Messages of another size than charged: what was received and charged, and why. [items]

    Parameters
    ----------
    task
        What was run.
    received
        Numbers that the busiest rank received in a step.
    topology
        The levels that ranks of a stage lie in.
    """
    plan, count = task.plan, task.plan.schedule.micro_batches
    graph = build_graph(task.network, plan.global_batch_size // count)
    said = charged_numbers(graph, plan.strategy.distributions, topology)
    # what is gathered of a weight is charged with its gradient
    got: dict[Key, float] = {}
    for (place, cause, backward), numbers in received.items():
        cause, backward = ("gradient", True) if cause == "weight" else (cause, backward)
        key = (place, cause, backward)
        got[key] = got.get(key, 0.0) + numbers / (1 if cause == "gradient" else count)
    shared = frozenset(row.name for row in task.network.layers if row.options.get("share"))
    known = MessageSizes(plan=plan, graph=graph, got=got, said=said, shared=shared)
    rows = []
    for key in sorted({*said, *got}):
        have, charged = got.get(key, 0.0), said.get(key, 0.0)
        if not is_same_size(have, charged):
            rows.append((key, have, charged, known.reason(key)))
    return rows

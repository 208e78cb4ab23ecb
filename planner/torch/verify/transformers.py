"""Verify a plan of a transformer: run it in small on a few ranks, and compare with one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.graph import build_graph
from planner.plan import Plan
from planner.torch.verify.charged import Key, charged_numbers
from planner.torch.verify.found import CUT_BIAS
from planner.torch.verify.small import small_description
from planner.torch.verify.staged import outline_of, planned_as, small_plan
from planner.torch.verify.training import Trained, TrainingTask, make_transformer

# Tokens of a sample of what replaces a built-in transformer. [items]
_TOKENS = 16


def transformer_training(
    plan: Plan,
    ranks: int,
    *,
    module: str = "",
    seed: int = 0,
    steps: int = 3,
    fault: Callable[..., None] | None = None,
) -> TrainingTask:
    """What is run in place of a plan.

    Parameters
    ----------
    plan, ranks
        The plan, and on how many ranks it is verified. [items]
    module
        "package.module:name" of the module that was planned, empty for a built-in network.
    seed, steps, fault
        As of `TrainingTask`.

    Raises
    ------
    InputError
        When the plan cannot be run so.
    """
    from planner.torch.source import network_of_source

    outline = outline_of(plan, ranks)
    tokens = next(iter(plan.input_shape.values())) if module else _TOKENS
    described = None
    if not module:
        heads = max(4, 2 * max((_most_ways(plan, "head"), _most_ways(plan, "filter")), default=1))
        described = small_description(plan.model, len(outline.blocks), min(heads, 16))
        if described is None:
            raise InputError(
                f"the plan must be of a built-in transformer, or its module must be named, but is "
                f"of {plan.model}; name it with --module package.module:name"
            )
    one, stack = described if described is not None else (None, "")
    model = make_transformer(module, one, stack, tokens)
    network = network_of_source(model, f"2,{tokens}:int64")
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
        fault=fault,
    )


def _most_ways(plan: Plan, dim: str) -> int:
    """The most ways that a dim is split."""
    return max((row.distribution.degree(dim) for row in plan.layers.values()), default=1)


def verify_transformer(
    plan: Plan,
    ranks: int,
    *,
    module: str = "",
    seed: int = 0,
    steps: int = 3,
    fault: Callable[..., None] | None = None,
) -> tuple[TrainingTask, list[Trained]]:
    """Run a plan in small, and what every rank found; arguments as of `transformer_training`.

    Parameters
    ----------
    plan, ranks, module, seed, steps, fault
        As there.
    """
    from planner.torch.verify.ranks import on_ranks
    from planner.torch.verify.training import train

    task = transformer_training(plan, ranks, module=module, seed=seed, steps=steps, fault=fault)
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
    stage_of = {name: n for n, one in enumerate(plan.strategy.stages) for name in one.layers}
    # what is gathered of a weight is charged with its gradient
    got: dict[Key, float] = {}
    for (place, cause, backward), numbers in received.items():
        cause, backward = ("gradient", True) if cause == "weight" else (cause, backward)
        key = (place, cause, backward)
        got[key] = got.get(key, 0.0) + numbers / (count if cause == "shuffle" else 1)
    moved = {(key[0].split(" -> ")[0], key[2]) for key in got if key[1] == "shuffle"}
    shared = frozenset(row.name for row in task.network.layers if row.options.get("share"))
    rows = []
    for key in sorted({*said, *got}):
        have, charged = got.get(key, 0.0), said.get(key, 0.0)
        if abs(have - charged) > 1e-6 * max(have, charged):
            why = _charge_reason(plan, stage_of, moved, key, have, charged, shared)
            rows.append((key, have, charged, why))
    return rows


def _charge_reason(
    plan: Plan,
    stage_of: Mapping[str, int],
    moved: set[tuple[str, bool]],
    key: Key,
    have: float,
    charged: float,
    shared: frozenset[str],
) -> str:
    """Why a message is of another size than charged, empty where it should not be.

    Parameters
    ----------
    plan, stage_of
        What was run, and the stage of each layer.
    moved
        What was moved, and in which pass.
    key, have, charged
        The message, and numbers received and charged. [items]
    shared
        Layers that use the weight of another.
    """
    place, cause, backward = key
    source, _, reader = place.partition(" -> ")
    layer = plan.layers.get(reader or source)
    if cause == "statistics":
        return "the softmax over cut features is summed with the loss"
    if cause == "gradient" and layer is not None and layer.sharded:
        return "weights and gradients that are cut travel as often as they are used"
    if cause == "gradient" and source in shared and not have:
        return "the gradient of a shared weight is summed once, where the weight is counted"
    if cause == "gradient" and layer is not None and "channel" in layer.degrees and have > charged:
        return CUT_BIAS
    if source == "input":
        return "samples are loaded where they are needed, and not charged"
    if cause == "shuffle" and stage_of.get(source) != stage_of.get(reader):
        return "it goes on to another stage in the layout that is read there"
    recomputed = {name for stage in plan.stages for row in stage.recompute for name in row}
    if cause == "shuffle" and not backward and reader in recomputed:
        return "it is moved again where activations are computed again"
    if cause == "shuffle" and not have and (source, backward) in moved:
        return "it is moved once for all that read it alike"
    if cause == "shuffle" and layer is not None and layer.kind == "attention":
        return "keys and values are repeated for their queries before they are moved"
    return ""

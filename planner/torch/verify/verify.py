"""`planner verify`: run a plan on a few ranks of this machine, and compare with one process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from costmodels.strategy import Stage, Strategy
from planner.models import BUILT_IN, build
from planner.plan import Plan
from planner.plan.shard import shard_plan
from planner.torch.source import input_texts, is_reference, require_one_input
from planner.torch.trace import MODULE_SOURCE, require_torch
from planner.torch.verify.charged import Key, charged_numbers
from planner.torch.verify.found import SizeDifference, Verification, differences
from planner.torch.verify.scaled import (
    SmallPlan,
    fewer_ranks,
    scaled_down,
    smaller_images,
    smaller_networks,
)
from planner.torch.verify.staged import not_kept
from planner.torch.ways import is_for_transformers

if TYPE_CHECKING:
    from planner.torch.verify.training import Trained
    from planner.torch.verify.work import RankOutcome, RankTask

NUM_RANKS = (1, 2, 4, 8)
# Sizes of images at which a module is traced. [items]
_MOST_TRACES = 3


def verify_plan(
    plan: Plan,
    *,
    ranks: int = 4,
    module: str = "",
    inputs: object = None,
    seed: int = 0,
    steps: int = 3,
) -> Verification:
    """Run a plan on a few ranks of this machine, scaled down, and compare with one process.

    Parameters
    ----------
    plan
        A plan.
    ranks
        How many. [items]
    module
        "package.module:name" of the module that was planned; naming it imports that code.
    inputs
        Its inputs as it was planned with them; None for the one that the plan tells.
    seed, steps
        Of the random weights and samples, and how many steps. [items]

    Raises
    ------
    InputError
        When the plan cannot be run so.
    """
    require_torch()
    if ranks not in NUM_RANKS:
        known = ", ".join(map(str, NUM_RANKS))
        raise InputError.rule(
            "the number of ranks (--ranks)", f"be one of {known}", ranks, "take 4"
        )
    if not 0 <= seed < 2**63:
        rule = "be at least 0 and less than 2^63"
        raise InputError.rule("the seed (--seed)", rule, seed, "choose another")
    texts: tuple[str, ...] = ()
    if is_reference(module):
        if inputs:
            texts = input_texts(module, inputs)
        else:
            require_one_input(module)
    if is_for_transformers(plan, len(texts)):
        return _verify_transformer(plan, ranks, module, texts, seed, steps)
    network = _network_of(plan, module)
    shape = fewer_ranks(plan.shape, ranks)
    splits = {name: layer.distribution for name, layer in plan.layers.items()}
    networks = _traced_networks(network, module) if module else smaller_networks(network, ranks)
    small = scaled_down(networks, splits, shape)
    return run_scaled(plan, small, shape, module=module, seed=seed, steps=steps)


def _verify_transformer(
    plan: Plan, ranks: int, module: str, inputs: tuple[str, ...], seed: int, steps: int
) -> Verification:
    """As `verify_plan`, of a transformer.

    Parameters
    ----------
    plan, ranks, module, inputs, seed, steps
        As there.
    """
    from planner.torch.verify.small import is_described
    from planner.torch.verify.transformers import transformer_charges, verify_transformer

    if plan.carried.network is not None and not module:
        raise _needs_module(plan.model, plan.carried.network)
    written = None
    if plan.model in BUILT_IN and not module and not is_described(plan.model):
        written = _network_of(plan, module)
    task, outcomes = verify_transformer(
        plan, ranks, module=module, inputs=inputs, seed=seed, steps=steps, written=written
    )
    received = _busiest(outcomes)
    rows = transformer_charges(task, received, Topology.of(_cluster(plan), task.plan.shape))
    layers = task.plan.layers.values()
    return _verification(
        outcomes,
        received,
        model=plan.model,
        batch=task.plan.global_batch_size,
        image=task.plan.input_shape,
        exercised=Counter(f"{layer.kind}: {layer.distribution}" for layer in layers),
        left_out=tuple(not_kept(plan, task.plan)),
        differences=tuple(
            SizeDifference(
                place=" -> ".join(task.names.get(name, name) for name in key[0].split(" -> ")),
                cause=key[1],
                backward=key[2],
                received=got,
                charged=said,
                reason=reason,
            )
            for key, got, said, reason in rows
        ),
    )


def run_scaled(
    plan: Plan,
    small: SmallPlan,
    shape: tuple[int, ...],
    *,
    module: str = "",
    seed: int = 0,
    steps: int = 3,
) -> Verification:
    """Run what was scaled down.

    Parameters
    ----------
    plan
        The plan that it was made of.
    small
        What is run.
    shape
        Members of each level. [items]
    module, seed, steps
        As of `verify_plan`.
    """
    from planner.torch.verify.ranks import on_ranks
    from planner.torch.verify.work import run_rank

    task = task_of(small, shape, plan.level_names, module=module, seed=seed, steps=steps)
    outcomes: list[RankOutcome] = on_ranks(run_rank, math.prod(shape), task)
    return verification_of(plan.model, small, Topology.of(_cluster(plan), shape), outcomes)


def task_of(
    small: SmallPlan,
    shape: tuple[int, ...],
    level_names: Sequence[str],
    *,
    module: str = "",
    seed: int = 0,
    steps: int = 3,
) -> RankTask:
    """What the ranks do.

    Parameters
    ----------
    small, shape, module, seed, steps
        As of `run_scaled`.
    level_names
        What levels are called.
    """
    from planner.torch.verify.work import RankTask

    graph = build_graph(small.network, small.batch)
    stage = Stage(layers=tuple(small.distributions), first_device=0, shape=shape)
    strategy = Strategy(stages=(stage,), distributions=small.distributions)
    return RankTask(
        network=small.network,
        batch=small.batch,
        source=module,
        sharding=shard_plan(graph, strategy, level_names),
        seed=seed,
        steps=steps,
    )


def verification_of(
    model: str, small: SmallPlan, topology: Topology, outcomes: Sequence[RankOutcome]
) -> Verification:
    """What the ranks found, beside what is charged.

    Parameters
    ----------
    model, small
        The network, and what was run in its place.
    topology
        The levels that ranks lie in.
    outcomes
        Of every rank.
    """
    graph = build_graph(small.network, small.batch)
    names = [f"level{number}" for number in range(len(topology.shape))]
    sharding = task_of(small, topology.shape, names).sharding
    charged = charged_numbers(graph, small.distributions, topology)
    received = _busiest(outcomes)
    layers = graph.compute_layers
    return _verification(
        outcomes,
        received,
        model=model,
        batch=small.batch,
        image=small.network.input_shape,
        exercised=Counter(f"{row.kind}: {small.distributions[row.name]}" for row in layers),
        left_out=small.left_out,
        differences=tuple(differences(graph, small.distributions, sharding, received, charged)),
    )


def _busiest(outcomes: Sequence[RankOutcome | Trained]) -> dict[Key, float]:
    """Numbers that the rank received that got the most of each message. [items]"""
    received: dict[Key, float] = {}
    for outcome in outcomes:
        for key, numbers in outcome.numbers.items():
            received[key] = max(received.get(key, 0.0), numbers)
    return received


def _verification(
    outcomes: Sequence[RankOutcome | Trained], received: Mapping[Key, float], **more: Any
) -> Verification:
    """What the ranks found.

    Parameters
    ----------
    outcomes, received
        Of every rank, and the numbers that the busiest ones received.
    more
        The other fields of `Verification`.
    """
    messages: dict[str, tuple[int, float]] = {}
    for (_, cause, backward), numbers in sorted(received.items()):
        name = f"{cause} {'backward' if backward else 'forward'}"
        count, total = messages.get(name, (0, 0.0))
        messages[name] = (count + 1, total + numbers)
    first = outcomes[0]
    return Verification(
        ranks=len(outcomes),
        losses=tuple(first.losses),
        gradients=tuple(first.gradients),
        weights=first.weights,
        worst=first.worst,
        shapes=tuple(row for outcome in outcomes for row in outcome.shapes),
        checked=sum(outcome.checked for outcome in outcomes),
        messages=messages,
        **more,
    )


def _traced_networks(network: Network, module: str) -> list[Network]:
    """A module at smaller images, as long as its layers are those of the plan.

    Parameters
    ----------
    network, module
        The network of the plan, and the module that it is.
    """
    from planner.torch.source import traced_source

    found: list[Network] = []
    last: InputError | None = None
    for shape in smaller_images(network.input_shape):
        if len(found) == _MOST_TRACES:
            break
        try:
            one = traced_source(module, (2, *shape.values())).network
        except InputError as error:
            last = error
            continue
        if _layer_rows(one) == _layer_rows(network):
            found.append(one)
    if not found:
        raise last or InputError(
            f"the module '{module}' must have the layers of the plan for {network.name} but has "
            "others; name the module that was planned"
        )
    return found


def _layer_rows(network: Network) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(row.name, row.kind, row.inputs) for row in network.layers]


def _cluster(plan: Plan) -> Cluster:
    return plan.carried.cluster or load_cluster(plan.cluster)


def _needs_module(model: str, network: Network) -> InputError:
    """What to say where a plan carries a network, and no module that computes it is named."""
    if network.source == MODULE_SOURCE:
        what = f"the PyTorch module {model}, whose code a plan does not carry; name it"
    else:
        what = f"the network {model} of a file, which is no module; name one that computes it"
    return InputError(f"the plan is of {what} with --module package.module:name")


def _network_of(plan: Plan, module: str) -> Network:
    """The network of a plan.

    Raises
    ------
    InputError
        When the plan is of a module that is not named, or cannot be run layer by layer.
    """
    if module and not is_reference(module):
        raise InputError.rule(
            "the module (--module)", "be package.module:name", f"'{module}'", "correct it"
        )
    if plan.carried.network is not None:
        network = plan.carried.network
        if network.source == MODULE_SOURCE and not module:
            raise _needs_module(plan.model, network)
        return network
    if plan.model not in BUILT_IN:
        raise InputError(
            f"the plan must be of a network that is built in or that it carries but is of "
            f"{plan.model}; make it again with 'planner optimize -o'"
        )
    shape = plan.input_shape
    return build(plan.model, shape.get("height", shape.get("sequence")))

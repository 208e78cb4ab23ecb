"""What the fullest device holds at least under a choice as it is cut, known without laying it out.

Of networks without attention. What is kept for backward counts once, with a layer that keeps it
(`held_inputs`), so that it is held by that layer's stage wherever the other end of it lies; a stage
has micro-batches under way as its schedule lets it run ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.graph import Graph
from costmodels.simulation.buckets import unit_of
from costmodels.step.memory import held_inputs
from costmodels.strategy import Stage
from planner.joint.again import units_of
from planner.joint.choices import Choice
from planner.joint.weights import LeastWeights
from planner.request.setting import Setting


class LeastOfStages:
    """What devices of stages hold at least of weights and activations.

    Parameters
    ----------
    setting
        The question, of a network without attention.
    """

    def __init__(self, setting: Setting) -> None:
        graph = setting.graph
        self.weights = LeastWeights(setting)
        self.parameters = {
            layer.name: float(layer.parameters) * (layer.shares_weight_with is None)
            for layer in graph.compute_layers
        }
        blocks = units_of([layer.name for layer in graph.compute_layers]).items()
        again = {unit for unit, places in blocks if len(places) > 1}
        size = setting.machine.training.activation_size / setting.batch
        # of a sample, where nothing and where every block is computed again. [B]
        self.kept = {
            what: {name: size * count for name, count in _kept(graph, units).items()}
            for what, units in (("none", set[str]()), ("full", again))
        }

    def of(self, choice: Choice, stages: Sequence[Stage]) -> float:
        """What the fullest device holds at least, without what the framework reserves. [B]

        Parameters
        ----------
        choice, stages
            The choice, and how it is cut.
        """
        weight, gradient, state = self.weights.sizes[choice.zero > 2]
        each = weight / (choice.dp if choice.zero > 2 else 1)
        each += gradient / (choice.dp if choice.zero > 1 else 1)
        each += state / (choice.dp if choice.zero > 0 else 1)
        kept = self.kept[str(choice.inside.recompute)]
        held = [0.0] * choice.pp
        for number, stage in enumerate(stages):
            chunk, group = divmod(number, choice.pp)
            flying = _under_way(choice, chunk, group)
            held[group] += each * sum(self.parameters[name] for name in stage.layers)
            held[group] += flying * choice.samples * sum(kept[name] for name in stage.layers)
        return max(held) / choice.inside.tp


def _under_way(choice: Choice, chunk: int, group: int) -> int:
    """Micro-batches that a stage has under way at once, or fewer. [items]

    Parameters
    ----------
    choice
        The choice.
    chunk, group
        Which stage of a group, and which group.
    """
    pp, count = choice.pp, choice.micro_batches
    if choice.chunks == 1:
        return min(pp - group, count)
    if count == pp:
        return count
    # passes before the first one backwards: in rounds of all groups, chunk by chunk
    ahead = max(2 * (pp - group - 1) + (choice.chunks - 1) * pp, 1)
    return min(max(ahead - chunk * pp, 0), pp, count)


def _kept(graph: Graph, again: set[str]) -> dict[str, float]:
    """Elements that each layer keeps of all samples for its backward pass, or less. [items]

    Parameters
    ----------
    graph
        The network.
    again
        Units of layers that are computed again: of these only what they start from is kept.
    """
    found = {}
    for layer in graph.compute_layers:
        unit = unit_of(layer.name)
        count = float(layer.output.size) * (layer.keeps_output and unit not in again)
        held = held_inputs(graph, layer.name)
        for edge, counts in zip(graph.producers[layer.name], held, strict=True):
            inside = unit in again and unit_of(edge.source) == unit
            # what the network is given is not kept by every runtime
            given = graph.layers[edge.source].kind == "input"
            count += layer.inputs[edge.slot].size * (counts and not inside and not given)
        found[layer.name] = count
    return found

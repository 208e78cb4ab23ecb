"""ParaDL: the closed forms of Kahira et al. 2021 (HPDC'21), Table III, for one step.

A layer takes what it takes undivided on one device at the micro-batch, divided by the ranks that
share its samples; collectives are rings with one alpha and one beta; nothing is hidden. The memory
column is `costmodels.step.memory.paradl`.

Corrected against the print: in data + filter parallelism p1 and p2 are subscripts (equations 21
and 22), and a pipeline updates weights once an iteration (equation 12). Nothing wants the gradient
of the data, so that the first layer has no backward-data pass. Layers without filters or channels
to split are divided like all others, as the table's sums run over all layers; layers that spatial
parallelism leaves whole are not, and what it costs to gather for them is not in the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from costmodels.closed_form.links import (
    message_time,
    ring_all_gather_time,
    ring_all_reduce_time,
)
from costmodels.closed_form.passes import needs_input_gradient, pass_work, sample_blocks
from costmodels.closed_form.recognise import RecognisedStrategy, recognise
from costmodels.closed_form.result import CAUSES, ClosedForm
from costmodels.compute import Work
from costmodels.distribution import Candidates, Distribution
from costmodels.errors import InputError
from costmodels.graph import SPATIAL_DIMS, Graph, Layer, Tensor
from costmodels.layers.layer_passes import LAUNCH, SOURCES
from costmodels.layers.local_work import update_work
from costmodels.step.machine import Machine


def _launched_seconds(works: list[Work], machine: Machine, sources: dict[str, float]) -> float:
    """What a device measures for these kernels: none is faster than it is launched. [s]

    The time goes to its sources, too.
    """
    total = 0.0
    for work in works:
        times, known = machine.compute.time(work)
        seconds = float(np.max(times))
        waiting = max(machine.training.launch_time - seconds, 0.0)
        for name, part in ((SOURCES[int(known.max())], seconds), (SOURCES[LAUNCH], waiting)):
            sources[name] = sources.get(name, 0.0) + part
        total += seconds + waiting
    return total


def layer_times(
    graph: Graph,
    layer: Layer,
    micro_batches: Candidates,
    machine: Machine,
    sources: dict[str, float],
) -> tuple[float, float]:
    """FW_l and BW_l times the samples of a micro-batch, the layer itself undivided. [s]

    Parameters
    ----------
    graph, layer
        The network, and one of its layers.
    micro_batches
        Division of the samples, and of nothing else.
    machine
        Device and training options.
    sources
        Time of computation by where its estimate comes from, to which that of the layer is added.
        [s]
    """
    forward, backward = pass_work(graph, layer, micro_batches)
    there = _launched_seconds(forward, machine, sources)
    return there, _launched_seconds(backward, machine, sources)


def update_time(layer: Layer, machine: Machine) -> float:
    """WU_l: the update of all the layer's weights. [s]"""
    if not layer.parameters or layer.shares_weight_with is not None:
        return 0.0
    work = update_work(np.array([float(layer.parameters)]), machine.training.optimizer)
    latency = machine.compute.device.kernel_latency
    # optimizers update all weights in a few fused kernels: no fixed cost for each layer
    return max(float(machine.compute.time(work)[0][0]) - latency, 0.0)


def paradl_step(
    graph: Graph, distributions: Mapping[str, Distribution], machine: Machine
) -> ClosedForm:
    """Time of a step of a plan that is one of Table III's strategies, or data + spatial.

    Parameters
    ----------
    graph
        The network at the global batch.
    distributions
        How every layer but the inputs is split.
    machine
        Links, device and training options.
    """
    strategy = recognise(graph, distributions)
    forward = backward = update = 0.0
    sources: dict[str, float] = {}
    blocks = sample_blocks(strategy.num_groups)
    for layer in graph.compute_layers:
        ways = _work_ways(strategy, layer)
        once = layer_times(graph, layer, blocks, machine, sources)
        forward += once[0] / ways
        backward += once[1] / ways
        # equations 5 and 9: whole weights; equations 18 and 21: the rank's share of them
        update += update_time(layer, machine) / (1 if strategy.kind == "spatial" else ways)
    communication = dict.fromkeys(CAUSES, 0.0)
    communication["gradient"] = _gradient_time(graph, strategy, machine)
    if strategy.kind == "spatial":
        communication["halo"] = sum(
            _halo_time(graph, layer, distributions[layer.name], strategy, machine)
            for layer in graph.compute_layers
            if layer.name in strategy.split
        )
    elif strategy.kind:
        communication["reduction"] = _layer_wise_time(graph, strategy, machine)
    return ClosedForm(
        strategy=strategy.name,
        forward=forward,
        backward=backward,
        update=update,
        communication=communication,
        sources=sources,
    )


def _work_ways(strategy: RecognisedStrategy, layer: Layer) -> int:
    """Ranks among which the work on a group's samples is divided. [ways]"""
    whole = strategy.kind == "spatial" or layer.multiplies_weight
    return 1 if whole and layer.name not in strategy.split else strategy.group_size


def _gradient_time(graph: Graph, strategy: RecognisedStrategy, machine: Machine) -> float:
    """Ring all-reduce of all gradients at once (equations 6, 10 and 22). [s]"""
    size = graph.parameters * float(machine.training.gradient_size)
    group = strategy.samples
    if strategy.kind == "spatial":
        group = tuple(s * o for s, o in zip(strategy.samples, strategy.others, strict=True))
    else:
        size /= strategy.group_size
    return ring_all_reduce_time(machine.topology, group, size)


def _bytes(tensor: Tensor, num_groups: int, machine: Machine) -> float:
    """An activation of a group's samples. [B]"""
    return tensor.size * float(machine.training.activation_size) / num_groups


def _layer_wise_time(graph: Graph, strategy: RecognisedStrategy, machine: Machine) -> float:
    """Gathers and sums in every layer (equations 15, 19 and 22 before |x_l| = |y_l-1|). [s]

    Filter parallelism gathers y in the forward pass and sums dL/dx in the backward pass, channel
    parallelism the other way round; the last output and the data's gradient need neither.
    """
    topology, size = machine.topology, strategy.group_size
    weighted = [layer for layer in graph.compute_layers if layer.multiplies_weight]
    time = 0.0
    for layer in weighted:
        if layer.name not in strategy.split:
            continue
        y = _bytes(layer.output, strategy.num_groups, machine) * (layer is not weighted[-1])
        x = _bytes(layer.inputs[0], strategy.num_groups, machine)
        x *= needs_input_gradient(graph, layer)
        gathered, summed = (y, x) if strategy.kind == "filter" else (x, y)
        if gathered:
            time += ring_all_gather_time(topology, strategy.others, gathered / size)
        if summed:
            time += ring_all_reduce_time(topology, strategy.others, summed)
    return time


def halo_items(layer: Layer, tensor: Tensor, distribution: Distribution) -> float:
    """halo(): half a kernel of positions on one side of every split dim, all samples. [items]

    Parameters
    ----------
    layer
        A layer with windows.
    tensor
        Its input or its output.
    distribution
        Its split.
    """
    total = 0.0
    for dim, window in layer.windows.items():
        if distribution.degree(dim) == 1 or layer.transposed:
            continue
        face = 1.0
        for axis in tensor.axes:
            if axis.name != dim:
                spatial = axis.name in SPATIAL_DIMS
                face *= axis.extent / (distribution.degree(axis.name) if spatial else 1)
        total += window.reach // 2 * face
    return total


def _halo_time(
    graph: Graph,
    layer: Layer,
    distribution: Distribution,
    strategy: RecognisedStrategy,
    machine: Machine,
) -> float:
    """Two messages, one to each side, for x and for dL/dy (equation 10). [s]"""
    wanted = [layer.inputs[0]]
    if needs_input_gradient(graph, layer):
        wanted.append(layer.output)
    time = 0.0
    for tensor in wanted:
        items = halo_items(layer, tensor, distribution) / strategy.num_groups
        if items:
            size = items * machine.training.activation_size
            time += 2.0 * message_time(machine.topology, strategy.others, size)
    return time


def pipeline_time(
    graph: Graph, stages: Mapping[str, int], num_segments: int, machine: Machine
) -> ClosedForm:
    """Time of a step of layer (pipeline) parallelism (equations 12 and 13, corrected).

    Stage i runs on rank i. With S segments and p stages the forward and the backward pass take
    p+S-1 times the slowest stage's segment each, weights are updated once, and each of the
    2 (p+S-2) hand-overs takes the slowest message between two stages.

    Parameters
    ----------
    graph
        The network at the global batch.
    stages
        Stage of every layer but the inputs, from 0, along the network. [index]
    num_segments
        Parts that the batch is divided into. [items]
    machine
        Links, device and training options.
    """
    p, shape = math.prod(machine.topology.shape), machine.topology.shape
    _check_stages(graph, stages, num_segments, p)
    blocks = sample_blocks(num_segments)
    times = np.zeros((3, p))
    sources: dict[str, float] = {}
    for layer in graph.compute_layers:
        once = layer_times(graph, layer, blocks, machine, sources)
        times[:, stages[layer.name]] += (*once, update_time(layer, machine))
    forward, backward, update = times.max(axis=1)
    below = np.cumprod([1, *shape])
    messages = [0.0]
    for stage in range(1, p):
        # the outermost level at which the ranks on both sides of the border differ
        level = max(i for i in range(len(shape)) if stage % below[i] == 0)
        pair = [2 if i == level else 1 for i in range(len(shape))]
        sent = {e.source for e in graph.edges if _crosses(graph, e.source, e.target, stages, stage)}
        size = sum(_bytes(graph.layers[name].output, num_segments, machine) for name in sent)
        messages.append(message_time(machine.topology, pair, size))
    communication = dict.fromkeys(CAUSES, 0.0)
    communication["stage"] = 2.0 * (p + num_segments - 2) * max(messages)
    return ClosedForm(
        strategy="pipeline",
        forward=float(p + num_segments - 1) * float(forward),
        backward=float(p + num_segments - 1) * float(backward),
        update=float(update),
        communication=communication,
        sources=sources,
    )


def _crosses(graph: Graph, source: str, target: str, stages: Mapping[str, int], stage: int) -> bool:
    """Whether an activation passes the border in front of a stage; the data goes where it must."""
    return graph.layers[source].kind != "input" and stages[source] < stage <= stages[target]


def _check_stages(graph: Graph, stages: Mapping[str, int], num_segments: int, p: int) -> None:
    batch = graph.layers["input"].dims["sample"]
    if not 1 <= num_segments <= batch:
        raise InputError(
            f"a pipeline must have from 1 segment to one a sample ({batch}) but has "
            f"{num_segments}; choose another number of segments"
        )
    for layer in graph.compute_layers:
        if not 0 <= stages.get(layer.name, -1) < p:
            raise InputError(
                f"layer '{layer.name}' must have a stage from 0 to {p - 1} but has "
                f"{stages.get(layer.name, 'none')}; give it the index of one of the {p} devices"
            )
    for edge in graph.edges:
        ends = graph.layers[edge.source].kind == "input" or (
            stages[edge.source] <= stages[edge.target]
        )
        if not ends:
            raise InputError(
                f"layer '{edge.target}' must not run in an earlier stage than '{edge.source}', "
                f"which it reads, but runs in {stages[edge.target]} and it in "
                f"{stages[edge.source]}; move one of them"
            )
    empty = set(range(p)) - set(stages.values())
    if empty:
        raise InputError(
            f"every stage of a pipeline must have layers but stage {min(empty)} of {p} has none; "
            "use fewer devices or move layers"
        )

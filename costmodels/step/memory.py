"""Memory of one device during a step.

`liveness` walks through the step and counts what is allocated: an activation lives from the
layer that makes it until the last pass that reads it, in-place layers take over their input,
partial sums are whole only while their layer runs and then leave each rank its part of them, and
the gradient of an activation lives from its reader's backward pass to its maker's. `retained` frees
nothing within the step: every output and every gradient of an input has memory of its own, which
frameworks allocate once. `paradl` is the
conservative closed form of Kahira et al. (equation 7 and its likes): twice the inputs, outputs and
weights of every layer, nothing shared.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from costmodels.graph import Graph

HOLDERS = (
    "weights",
    "weight gradients",
    "optimizer state",
    "activations",
    "activation gradients",
    "workspace",
    "communication buffers",
    "reserved",
)


class LayerMemory(Struct, frozen=True, kw_only=True):
    """Local sizes of one layer under its distribution. [B]

    Parameters
    ----------
    weights, gradients, state
        Weights, their gradients, optimizer state.
    output
        The output as the layer makes it, partial sums of all of it included.
    kept
        What stays of that once partial sums are reduced and scattered.
    inputs
        Each input in the layout that the layer reads.
    copied
        For each input, whether that is another copy than the producer's output.
    saved
        What else is kept for backward.
    workspace
        Scratch space while the layer runs.
    buffer
        Halo and reduction buffers while the layer runs.
    """

    weights: float
    gradients: float
    state: float
    output: float
    kept: float
    inputs: tuple[float, ...]
    copied: tuple[bool, ...]
    saved: float
    workspace: float
    buffer: float


class PeakMemory(Struct, frozen=True, kw_only=True):
    """The most memory that a device holds at once.

    Parameters
    ----------
    total
        All of it, what the framework reserves included. [B]
    holders
        By what holds it, keys as in `HOLDERS`. [B]
    moment
        The pass and layer at which it is reached.
    """

    total: float
    holders: Mapping[str, float]
    moment: str


def keeps_tensor(graph: Graph, name: str) -> bool:
    """Whether the output of a layer stays in memory until the backward pass."""
    return graph.layers[name].keeps_output or any(
        graph.layers[edge.target].keeps_inputs for edge in graph.consumers[name]
    )


def held_inputs(graph: Graph, name: str) -> tuple[bool, ...]:
    """For each input of a layer, whether to count it as the layer's in a lower bound of memory.

    What is kept for backward is the maker's block, or the reader's copy of it where layouts
    differ; the reader's block is never larger than what is kept. So each kept tensor counts once:
    with its maker if that keeps its output, else with the first reader that keeps its inputs. The
    data is kept throughout, and counts with its first reader.
    """
    counted: dict[str, int] = {}
    held = []
    for edge in graph.producers[name]:
        maker, edges = graph.layers[edge.source], graph.consumers[edge.source]
        if maker.kind == "input":
            held.append(edge == edges[0])
            continue
        readers = [e.target for e in edges if graph.layers[e.target].keeps_inputs]
        # a layer may read parts of a tensor (attention does), but not count one part twice
        size = counted.get(edge.source, 0) + graph.layers[name].inputs[edge.slot].size
        first = name in readers[:1] and not maker.keeps_output and size <= maker.output.size
        counted[edge.source] = size if first else counted.get(edge.source, 0)
        held.append(first)
    return tuple(held)


class _Ledger:
    """What is allocated now, and what was when it was most."""

    def __init__(self, fixed: dict[str, float]) -> None:
        self.now = {**dict.fromkeys(HOLDERS, 0.0), **fixed}
        self.total = sum(self.now.values())
        self.peak, self.peak_total, self.moment = dict(self.now), self.total, "start"
        self.live: dict[tuple[str, str, int], tuple[str, float]] = {}

    def allocate(self, key: tuple[str, str, int], holder: str, size: float) -> None:
        if key not in self.live:
            self.live[key] = (holder, size)
            self.now[holder] += size
            self.total += size

    def free(self, key: tuple[str, str, int]) -> None:
        if key in self.live:
            holder, size = self.live.pop(key)
            self.now[holder] -= size
            self.total -= size

    def run(self, moment: str, memory: LayerMemory, unreduced: float = 0.0) -> None:
        """A kernel runs with its scratch space; take note where memory has never been fuller.

        Parameters
        ----------
        moment
            What runs.
        memory
            Sizes of its layer.
        unreduced
            What it makes of partial sums beyond the part that stays. [B]
        """
        total = self.total + memory.workspace + memory.buffer + unreduced
        if total > self.peak_total:
            self.peak_total, self.moment = total, moment
            self.peak = dict(self.now)
            self.peak["activations"] += unreduced
            self.peak["workspace"] += memory.workspace
            self.peak["communication buffers"] += memory.buffer


def liveness(
    graph: Graph, sizes: Mapping[str, LayerMemory], *, reserved: float, bucket_bytes: float
) -> PeakMemory:
    """Peak memory of a step by following every allocation.

    Parameters
    ----------
    graph
        The network.
    sizes
        Local sizes of every layer but the inputs.
    reserved
        Memory that the device and the framework take. [B]
    bucket_bytes
        Size of the gradient buckets, two of which are in flight. [B]
    """
    gradients = sum(m.gradients for m in sizes.values())
    ledger = _Ledger(
        {
            "weights": sum(m.weights for m in sizes.values()),
            "weight gradients": gradients,
            "optimizer state": sum(m.state for m in sizes.values()),
            "communication buffers": min(2.0 * bucket_bytes, gradients),
            "reserved": reserved,
        }
    )
    # readers whose backward pass reads the maker's own block, not a copy in another layout
    keeping = {
        name: sum(
            graph.layers[e.target].keeps_inputs and not sizes[e.target].copied[e.slot]
            for e in edges
        )
        for name, edges in graph.consumers.items()
    }
    _follow_forward(graph, sizes, ledger, keeping)
    _follow_backward(graph, sizes, ledger, keeping)
    return PeakMemory(total=ledger.peak_total, holders=ledger.peak, moment=ledger.moment)


def _follow_forward(
    graph: Graph,
    sizes: Mapping[str, LayerMemory],
    ledger: _Ledger,
    keeping: Mapping[str, int],
) -> None:
    """Follow the forward pass: what no backward pass reads goes with its last reader."""
    own = {name: keeping[name] > 0 or layer.keeps_output for name, layer in graph.layers.items()}
    left = {name: len(edges) for name, edges in graph.consumers.items()}
    for layer in graph.compute_layers:
        name, memory, into = layer.name, sizes[layer.name], graph.producers[layer.name]
        for edge in into:
            if graph.layers[edge.source].kind == "input":
                ledger.allocate(("data", edge.source, 0), "activations", memory.inputs[edge.slot])
            elif memory.copied[edge.slot]:
                ledger.allocate(("copy", name, edge.slot), "activations", memory.inputs[edge.slot])
        first = into[0].source
        if layer.in_place and not own[first] and left[first] == 1 and not memory.copied[0]:
            ledger.free(("out", first, 0))
        ledger.allocate(("out", name, 0), "activations", memory.kept)
        ledger.allocate(("saved", name, 0), "activations", memory.saved)
        ledger.run(f"forward of {name}", memory, memory.output - memory.kept)
        for edge in into:
            left[edge.source] -= 1
            if left[edge.source] == 0 and not own[edge.source]:
                ledger.free(("out", edge.source, 0))
            if not layer.keeps_inputs:
                ledger.free(("copy", name, edge.slot))
        if not left[name] and not layer.keeps_output:
            ledger.free(("out", name, 0))


def _follow_backward(
    graph: Graph,
    sizes: Mapping[str, LayerMemory],
    ledger: _Ledger,
    keeping: Mapping[str, int],
) -> None:
    """Follow the backward pass: what was kept goes with the last backward pass that reads it."""
    left = dict(keeping)
    for layer in reversed(graph.compute_layers):
        name, memory = layer.name, sizes[layer.name]
        if not graph.consumers[name]:
            ledger.allocate(("grad", name, 0), "activation gradients", memory.output)
        for edge in graph.producers[name]:
            if graph.needs_input_gradient(edge):
                size = max(memory.inputs[edge.slot], sizes[edge.source].output)
                ledger.allocate(("grad", edge.source, 0), "activation gradients", size)
        ledger.run(f"backward of {name}", memory)
        for edge in graph.producers[name]:
            ledger.free(("copy", name, edge.slot))
            left[edge.source] -= layer.keeps_inputs and not memory.copied[edge.slot]
            if not left[edge.source] and not graph.layers[edge.source].keeps_output:
                ledger.free(("out", edge.source, 0))
        for kind in ("grad", "out", "saved"):
            ledger.free((kind, name, 0))


def retained(graph: Graph, sizes: Mapping[str, LayerMemory], *, reserved: float) -> PeakMemory:
    """Memory where every output and every gradient of an input keeps memory of its own.

    Parameters
    ----------
    graph
        The network.
    sizes
        Local sizes of every layer but the inputs.
    reserved
        Memory that the device and the framework take. [B]
    """
    activations = gradients = 0.0
    for name, memory in sizes.items():
        activations += memory.kept + memory.saved
        for edge in graph.producers[name]:
            own = memory.inputs[edge.slot]
            first = edge == graph.consumers[edge.source][0]
            is_data = graph.layers[edge.source].kind == "input"
            activations += own * (memory.copied[edge.slot] or (is_data and first))
            gradients += own * graph.needs_input_gradient(edge)
    largest = max(sizes.values(), key=lambda m: m.workspace + m.buffer + m.output - m.kept)
    holders = {
        "weights": sum(m.weights for m in sizes.values()),
        "weight gradients": sum(m.gradients for m in sizes.values()),
        "optimizer state": sum(m.state for m in sizes.values()),
        "activations": activations + largest.output - largest.kept,
        "activation gradients": gradients,
        "workspace": largest.workspace,
        "communication buffers": largest.buffer,
        "reserved": reserved,
    }
    return PeakMemory(total=sum(holders.values()), holders=holders, moment="all layers at once")


def paradl(graph: Graph, sizes: Mapping[str, LayerMemory], *, reserved: float) -> PeakMemory:
    """Memory by the closed form of Kahira et al.: 2 (x + y + w) summed over layers.

    Equations 16, 17 and 20 count the whole of y_l and x_l where filters or channels are split; here
    a rank has its part of what it makes or reads, and the whole where a layer reads what was
    gathered: the part is no second copy of that.

    Parameters
    ----------
    graph
        The network.
    sizes
        Local sizes of every layer but the inputs.
    reserved
        Memory that the device and the framework take. [B]
    """
    weights = sum(m.weights for m in sizes.values())
    activations = sum(m.output + sum(m.inputs) for m in sizes.values())
    holders = {
        **dict.fromkeys(HOLDERS, 0.0),
        "weights": weights,
        "weight gradients": sum(m.gradients for m in sizes.values()),
        "activations": activations,
        "activation gradients": activations,
        "reserved": reserved,
    }
    return PeakMemory(total=sum(holders.values()), holders=holders, moment="all layers at once")

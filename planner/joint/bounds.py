"""What no step of any pipeline takes less than, by computation alone.

Let every micro-batch take a device of stage i at least c_i, and let c be what all stages take
together. A device of stage i works m c_i, and waits before its first and after its last micro-batch
for the stages before it: the step T is at least m c_i + c_0 + ... + c_(i-1). The c_i that sum to c
with the smallest T make all of these equal, c_i = T/m (1 - 1/m)^i, so that

    T >= c / (1 - (1 - 1/m)^p).

With several chunks a group only its share counts, T >= m c / p. Neither knows of communication, of
recomputation or of memory; both hold for every split of every layer, and for every cut.
"""

from __future__ import annotations

from dataclasses import replace

from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from planner.joint.choices import divisors
from planner.joint.reduced import Reduced
from planner.planning.bounds.left_out import LayerComputation
from planner.request.setting import Setting, training_graph
from search.problem.deadline import Deadline


class PipelineBounds:
    """Bounds of the steps of one question.

    Parameters
    ----------
    setting
        The question.
    reduced
        Its network without repeated blocks.
    """

    def __init__(self, setting: Setting, reduced: Reduced) -> None:
        self.setting = setting
        self.times: dict[str, int] = {}
        for layer in setting.graph.compute_layers:
            name = reduced.like[layer.name]
            self.times[name] = self.times.get(name, 0) + 1
        self.network = reduced.network
        self.known: dict[tuple[int, int], float] = {}

    def micro_batch(self, gpus: int, samples: int) -> float:
        """What a device computes at least for a micro-batch, all stages together. [s]

        Parameters
        ----------
        gpus
            Devices of a stage. [items]
        samples
            Of a micro-batch, on all of them. [samples]
        """
        key = (gpus, samples)
        if key not in self.known:
            setting = self.setting
            topology = Topology.of(setting.cluster, setting.cluster.shape(gpus))
            machine = replace(setting.machine, topology=topology)
            graph = training_graph(self.network, samples, machine.training)
            least: dict[tuple[object, ...], float] = {}
            total = 0.0
            for layer in graph.compute_layers:
                wanted = graph.input_gradients(layer.name)
                alike = (layer.signature, wanted)
                if alike not in least:
                    passes = LayerComputation.of(layer, machine, wanted).passes
                    least[alike] = float(passes.min())
                total += least[alike] * self.times.get(layer.name, 0)
            self.known[key] = total
        return self.known[key]

    def of(self, pp: int, chunks: int, micro_batches: int) -> float:
        """What no step takes less than with so many stages and micro-batches. [s]

        Parameters
        ----------
        pp, chunks
            Groups of devices, and stages of each. [items]
        micro_batches
            Of a step. [items]
        """
        each = self.micro_batch(
            self.setting.gpus // pp, max(self.setting.batch // micro_batches, 1)
        )
        if chunks > 1:
            return micro_batches * each / pp
        if micro_batches == 1:
            return each
        return each / (1.0 - (1.0 - 1.0 / micro_batches) ** pp)

    def least(self, deadline: Deadline) -> float:
        """What no step takes less than, whatever the stages and micro-batches. [s]

        Parameters
        ----------
        deadline
            After which nothing is proven, and it is 0.
        """
        setting = self.setting
        found = float("inf")
        layers = len(setting.graph.compute_layers)
        for pp in divisors(setting.gpus):
            if pp > layers:
                break
            try:
                setting.cluster.shape(setting.gpus // pp)
            except InputError:
                continue
            for count in divisors(setting.batch):
                if deadline.passed:
                    return 0.0
                # several chunks wait the least, where there are any
                chunks = 2 if pp > 1 else 1
                found = min(found, self.of(pp, chunks, count))
        return found

"""What no step of any pipeline takes less than, by computation alone, whatever the splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import product

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy.blocks import is_transformer
from costmodels.strategy.usual import hybrid
from planner.joint.bubbles import may_fill_by_layers
from planner.joint.choices import Choice, divisors, halvings
from planner.joint.cuts import Cuts
from planner.joint.least_passes import LeastPasses, least_passes
from planner.joint.reduced import Reduced
from planner.joint.series import blocks_in_series, in_series, longest_series, series_starts
from planner.request.setting import Setting
from planner.request.training_graphs import training_graph
from planner.simulation.run import waiting_time
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]


def pipelined(
    total: float, pp: int, chunks: int, micro_batches: int, *, chain: bool, message: float = 0.0
) -> float:
    """What no pipeline takes less than, wherever it is cut. [s]

    Parameters
    ----------
    total
        Of all stages on a micro-batch. [s]
    pp, chunks, micro_batches
        Groups of devices, stages of each, and micro-batches. [items]
    chain
        Whether no stage works on a micro-batch while another one does.
    message
        From a stage to the next one, or back. [s]
    """
    if chunks > 1 or not chain or pp == 1:
        return micro_batches * total / pp
    left = 1.0 - 1.0 / micro_batches
    if message:
        waits = sum(stage * left ** (pp - 1 - stage) for stage in range(pp)) / micro_batches
        total += 2.0 * message * waits
    return total / (1.0 - left**pp)


class PipelineBounds:
    """Bounds of the steps of one question by computation alone, for every split of every layer.

    Parameters
    ----------
    setting
        The question.
    reduced
        Its network without repeated blocks.
    fills_bubbles
        Whether backward passes of weights may run by themselves.
    """

    def __init__(self, setting: Setting, reduced: Reduced, *, fills_bubbles: bool = True) -> None:
        self.setting, self.reduced, self.fills_bubbles = setting, reduced, fills_bubbles
        self.like, self.network = reduced.like, reduced.network
        self.chain = blocks_in_series(setting.graph, Cuts(setting.graph))
        self.starts, self.waits = series_starts(setting.graph), in_series(setting.graph)
        self.known: dict[tuple[int, int], tuple[float, Floats]] = {}
        # the same where layers are split by degrees on them, and of all passes but those of weights
        self.by_degrees: dict[tuple[int, int], tuple[float, Floats]] = {}
        self.before: dict[tuple[int, int], tuple[float, Floats]] = {}
        # both passes of layers, all but those of weights, and forward ones; blocks before in series
        self.layers: dict[tuple[int, int], Floats] = {}
        self.series: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        self.graphs: dict[int, Graph] = {}
        self.floors: dict[tuple[int, int, int, int, int, bool], float] = {}
        self.may_fill: dict[tuple[int, int, int, int, float], bool] = {}
        # the layers of a transformer may have dims that follow the samples otherwise
        self.attends = is_transformer(setting.graph)

    def on(self, setting: Setting) -> PipelineBounds:
        """The bounds on another number of GPUs or under another runtime, with what is known."""
        # both passes take what they do whatever is held of weights
        other, known = copy(self), self.setting.machine.training
        if replace(setting.machine.training, recipe=known.recipe) != known:
            other = PipelineBounds(setting, self.reduced, fills_bubbles=self.fills_bubbles)
        other.setting, other.floors = setting, {}
        return other

    def micro_batch(self, gpus: int, samples: int) -> tuple[float, Floats]:
        """What a micro-batch takes at least: all layers, and what of it a series of blocks takes
        where none, one, two ... of them lie on several stages. [s]

        Parameters
        ----------
        gpus
            Devices of a stage. [items]
        samples
            Of a micro-batch, on all of them. [samples]
        """
        if (gpus, samples) not in self.known:
            self.learn([(gpus, samples)])
        return self.known[gpus, samples]

    def learn(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Find out what micro-batches take at least, all at once: that is less work.

        Parameters
        ----------
        wanted
            Devices of a stage and samples, as of `micro_batch`.
        """
        devices: dict[int, set[int]] = {}
        largest: dict[int, int] = {}
        for gpus, samples in wanted:
            if (gpus, samples) not in self.known:
                # what a part of some samples takes comes with what all of them take
                alike = samples if self.attends else samples // halvings(samples)[-1]
                devices.setdefault(alike, set()).add(gpus)
                largest[alike] = max(largest.get(alike, 0), samples)
        layers = [self.like[layer.name] for layer in self.setting.graph.compute_layers]
        for alike, numbers in devices.items():
            found = self._of_layers(sorted(numbers), largest[alike])
            new = {key: rows for key, rows in found.items() if key not in self.known}
            if new:
                self._know(new, layers)

    def _know(
        self, found: Mapping[tuple[int, int], Mapping[str, LeastPasses]], layers: Sequence[str]
    ) -> None:
        """Keep what micro-batches take at least.

        Parameters
        ----------
        found
            As `_of_layers` returns it.
        layers
            The distinct layer that each one is like.
        """
        times = np.array([[rows[name] for name in layers] for rows in found.values()])
        whole, before, forward, split = np.moveaxis(times, 2, 0)
        self.known.update(zip(found, self.sums(whole), strict=True))
        self.before.update(zip(found, self.sums(before), strict=True))
        by_tensors = self.known if self.attends else zip(found, self.sums(split), strict=True)
        self.by_degrees.update(by_tensors)
        if not self.chain:
            each = np.stack((split, before, forward), axis=1)
            self.layers.update(zip(found, each, strict=True))

    def sums(self, times: Floats) -> list[tuple[float, Floats]]:
        """As of `micro_batch`, of several of them, by what each layer takes.

        Parameters
        ----------
        times
            Both passes: (micro-batches, layers). [s]
        """
        totals = times.sum(axis=1)
        if self.chain:
            return [(total, np.full(1, total)) for total in totals.tolist()]
        times = times * self.waits
        blocks = np.add.reduceat(times, self.starts, axis=1)
        longest = longest_series(self.setting.graph, times, self.starts)
        beside = np.sort(np.minimum(longest - blocks, 0.0), axis=1).cumsum(axis=1)
        waits = blocks.sum(axis=1, keepdims=True) + np.pad(beside, ((0, 0), (1, 0)))
        return list(zip(totals.tolist(), np.minimum(waits, totals[:, None]), strict=True))

    def _of_layers(
        self, gpus: Sequence[int], samples: int
    ) -> dict[tuple[int, int], dict[str, LeastPasses]]:
        """What each layer takes at least, by devices and samples: half as many too.

        Parameters
        ----------
        gpus
            Numbers of devices of a stage. [items]
        samples
            As of `micro_batch`.
        """
        machine = self.setting.machine
        if samples not in self.graphs:
            self.graphs[samples] = training_graph(self.network, samples, machine.training)
        graph = self.graphs[samples]
        halves = [1] if self.attends else halvings(samples)
        known: dict[tuple[object, ...], list[LeastPasses]] = {}
        by_tensors = [self._by_tensors(graph, number) for number in gpus]
        keys = [(number, samples // ways) for number in gpus for ways in halves]
        found: dict[tuple[int, int], dict[str, LeastPasses]] = {key: {} for key in keys}
        for layer in graph.compute_layers:
            wanted = graph.input_gradients(layer.name)
            splits = [rows.get(layer.name, {}) for rows in by_tensors]
            alike = (layer.signature, wanted, *(tuple(split.items()) for split in splits))
            if alike not in known:
                known[alike] = least_passes(layer, machine, wanted, halves, gpus, splits)
            for key, seconds in zip(keys, known[alike], strict=True):
                found[key][layer.name] = seconds
        return found

    def _by_tensors(self, graph: Graph, gpus: int) -> dict[str, dict[str, int]]:
        """How tensor parallelism splits the layers of which it splits no samples. [ways]

        Parameters
        ----------
        graph
            The network.
        gpus
            Devices, on all of which it lies. [items]
        """
        if gpus == 1 or self.attends:
            return {}
        try:
            strategy = hybrid(graph, self.setting.cluster.shape(gpus), tp=gpus)
        except InputError:
            return {}
        rows = strategy.distributions.items()
        found = {name: {dim: row.degree(dim) for dim in row.degrees} for name, row in rows}
        return {name: split for name, split in found.items() if "sample" not in split}

    def of(self, pp: int, chunks: int, micro_batches: int) -> float:
        """What no step takes less than with so many stages and micro-batches. [s]

        Parameters
        ----------
        pp, chunks
            Groups of devices, and stages of each. [items]
        micro_batches
            Of a step. [items]
        """
        on = self.setting.gpus // pp, max(self.setting.batch // micro_batches, 1)
        found = self.staged(self.micro_batch(*on), pp, chunks, micro_batches)
        if pp > 1 and self.fills_bubbles:
            found = min(found, self.filled(self.known[on], self.before[on], pp, micro_batches))
        return found

    def floor(self, choice: Choice) -> float:
        """What no step of a choice takes less than, as it splits its layers. [s]"""
        on, stages = _on_devices(choice), (choice.pp, choice.chunks, choice.micro_batches)
        key = (*on, *stages, choice.fills_bubbles)
        if key not in self.floors:
            each = self.micro_batch(*on)
            self.floors[key] = (
                self.filled(each, self.before[on], choice.pp, choice.micro_batches)
                if choice.fills_bubbles
                else self.staged(self.by_degrees[on], *stages)
            )
        return self.floors[key]

    def learn_of(self, found: Iterable[Choice]) -> None:
        """Find out all that the floors of choices need, as of `learn`."""
        self.learn({_on_devices(choice) for choice in found})

    def staged(self, each: tuple[float, Floats], pp: int, chunks: int, count: int) -> float:
        """What no step takes less than, by what a micro-batch takes. [s]

        Parameters
        ----------
        each
            As `micro_batch` returns it. [s]
        pp, chunks, count
            Groups of devices, stages of each, and micro-batches. [items]
        """
        total, cut = each
        # every cut into stages divides a block, which then takes no less than its longest series
        series = float(cut[min(pp * chunks, len(cut)) - 1])
        least = pipelined(total, pp, chunks, count, chain=self.chain)
        least = max(least, series, pipelined(series, pp, chunks, count, chain=True))
        return least + waiting_time(count * total / pp, self.setting.gpus)

    def filled(
        self, each: tuple[float, Floats], before: tuple[float, Floats], pp: int, count: int
    ) -> float:
        """As `staged`, where backward passes of weights run by themselves and fill bubbles. [s]

        Parameters
        ----------
        each, before
            What a micro-batch takes with these and without, as `micro_batch` returns it. [s]
        pp, count
            Groups of devices, and micro-batches. [items]
        """
        (total, _), (_, cut) = each, before
        least = max(count * total / pp, float(cut[min(pp, len(cut)) - 1]))
        return least + waiting_time(count * total / pp, self.setting.gpus)

    def may_take(self, choice: Choice, seconds: float) -> bool:
        """Whether a step of a choice might take less, by computation alone.

        More is found out than `floor` does where stages may be cut within blocks and fill bubbles.

        Parameters
        ----------
        choice, seconds
            The choice, and what it is to take less than. [s]
        """
        if self.floor(choice) >= seconds:
            return False
        if self.chain or self.attends or not choice.fills_bubbles:
            return True
        on, pp, count = _on_devices(choice), choice.pp, choice.micro_batches
        seconds -= waiting_time(count * self.known[on][0] / pp, self.setting.gpus)
        key = (*on, pp, count, seconds)
        if key not in self.may_fill:
            whole, before, forward = self.layers[on]
            if on not in self.series:
                self.series[on] = self._waits(forward), self._waits(before)
            waits = self.series[on]
            self.may_fill[key] = may_fill_by_layers(pp, count, whole, before, *waits, seconds)
        return self.may_fill[key]

    def _waits(self, times: Floats) -> Floats:
        """What the blocks before that of each layer take in series, and all of them. [s]

        Parameters
        ----------
        times
            Of each layer. [s]
        """
        longest = longest_series(self.setting.graph, (times * self.waits)[None], self.starts)
        before = np.concatenate(([0.0], np.cumsum(longest[0])))
        return np.repeat(before, [*np.diff([*self.starts, len(times)]), 1])

    def least(self, deadline: Deadline) -> float:
        """What no step takes less than, whatever the stages and micro-batches. [s]

        Parameters
        ----------
        deadline
            After which nothing is proven, and it is 0.
        """
        setting = self.setting
        groups, counts = [], divisors(setting.batch)
        for pp in divisors(setting.gpus):
            if pp > len(setting.graph.compute_layers):
                break
            with suppress(InputError):
                setting.cluster.shape(setting.gpus // pp)
                groups.append(pp)
        for count in counts:
            if deadline.passed:
                return 0.0
            self.learn((setting.gpus // pp, setting.batch // count) for pp in groups)
        # several chunks wait the least, where there are any
        return min(self.of(pp, 2 if pp > 1 else 1, count) for pp, count in product(groups, counts))


def _on_devices(choice: Choice) -> tuple[int, int]:
    """Devices of a stage of a replica and samples of a micro-batch that a choice is bounded on."""
    # experts lie on ranks of other samples
    more = choice.inside.expert_replicas
    return choice.inside.tp * choice.inside.cp * more, choice.samples * more

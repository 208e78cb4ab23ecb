"""The split of every layer over all devices on one micro-batch, by an additive model.

Micro-batches repeat both passes of every layer, and leave one exchange of gradients. A layer is
charged for what it takes on one of them, for its share of that exchange, and for the memory that it
holds at a price: from none, which gives the fastest splits, to so much that little else counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from msgspec import Struct, field

from costmodels.distribution import Distribution
from costmodels.graph import Graph
from planner.planning.decision.finalists import Patterns
from planner.planning.prepare import default_cap
from planner.planning.space.candidates import COUNTED_ALL_REDUCE
from planner.planning.space.formulate import Floats, Formulation, formulate
from planner.request.setting import Setting
from search import SOLVERS
from search.problem import Problem
from search.problem.deadline import Deadline, OutOfTime
from search.problem.problem import costs_and_peaks

# What a solver may do where the network is too wide for an exact answer at once, as for a bound of
# such networks (`planner.planning.bounds.certificate`). [units of work]
WIDE_WORK = 1.0


class LayerSplits(Struct, kw_only=True, eq=False):
    """Splits of all layers at one size of micro-batches.

    Parameters
    ----------
    formulation
        The network at one micro-batch.
    micro_batches
        Of a step. [items]
    capacity
        The memory of a device. [B]
    deadline
        When an answer must be there.
    known
        Answers by the stage of ZeRO and the price.
    patterns
        Of the formulation, once they are asked for.
    """

    formulation: Formulation
    micro_batches: int
    capacity: float
    deadline: Deadline
    known: dict[tuple[int, float], tuple[int, ...]] = field(default_factory=dict)
    patterns: Patterns | None = None

    @classmethod
    def of(
        cls, setting: Setting, graph: Graph, micro_batches: int, deadline: Deadline
    ) -> LayerSplits:
        """Cost the splits of every layer.

        Parameters
        ----------
        setting
            The question.
        graph
            The network at one micro-batch.
        micro_batches, deadline
            As above.

        Raises
        ------
        OutOfTime
            When there is no time for it.
        """
        formulation = formulate(
            graph, setting.cluster, setting.machine, cap=default_cap(setting), deadline=deadline
        )
        return cls(
            formulation=formulation,
            micro_batches=micro_batches,
            capacity=setting.cluster.device.memory,
            deadline=deadline,
        )

    def at_price(self, zero: int, price: float) -> tuple[int, ...]:
        """The fastest splits where memory has a price, by the candidate of each layer.

        Parameters
        ----------
        zero
            What is cut over replicas anyhow, and takes as much however a layer is split.
        price
            Of all the memory of a device, in times that a micro-batch takes.

        Raises
        ------
        OutOfTime
            When there is no time for an answer.
        """
        key = (zero, price)
        if key not in self.known:
            problem = self._problem
            if price > 0.0:
                each = price * self._least(problem) / self.capacity
                rows = zip(problem.costs, self._held(zero), strict=True)
                problem = replace(problem, costs=tuple(cost + each * held for cost, held in rows))
            self.known[key] = self._solve(problem)
        return self.known[key]

    def merged(self, choices: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Splits with one run of layers split as the one before or behind, the fastest first.

        Parameters
        ----------
        choices
            The candidate of each layer.
        """
        if self.patterns is None:
            self.patterns = Patterns(self.formulation)
        found = self.patterns.merged(choices)
        if not found:
            return []
        times, _ = costs_and_peaks(self._problem, np.array(found))
        return [found[i] for i in np.argsort(times, kind="stable").tolist()]

    @property
    def _problem(self) -> Problem:
        """The additive model, memory without a price."""
        return self.formulation.problem(COUNTED_ALL_REDUCE / self.micro_batches)

    def saved(self, zero: int, price: float) -> float:
        """How much less layers hold at a price than without, each for itself. [B]

        Parameters
        ----------
        zero, price
            As of `at_price`.
        """
        pairs = zip(self.at_price(zero, 0.0), self.at_price(zero, price), strict=True)
        rows = zip(self._held(zero), pairs, strict=True)
        return float(sum(held[free] - held[priced] for held, (free, priced) in rows))

    def distributions(self, choices: tuple[int, ...]) -> Mapping[str, Distribution]:
        """The splits that an answer stands for."""
        return self.formulation.distributions(choices)

    def _solve(self, problem: Problem) -> tuple[int, ...]:
        """The choices of the best answer."""
        left = self.deadline.remaining
        limit = left if left < np.inf else None
        answer = SOLVERS["auto"](problem, time_limit=limit, seed=0, work=WIDE_WORK)
        if answer.stopped_by == "interrupt":
            raise KeyboardInterrupt
        if not answer.choices:
            raise OutOfTime
        return tuple(answer.choices)

    def _least(self, problem: Problem) -> float:
        """The sum of what layers take by themselves at least. [s]"""
        return float(sum(cost.min() for cost in problem.costs))

    def _held(self, zero: int) -> list[Floats]:
        """What every candidate of each layer holds, with what its replicas cut among them. [B]

        Ranks that do the same, on the same samples, have no gradients to sum, and cut nothing.
        """
        known: dict[int, Floats] = {}
        for layer in self.formulation.layers:
            space = self.formulation.spaces[layer.name]
            if id(space) not in known:
                costs = space.costs
                ranks = costs.gradient_group.prod(axis=1)
                away = np.where(costs.gradient_bytes > 0.0, 1.0 - 1.0 / ranks, 0.0)
                cut = np.zeros(len(space.candidates))
                for part in (costs.state, costs.gradients, costs.weights)[:zero]:
                    cut += away * part
                # of a weight with several users each counts its part
                known[id(space)] = np.maximum(space.kept - cut, 0.0)
        return [known[id(self.formulation.spaces[layer.name])] for layer in self.formulation.layers]

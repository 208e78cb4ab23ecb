"""Every distribution of every layer in one additive problem: candidates, and classes for the rest.

The problem holds what the search sees as it is. The candidates that it does not see stand in it as
classes (see `planner.planning.bounds.left_out`), which cost no more than any of their members. So
its optimum bounds the step under every distribution. What is no part of anything cheap is dropped
at once: first by computation alone, then class by class.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.communication.layout import Layouts, concatenate
from costmodels.communication.layout_changes import LayoutChanges, layout_changes
from costmodels.distribution.rows import distinct, unique_rows
from costmodels.graph import Edge
from planner.planning.bounds.layer_bounds import LayerBounds
from planner.planning.bounds.left_out import LeftOut, cut_level, outer_part
from planner.planning.space.formulate import Formulation
from planner.planning.space.profile import CostKey, LayerShare, Profile
from planner.planning.space.shuffles import TooManyLayouts
from search.problem import CostEdge as PairCost
from search.problem import Problem
from search.problem.deadline import Deadline, OutOfTime

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Counting what moves between two layouts takes about that long, and is not begun where it would not
# end in time; measured on 1,700 to 2,500 layouts of 1,024 GPUs. [s]
PAIR_SECONDS = 1.5e-6
# With more layouts that takes longer than anybody waits for a plan. [items]
MOST_LAYOUTS = 3000


class WholeSpace(Struct, frozen=True, kw_only=True, eq=False):
    """Every distribution that can be part of something cheap.

    Parameters
    ----------
    formulation
        The network on the machine, with the candidates that the search sees.
    profile
        As of `Formulation.problem`.
    left
        The candidates that it does not see, by the first layer that is alike.
    changes
        What crosses hosts between any two layouts.
    seen, classes
        Rows in these of what the candidates of the search, and what the classes write and read: a
        column for the output and one for each input.
    known
        What edges cost between layouts, as far as it was asked for, under whichever profile.
    """

    formulation: Formulation
    profile: Profile | float
    left: Mapping[str, LeftOut]
    changes: LayoutChanges
    seen: Mapping[str, Ints]
    classes: Mapping[str, Ints]
    known: dict[tuple[object, ...], tuple[Ints, Ints, Floats]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        formulation: Formulation,
        profile: Profile | float,
        least: LayerBounds,
        worst: float,
        deadline: Deadline,
    ) -> WholeSpace:
        """Cost every distribution that can be part of something cheap.

        Parameters
        ----------
        formulation, profile
            As above.
        least
            What layers cost at least, for that profile.
        worst
            What costs no less than that is left out altogether. [s]
        deadline
            When to give up by raising `OutOfTime`; `TooManyLayouts` is raised whenever it is.
        """
        topology = formulation.machine.topology
        cut = cut_level(formulation.cluster, topology.shape)
        left = least.costed(formulation, least.near(worst), deadline).left
        near = _near_classes(formulation, profile, left, worst)
        left = {name: one.only(near[name]) for name, one in left.items()}
        seen, classes, layouts = _outer_layouts(formulation, left, cut)
        if len(layouts) > MOST_LAYOUTS:
            raise TooManyLayouts
        if len(layouts) ** 2 * PAIR_SECONDS > deadline.remaining:
            raise OutOfTime
        return cls(
            formulation=formulation,
            profile=profile,
            left=left,
            changes=layout_changes(layouts, topology.above(cut)),
            seen=seen,
            classes=classes,
        )

    def widened(
        self,
        formulation: Formulation,
        found: Mapping[str, Ints],
        near: Mapping[str, NDArray[np.bool_]],
    ) -> WholeSpace:
        """The same when some of the candidates are searched, and others matter no more.

        Parameters
        ----------
        formulation
            The formulation with these candidates, behind those that it had.
        found
            Their places among those left out, by the first layer that is alike.
        near
            Which of the candidates left out still matter.
        """
        left, seen, classes = dict(self.left), dict(self.seen), dict(self.classes)
        for name, one in self.left.items():
            if name in found:
                more = classes[name][one.class_of[found[name]]]
                seen[name] = np.concatenate([seen[name], more])
            stays = near[name].copy()
            stays[found.get(name, [])] = False
            left[name] = one.without(np.flatnonzero(~stays))
            # the classes that still have members
            classes[name] = classes[name][distinct(one.class_of[stays])]
        return replace(self, formulation=formulation, left=left, seen=seen, classes=classes)

    def problem(self, worst: float) -> tuple[Problem, dict[str, Ints]]:
        """The additive problem: of each layer the candidates of the search first, then classes.

        Parameters
        ----------
        worst
            Classes that are no part of anything cheaper are left out. [s]

        Returns
        -------
        The problem, and the classes that it holds by the first layer that is alike.
        """
        formulation = self.formulation
        near = _near_classes(formulation, self.profile, self.left, worst)
        kept = {name: np.flatnonzero(mask) for name, mask in near.items()}
        keys = formulation.cost_keys(self.profile)
        nodes: dict[CostKey, Floats] = {}
        for key, seen in zip(keys, formulation.node_costs(self.profile), strict=True):
            if key not in nodes:
                left = self.left[key.space]
                nodes[key] = np.concatenate([seen, left.least(left.prices(key))[kept[key.space]]])
        problem = Problem(
            costs=tuple(nodes[key] for key in keys),
            edges=self.pair_costs(kept),
            names=tuple(layer.name for layer in formulation.layers),
        )
        return problem, kept

    def pair_costs(self, kept: Mapping[str, Ints]) -> tuple[PairCost, ...]:
        """What shuffles cost, and what sharers of weights add. [s]

        Parameters
        ----------
        kept
            The classes of the problem.
        """
        return (*self._shuffle_costs(kept), *self._shared_costs(kept))

    def _shuffle_costs(self, kept: Mapping[str, Ints]) -> list[PairCost]:
        """What shuffles cost: as they are between candidates, and across hosts for classes. [s]

        Parameters
        ----------
        kept
            The classes of the problem.
        """
        formulation = self.formulation
        shares = formulation.shares(self.profile)
        index = {layer.name: i for i, layer in enumerate(formulation.layers)}
        rows = {n: np.concatenate([self.seen[n], self.classes[n][kept[n]]]) for n in kept}
        matrices: dict[tuple[object, ...], Floats] = {}
        pairs = []
        for edge in formulation.counted_edges:
            ends = formulation.first_alike[edge.source], formulation.first_alike[edge.target]
            share = shares[index[edge.target]]
            key = (*ends, edge.slot, share.messages, share.link, edge in formulation.repeated)
            if key not in matrices:
                if key not in self.known:
                    self.known[key] = self._between_layouts(edge, share)
                writes, reads, table = self.known[key]
                write = np.searchsorted(writes, rows[ends[0]][:, 0])
                read = np.searchsorted(reads, rows[ends[1]][:, 1 + edge.slot])
                matrix = table.take(read, axis=1).take(write, axis=0)
                exact = formulation.edge_costs(edge, share)
                n, m = exact.shape
                matrix[:n, :m] = exact
                matrices[key] = matrix
            source, target = index[edge.source], index[edge.target]
            pairs.append(PairCost(source=source, target=target, matrix=matrices[key]))
        return pairs

    def _between_layouts(self, edge: Edge, share: LayerShare) -> tuple[Ints, Ints, Floats]:
        """What an edge costs between all layouts of its ends: numbers of these, and a table. [s]

        Parameters
        ----------
        edge, share
            The edge, and how much of its target counts.
        """
        formulation, changes = self.formulation, self.changes
        source, target = (formulation.first_alike[end] for end in (edge.source, edge.target))
        writes, reads = (
            distinct(
                np.concatenate([table[name][:, column] for table in (self.seen, self.classes)])
            )
            for name, column in ((source, 0), (target, 1 + edge.slot))
        )
        tensor = formulation.graph.layers[edge.target].inputs[edge.slot]
        num_bytes = tensor.size * formulation.machine.training.activation_size
        table = np.zeros((len(writes), len(reads)))
        if edge not in formulation.repeated:
            table += changes.time(writes, reads, num_bytes)
        if share.messages:
            table += share.messages * changes.time(reads, writes, num_bytes).T
        if share.link:
            table += share.link * changes.link_time(reads, writes, num_bytes).T
        return writes, reads, table

    def _shared_costs(self, kept: Mapping[str, Ints]) -> list[PairCost]:
        """What sharers of weights add: nothing where a class takes part. [s]

        Parameters
        ----------
        kept
            The classes of the problem.
        """
        layers, alike = self.formulation.layers, self.formulation.first_alike
        pairs = []
        for pair in self.formulation.shared_costs(self.profile):
            ends = [alike[layers[end].name] for end in (pair.source, pair.target)]
            rows, columns = (len(kept[end]) for end in ends)
            matrix = np.pad(pair.matrix, ((0, rows), (0, columns)))
            pairs.append(PairCost(source=pair.source, target=pair.target, matrix=matrix))
        return pairs


def _near_classes(
    formulation: Formulation,
    profile: Profile | float,
    left: Mapping[str, LeftOut],
    worst: float,
) -> dict[str, NDArray[np.bool_]]:
    """Which classes can be part of something cheaper than `worst`.

    Parameters
    ----------
    formulation, profile
        As of `WholeSpace`.
    left
        The candidates that the search does not see.
    worst
        What costs no less does not matter. [s]
    """
    keys = formulation.cost_keys(profile)
    by_class = {key: left[key.space].least(left[key.space].prices(key)) for key in {*keys}}
    lowest = [
        min(float(seen.min()), float(by_class[key].min(initial=np.inf)))
        for key, seen in zip(keys, formulation.node_costs(profile), strict=True)
    ]
    slack = worst - sum(lowest)
    near = {name: np.zeros(len(one.first), dtype=bool) for name, one in left.items()}
    for key, low in zip(keys, lowest, strict=True):
        # layers that are alike keep the same classes, so that they share their matrices
        near[key.space] |= by_class[key] <= low + slack
    return near


def _outer_layouts(
    formulation: Formulation, left: Mapping[str, LeftOut], cut: int
) -> tuple[dict[str, Ints], dict[str, Ints], Layouts]:
    """Rows of what candidates and classes write and read across hosts, and the layouts themselves.

    Parameters
    ----------
    formulation, left
        As of `WholeSpace`.
    cut
        The first level that classes tell apart.
    """
    parts: list[Layouts] = []
    for name, one in left.items():
        space, layer = formulation.spaces[name], formulation.graph.layers[name]
        rows = outer_part(space.candidates.joined(one.candidates.take(one.first)), cut)
        parts.append(Layouts.of(rows, layer.output, layer.reduced_dims))
        for slot, tensor in enumerate(layer.inputs):
            parts.append(Layouts.of(rows, tensor, layer.absent_dims(slot)))
    table = concatenate(parts)
    first, inverse = unique_rows(table.codes())
    columns = iter(np.split(inverse, np.cumsum([len(part) for part in parts])[:-1]))
    seen, classes = {}, {}
    for name in left:
        inputs = len(formulation.graph.layers[name].inputs)
        numbers = np.stack([next(columns) for _ in range(1 + inputs)], axis=1)
        count = len(formulation.spaces[name].candidates)
        seen[name], classes[name] = numbers[:count], numbers[count:]
    return seen, classes, table.take(first)

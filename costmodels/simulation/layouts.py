"""Tensors on the way from one layer to another: the communication that changes their layout."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct

from costmodels.communication.layout import Layouts
from costmodels.communication.movement import Movement, movement
from costmodels.communication.patterns import NOTHING, SEND_RECV, SLICE, Pattern, match
from costmodels.communication.topology import Topology
from costmodels.simulation.messages import NO_MESSAGE, Message, StageLinks


class Handling(NamedTuple):
    """What a framework adds around a collective of activations. [s/B], [s]"""

    per_byte: float = 0.0
    fixed: float = 0.0

    def around(self, message: Message, num_bytes: float) -> Message:
        """A collective with what is added to it, before its bytes flow.

        Parameters
        ----------
        message
            The collective.
        num_bytes
            Its buffer. [B]
        """
        if message.time <= 0.0:
            return message
        added = self.fixed + self.per_byte * num_bytes
        return message._replace(seconds=message.seconds + added)


_NOTHING_ADDED = Handling()
# Communication between two layouts, whatever is moved: of so many at once. [items]
MOST_KNOWN = 2**14
_PATTERNS: dict[tuple[object, object], Pattern] = {}
_MOVES: WeakKeyDictionary[Topology, dict[tuple[object, object], Movement]] = WeakKeyDictionary()


def _pattern(source: Layouts, target: Layouts) -> Pattern:
    """As of `match`, each worked out once."""
    key = (source.key, target.key)
    if key not in _PATTERNS:
        if len(_PATTERNS) == MOST_KNOWN:
            _PATTERNS.clear()
        _PATTERNS[key] = match(source, target)
    return _PATTERNS[key]


def _moves(source: Layouts, target: Layouts, topology: Topology) -> Movement:
    """As of `movement`, each worked out once for a machine."""
    known, key = _MOVES.setdefault(topology, {}), (source.key, target.key)
    if key not in known:
        if len(known) == MOST_KNOWN:
            known.clear()
        known[key] = movement(source, target, topology)
    return known[key]


class Change(Struct, frozen=True, kw_only=True):
    """Communication that takes a tensor to another layout.

    Parameters
    ----------
    pattern
        The collective, or point-to-point messages.
    message
        What it takes.
    num_bytes
        Bytes that a device receives. [B]
    sliced
        Whether a part of what is received is enough, so that the rest can go.
    """

    pattern: Pattern
    message: Message
    num_bytes: float
    sliced: bool = False

    @property
    def copies(self) -> bool:
        """Whether the result is another tensor than the one it is made from."""
        return self.sliced or self.pattern.kind not in (NOTHING, SLICE, "all_reduce")


class Changes:
    """Changes of layout in one stage, each worked out once."""

    def __init__(self, stage_links: StageLinks, handling: Handling = _NOTHING_ADDED) -> None:
        self.stage_links = stage_links
        self.handling = handling
        self.known: dict[tuple[object, ...], Change] = {}

    def between(
        self, source: Layouts, target: Layouts, held: float, needed: float, whole: float
    ) -> Change:
        """The communication between two layouts.

        Parameters
        ----------
        source, target
            One layout each; partial members of the target are replicas.
        held, needed
            Local block before and after. [B]
        whole
            The tensor. [B]
        """
        key = (source.key, target.key, held, needed, whole)
        if key not in self.known:
            self.known[key] = self._change(source, target, held, needed, whole)
        return self.known[key]

    def _change(
        self, source: Layouts, target: Layouts, held: float, needed: float, whole: float
    ) -> Change:
        pattern = _pattern(source, target)
        size = float(np.prod(pattern.group))
        if pattern.kind in (NOTHING, SLICE):
            return Change(pattern=pattern, message=NO_MESSAGE, num_bytes=0.0)
        if pattern.kind == SEND_RECV:
            # uneven blocks are charged the largest
            largest = max(whole, needed * float(np.prod(target.degrees)))
            return self._messages(pattern, source, target, held, largest)
        buffer = {
            "all_reduce": held,
            "reduce_scatter": held,
            "all_gather": needed,
            "all_to_all": max(held, needed),
        }[pattern.kind]
        passes = 2.0 if pattern.kind == "all_reduce" else 1.0
        message = self.stage_links.collective(pattern.kind, pattern.group, buffer)
        return Change(
            pattern=pattern,
            message=self.handling.around(message, buffer),
            num_bytes=passes * buffer * (1.0 - 1.0 / size),
            sliced=pattern.kind == "all_reduce" and needed < held,
        )

    def _messages(
        self, pattern: Pattern, source: Layouts, target: Layouts, held: float, whole: float
    ) -> Change:
        """What no collective does: partial sums are reduced and scattered, then blocks move."""
        moves = _moves(source, target, self.stage_links.topology)
        first = np.zeros(1, dtype=np.int64)
        seconds = float(moves.time(first, first, whole)[0, 0])
        # what enters a host or more comes over the links of all its devices alike
        parts = moves.volume[0, 0] / self.stage_links.topology.devices_below
        received = float(parts.sum()) * whole
        message = self.stage_links.moved(seconds, float(moves.latency[0, 0]))
        if any(n > 1 for n in pattern.group):
            reduction = self.stage_links.collective("reduce_scatter", pattern.group, held)
            members = float(np.prod(pattern.group))
            received += held * (1.0 - 1.0 / members)
            message = Message(
                message.seconds + reduction.seconds,
                message.transfer + reduction.transfer,
                message.loads or reduction.loads,
                reduction.ranks,
            )
            message = self.handling.around(message, held)
        return Change(pattern=pattern, message=message, num_bytes=received)

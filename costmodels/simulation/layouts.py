"""Tensors on the way from one layer to another: the communication that changes their layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from costmodels.communication.layout import Layouts
from costmodels.communication.movement import movement
from costmodels.communication.patterns import NOTHING, SEND_RECV, SLICE, Pattern, match
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
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
        # by identity, which is quicker to compare than what layouts are; they are kept for that
        self.met: dict[tuple[object, ...], tuple[Layouts, Layouts, Change]] = {}

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
        same = (id(source), id(target), held, needed, whole)
        if same not in self.met:
            key = (source.codes().tobytes(), target.codes().tobytes(), held, needed, whole)
            if key not in self.known:
                self.known[key] = self._change(source, target, held, needed, whole)
            self.met[same] = (source, target, self.known[key])
        return self.met[same][2]

    def _change(
        self, source: Layouts, target: Layouts, held: float, needed: float, whole: float
    ) -> Change:
        pattern = match(source, target)
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
        moves = movement(source, target, self.stage_links.topology)
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

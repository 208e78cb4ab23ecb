"""Operations of one micro-batch in one stage: tasks before they have a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from costmodels.simulation.execution import Inside, Link, Queue
from costmodels.simulation.messages import Message

# An operation within a phase of a stage: what it does, to what, and which of them.
Key = tuple[str, str, int]
# An operation of the same micro-batch anywhere: stage, phase, key.
Ref = tuple[int, str, Key]
# A tensor of a micro-batch: what it is, whose, which of them.
Local = tuple[str, str, int]
Made = tuple[Local, str, float]
# An operation of a step: step, stage, micro-batch, phase, key.
Mark = tuple[int, int, int, str, Key]
# What operations are that send something to another stage.
SENDS = ("send", "send gradient")


class Operation(NamedTuple):
    """As `Task`, with references instead of numbers, and without role and micro-batch.

    A collective has its ranks besides, those of the first host and all others.
    """

    key: Key
    kind: str
    queue: Queue
    after: tuple[Ref, ...]
    seconds: float = 0.0
    transfer: float = 0.0
    loads: tuple[tuple[Link, float], ...] = ()
    num_bytes: float = 0.0
    makes: tuple[Made, ...] = ()
    takes: tuple[Local, ...] = ()
    uses: tuple[Local, ...] = ()
    scratch: float = 0.0
    buffer: float = 0.0
    inside: Inside | None = None
    ranks: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The layer, or what is communicated."""
        return self.key[1]


def message_operation(
    key: Key,
    kind: str,
    message: Message,
    after: Iterable[Ref],
    *,
    num_bytes: float,
    queue: Queue = Queue.FEATURE,
    makes: tuple[Made, ...] = (),
    uses: tuple[Local, ...] = (),
) -> Operation:
    """A communication as an operation.

    Parameters
    ----------
    key, kind, after, queue, makes, uses
        As of `Operation`.
    message
        What it takes, and what it fills.
    num_bytes
        Bytes that a device receives. [B]
    """
    return Operation(
        key=key,
        kind=kind,
        queue=queue,
        after=tuple(dict.fromkeys(after)),
        seconds=message.seconds,
        transfer=message.transfer,
        loads=message.loads,
        num_bytes=num_bytes,
        makes=makes,
        uses=uses,
        ranks=message.ranks,
    )


def free_unread(phases: Iterable[list[Operation]]) -> None:
    """Let what no operation reads go with the one that makes it."""
    lists = list(phases)
    read: Counter[Local] = Counter()
    for operations in lists:
        for operation in operations:
            read.update(operation.takes)
            read.update(operation.uses)
    for operations in lists:
        for place, operation in enumerate(operations):
            unread = tuple(key for key, _, _ in operation.makes if not read[key])
            if unread:
                operations[place] = operation._replace(uses=operation.uses + unread)
                read.update(unread)

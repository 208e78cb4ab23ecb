"""Ring attention: keys and values come around in parts, while those at hand are computed with.

Liu et al. 2023 ("Ring Attention"), section 3: of n ranks that divide a sequence, each computes with
its own keys and values first, and meanwhile gets those of its neighbour; so n parts of the
computation, and n - 1 messages. Backward, the gradients of keys and values travel on behind the
parts that add to them. Assumes that the parts take equally long, as where a causal mask is
balanced over the ranks (zigzag), and that a kernel of a part runs as fast as one of the whole.
"""

from __future__ import annotations

import math

from costmodels.simulation.layouts import Change
from costmodels.simulation.messages import Message
from costmodels.simulation.operations import Key, Operation, Ref, message_operation


def _part_of(message: Message, parts: int) -> Message:
    """One of several equal messages that take as long as one."""
    return message._replace(seconds=message.seconds / parts, transfer=message.transfer / parts)


def ring_operations(stage: int, phase: str, base: Operation, change: Change) -> list[Operation]:
    """A pass of attention in parts, each but the first after the keys and values that it reads.

    Parameters
    ----------
    stage, phase
        Where it runs.
    base
        The pass in one operation, which reads what the rank itself has.
    change
        The all-gather of keys and values that the messages are in place of.
    """
    parts = ring_ranks(change)
    rows: list[Operation] = []
    message = _part_of(change.message, parts - 1)
    after: tuple[Ref, ...] = base.after
    for part in range(parts):
        if part + 1 < parts:
            # the next keys and values are on their way while these are computed with
            key: Key = (f"{base.kind} ring", base.name, part + 1)
            before = rows[-2].key if part else None
            waits = base.after if before is None else [(stage, phase, before)]
            size = change.num_bytes / (parts - 1)
            rows.append(message_operation(key, "send_recv", message, waits, num_bytes=size))
        last = part + 1 == parts
        computed = base._replace(
            key=base.key if last else part_key(base, part),
            seconds=base.seconds / parts,
            after=after,
            makes=base.makes if not part else (),
            takes=base.takes if not part else (),
            uses=base.uses if last else (),
        )
        rows.append(computed)
        if not last:
            brought: Ref = (stage, phase, (f"{base.kind} ring", base.name, part + 1))
            after = (brought, (stage, phase, computed.key))
    return rows


def part_key(base: Operation, part: int) -> Key:
    """The key of one part of a pass, but the last."""
    return (f"{base.kind} part", base.name, part)


def gradient_operations(
    stage: int, phase: str, name: str, key: Key, change: Change, parts: int
) -> list[Operation]:
    """Gradients of keys and values on their way back, each message after a part of the pass.

    Parameters
    ----------
    stage, phase, name
        Where the backward pass of which layer runs.
    key
        Of the last of the messages.
    change
        The reduce-scatter that they are in place of.
    parts
        Of the pass, as many as ranks of its ring. What all heads share is summed over ranks of
        tensor parallelism as well, on its way. [items]
    """
    message = _part_of(change.message, parts - 1)
    rows = []
    for part in range(1, parts):
        done: Key = ("backward", name, 0) if part == parts - 1 else ("backward part", name, part)
        rows.append(
            message_operation(
                key if part == parts - 1 else (f"ring {key[0]}", key[1], key[2] + part),
                "send_recv",
                message,
                [(stage, phase, done)],
                num_bytes=change.num_bytes / (parts - 1),
            )
        )
    return rows


def ring_ranks(change: Change) -> int:
    """Ranks of the ring. [items]"""
    return math.prod(change.pattern.group)

"""A pass of a layer as operations: cut in two where it waits for a halo, then its statistics.

Batch norm and its like sum numbers over ranks within a pass, which is over when the sums are there.
"""

from __future__ import annotations

import math

from costmodels.simulation.messages import StageLinks
from costmodels.simulation.operations import Key, Operation, Ref, message_operation
from costmodels.simulation.pieces import Piece


def pass_operations(
    stage: int, phase: str, base: Operation, piece: Piece, stage_links: StageLinks
) -> list[Operation]:
    """Operations of a pass, its statistics left out.

    Parameters
    ----------
    stage, phase
        Where it runs.
    base
        The pass in one operation.
    piece
        The layer.
    stage_links
        Links of the stage.
    """
    exchanged = piece.halo_backward if base.kind == "backward" else piece.halo_forward
    if exchanged is None:
        return [base]
    halo, fixed = exchanged
    name, kind = base.name, base.kind
    exchange: Key = (f"{kind} halo", name, 0)
    wait: Ref = (stage, phase, exchange)
    messages = message_operation(
        exchange,
        "halo exchange",
        stage_links.moved(float(halo.exchange[0]), fixed),
        base.after,
        num_bytes=float(halo.num_bytes[0]),
    )
    if not halo.cut[0]:
        # what joins the block with its halo comes after that, and before the pass
        seconds = base.seconds + float(halo.slabs[0])
        return [messages, base._replace(after=(*base.after, wait), seconds=seconds)]
    interior: Key = (f"{kind} interior", name, 0)
    return [
        messages,
        base._replace(key=interior, seconds=float(halo.interior[0]), uses=()),
        base._replace(
            seconds=float(halo.boundary[0]),
            after=((stage, phase, interior), wait),
            makes=(),
            takes=(),
        ),
    ]


def statistics_operations(
    stage: int, phase: str, base: Operation, piece: Piece, stage_links: StageLinks
) -> list[Operation]:
    """The sum of a pass's statistics over ranks, if there is one; parameters as above.

    Parameters
    ----------
    stage, phase, base, piece, stage_links
        As of `pass_operations`.
    """
    message = stage_links.collective("all_reduce", piece.statistics_group, piece.statistics_bytes)
    if message.time <= 0.0:
        return []
    size = math.prod(piece.statistics_group)
    return [
        message_operation(
            (f"{base.kind} statistics", base.name, 0),
            "all_reduce",
            message,
            [(stage, phase, base.key)],
            num_bytes=2.0 * piece.statistics_bytes * (1.0 - 1.0 / size),
        )
    ]


def last_operation(name: str, kind: str, piece: Piece) -> Key:
    """The operation after which a pass of a layer is through.

    Parameters
    ----------
    name, piece
        The layer.
    kind
        "forward", "recompute" or "backward".
    """
    sums = piece.statistics_bytes > 0.0 and any(n > 1 for n in piece.statistics_group)
    return (f"{kind} statistics" if sums else kind, name, 0)

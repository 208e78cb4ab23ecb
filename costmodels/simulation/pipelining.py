"""Products in parts, so that what gathers their input or reduces their output runs beside them.

Transformer Engine's user buffers (NeMo's `tp_comm_overlap`) and PyTorch's asynchronous tensor
parallelism send what ranks have around the ring of their group, and multiply a part while the next
one is on its way: of as many parts as ranks, one is gathered before the product begins, and one is
reduced after it ends. Assumes that a part takes its share of the time, and that messages take no
multiprocessors away.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Key, Operation, Ref


class _Beside(NamedTuple):
    """The collectives next to a product; None where there is none."""

    gather: Operation | None = None
    reduction: Operation | None = None


def pipeline_products(
    operations: Sequence[Operation], here: tuple[int, str], products: Container[str]
) -> list[Operation]:
    """Operations of a pass, with collectives beside the products next to them.

    Parameters
    ----------
    operations
        In the order of the pass.
    here
        Its stage and phase.
    products
        Layers that multiply by a weight.
    """
    beside = _next_to_products(operations, here, products)
    taken = {op.key for pair in beside.values() for op in pair if op is not None}
    result: list[Operation] = []
    for operation in operations:
        if operation.key in beside:
            result += _parts_of_product(operation, beside[operation.key], here)
        elif operation.key in taken:
            result += _parts_of_collective(operation, beside, here)
        else:
            result.append(operation)
    return result


def _next_to_products(
    operations: Sequence[Operation], here: tuple[int, str], products: Container[str]
) -> dict[Key, _Beside]:
    """For each product, the gathering that it waits for, and the reduction that waits for it."""
    moved = {op.key: op for op in operations if op.queue == Queue.FEATURE and sum(op.ranks) > 1}
    # a weight's gradient is made when its input is there: the gradient of the input runs beside
    computed = {
        op.key
        for op in operations
        if op.queue == Queue.COMPUTE and op.name in products and op.kind != "backward of weight"
    }
    beside: dict[Key, _Beside] = {}
    gathered: set[Key] = set()
    for operation in operations:
        for stage, phase, key in operation.after:
            if (stage, phase) != here:
                continue
            if operation.key in computed and key in moved and key not in gathered:
                pair = beside.get(operation.key, _Beside())
                if moved[key].kind.startswith("all_gather") and pair.gather is None:
                    beside[operation.key] = pair._replace(gather=moved[key])
                    gathered.add(key)
            elif operation.key in moved and key in computed:
                pair = beside.get(key, _Beside())
                if operation.kind.startswith("reduce_scatter") and pair.reduction is None:
                    beside[key] = pair._replace(reduction=operation)
    return beside


def _early_part(key: Key) -> Key:
    return (f"{key[0]} early", *key[1:])


def _parts_of_product(
    product: Operation, beside: _Beside, here: tuple[int, str]
) -> Iterator[Operation]:
    """What a reduction may begin after, what goes on meanwhile, and what a gathering ends with."""
    gather, reduction = beside
    head = 1.0 / sum(reduction.ranks) if reduction else 0.0
    tail = 1.0 / sum(gather.ranks) if gather else 0.0
    after = product.after
    if gather:
        whole: Ref = (*here, gather.key)
        after = tuple((*here, _early_part(gather.key)) if ref == whole else ref for ref in after)
    begun = product._replace(after=after)
    if reduction:
        yield _share_of(begun, head)._replace(key=_early_part(product.key), takes=(), uses=())
        begun = begun._replace(after=((*here, _early_part(product.key)),), makes=())
    if gather:
        middle: Key = (f"{product.key[0]} middle", *product.key[1:])
        yield _share_of(begun, 1.0 - head - tail)._replace(key=middle, takes=(), uses=())
        begun = begun._replace(after=((*here, middle), (*here, gather.key)), makes=())
        yield _share_of(begun, tail)
    else:
        yield _share_of(begun, 1.0 - head)


def _parts_of_collective(
    operation: Operation, beside: dict[Key, _Beside], here: tuple[int, str]
) -> Iterator[Operation]:
    """One part of a gathering, then the rest; all of a reduction but one part, then that."""
    part = 1.0 / sum(operation.ranks)
    early: Key = _early_part(operation.key)
    gathers = operation.kind.startswith("all_gather")
    after = operation.after
    if not gathers:
        after = tuple(
            (*here, _early_part(ref[2])) if ref[:2] == here and ref[2] in beside else ref
            for ref in after
        )
    first = _share_of(operation, part if gathers else 1.0 - part)
    yield first._replace(key=early, after=after, takes=(), uses=())
    rest = _share_of(operation, 1.0 - part if gathers else part)
    own: tuple[Ref, ...] = ((*here, early),)
    yield rest._replace(after=own if gathers else (*operation.after, *own), makes=(), ranks=(0, 0))


def _share_of(operation: Operation, share: float) -> Operation:
    return operation._replace(
        seconds=share * operation.seconds,
        transfer=share * operation.transfer,
        num_bytes=share * operation.num_bytes,
    )

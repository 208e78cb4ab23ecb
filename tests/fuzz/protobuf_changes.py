"""Random changes of protobuf messages, such as ONNX files, field by field."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hostile_values import any_text
from tree_changes import brief

# A message, a field of it, and which of its values; None for one that is not repeated.
Place = tuple[Any, Any, int | None]


@dataclass(frozen=True)
class Message:
    """A file of protobuf."""

    tree: Any

    def data(self) -> bytes:
        """The message as it is written."""
        written: bytes = self.tree.SerializeToString()
        return written


_WHOLE = (0, -1, 1, 2, 3, 7, 224, 10**6, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
_LONGEST_TEXT = 10_000


def places(message: Any) -> Iterator[Place]:
    """All values of a message, and of the messages in it."""
    for row, value in message.ListFields():
        repeated = hasattr(value, "append") or hasattr(value, "add")
        for index, one in enumerate(value if repeated else [value]):
            yield message, row, index if repeated else None
            if row.type == row.TYPE_MESSAGE:
                yield from places(one)


def change_message(message: Any, rng: random.Random) -> str:
    """Change something somewhere.

    Parameters
    ----------
    message
        Changed in place.
    rng
        Says what and where.

    Returns
    -------
    str
        What was changed.
    """
    found = list(places(message))
    if not found:
        return "nothing left to change"
    # fields of a kind first, lest the numbers of long lists are all that is changed
    name = rng.choice(sorted({row.full_name for _, row, _ in found}))
    owner, row, index = rng.choice([place for place in found if place[1].full_name == name])
    if row.type == row.TYPE_MESSAGE or rng.random() < 0.2:
        return f"{row.name} {_other_number(owner, row, index, rng)}"
    value = _other_value(row, rng)
    if index is None:
        setattr(owner, row.name, value)
    else:
        getattr(owner, row.name)[index] = value
    return f"{row.name} = {brief(value)}"


def _other_number(owner: Any, row: Any, index: int | None, rng: random.Random) -> str:
    """One value more or less."""
    if index is None:
        owner.ClearField(row.name)
        return "dropped"
    values = getattr(owner, row.name)
    what = rng.choice(("dropped", "repeated", "all dropped"))
    if what == "dropped":
        del values[index]
    elif what == "repeated":
        # a message is copied as it is added
        values.append(values[index])
    else:
        owner.ClearField(row.name)
    return what


def _other_value(row: Any, rng: random.Random) -> Any:
    """A value of the type of a field."""
    if row.type == row.TYPE_STRING:
        return any_text(rng)[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")
    if row.type == row.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 8, 1000)))
    if row.type in (row.TYPE_FLOAT, row.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), -float("inf")))
    if row.type == row.TYPE_ENUM:
        return rng.choice(row.enum_type.values).number
    narrow = row.type in (row.TYPE_INT32, row.TYPE_UINT32)
    unsigned = row.type in (row.TYPE_UINT32, row.TYPE_UINT64)
    least, most = (0 if unsigned else -(2**31 if narrow else 2**63)), 2**31 if narrow else 2**63
    return rng.choice([value for value in _WHOLE if least <= value < most])

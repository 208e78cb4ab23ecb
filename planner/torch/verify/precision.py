"""Run a module in double precision throughout, also where its code casts to another one.

Norms and softmax are often written to compute in single precision whatever they are given. A plan
sums in another order, so that numbers at the border of two roundings come out apart by what single
precision tells apart, which would hide faults of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

_LOWER = (torch.float32, torch.float16, torch.bfloat16)
# Methods that cast to one type.
_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


class _Doubles(TorchFunctionMode):
    """Every type of floating point that is asked for is that of doubles."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        options: Mapping[str, object] | None = None,
    ) -> object:
        if function in _CASTS:
            return args[0].double()  # type: ignore[attr-defined]
        given = {name: _as_double(one) for name, one in (options or {}).items()}
        return function(*map(_as_double, args), **given)


def _as_double(argument: object) -> object:
    lower = isinstance(argument, torch.dtype) and argument in _LOWER
    return torch.float64 if lower else argument


@contextmanager
def all_in_double() -> Iterator[None]:
    """Compute, and trace, in double precision what is cast to less."""
    with _Doubles():
        yield


def backward_in_double(loss: torch.Tensor) -> None:
    """The backward pass, in which modules may compute parts again, as `all_in_double` has it.

    A mode is off inside of the functions that it sees, and `backward` is one of them.
    """
    _engine_run_backward(
        (loss,),
        (torch.ones_like(loss),),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )

"""What a backward pass reads and the forward pass does not keep: it is made again, once.

Runs that are computed again keep what they read. Gathered weights (ZeRO-3) and inputs
(`gather_again`) are gathered again from the rank's own block. Hooks of autograd on what it saves
do both, so that views of what was gathered count, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from msgspec import Struct
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from planner.torch.apply.redistribution import MeshRanks, Move

if TYPE_CHECKING:
    from torch import Tensor


class ComputedAgain:
    """A function of which nothing is kept but what it reads.

    However many backward passes read what it would have kept (schedules that split the backward
    pass have several), it is computed again once, and kept until the last of them is over.

    Parameters
    ----------
    body, given
        The function, and what it reads.
    """

    def __init__(self, body: Callable[..., tuple[object, ...]], given: tuple[object, ...]) -> None:
        self.body = body
        self.given = [_without_history(one) for one in given]
        self.random = torch.get_rng_state()
        self.count = 0
        self.values: list[Tensor] = []

    def keep(self, x: Tensor) -> int:
        """Keep the place of a tensor in its stead."""
        self.count += 1
        return self.count - 1

    def find(self, place: int) -> Tensor:
        """The tensor of a place."""
        if not self.values:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(self.random)
                with saved_tensors_hooks(self._keep_again, _never):
                    self.body(*self.given)
            assert len(self.values) == self.count, "the same is computed again"
        return self.values[place]

    def _keep_again(self, x: Tensor) -> None:
        self.values.append(x.detach())


def run_again_later(body: Callable[..., tuple[object, ...]], *given: object) -> tuple[object, ...]:
    """What a function makes, of which the backward pass computes again what it reads.

    Parameters
    ----------
    body, given
        As of `ComputedAgain`.
    """
    again = ComputedAgain(body, given)
    with saved_tensors_hooks(again.keep, again.find):
        return body(*given)


def _without_history(one: object) -> object:
    """A tensor without what it was made of."""
    if not isinstance(one, torch.Tensor):
        return one
    return one.detach().requires_grad_(one.requires_grad)


def _never(kept: object) -> Tensor:
    raise AssertionError("nothing is computed backward from what is computed again")


class _GatheredTensor(Struct, frozen=True, kw_only=True):
    """What was gathered: the block that it was gathered from, how, and its memory."""

    block: Tensor
    move: Move
    memory: StorageWeakRef


class _View(Struct, frozen=True, kw_only=True):
    """A view of what was gathered, as autograd would have kept it."""

    of: _GatheredTensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class GatheredAgain:
    """Tensors that are gathered again for the backward pass.

    Parameters
    ----------
    ranks
        The ranks that have parts of them.
    """

    def __init__(self, ranks: MeshRanks) -> None:
        self.ranks = ranks
        self.known: dict[int, _GatheredTensor] = {}
        self.last: dict[str, tuple[_GatheredTensor, Tensor]] = {}

    def begin(self) -> None:
        """A new step."""
        self.known.clear()
        self.last.clear()

    def add(self, block: Tensor, move: Move, gathered: Tensor) -> None:
        """Know a tensor from now on, as long as it is there.

        Parameters
        ----------
        block, move, gathered
            The rank's block of it, how it was gathered, and what came of it.
        """
        memory = gathered.untyped_storage()
        if memory.data_ptr() != block.untyped_storage().data_ptr():
            self.known[memory.data_ptr()] = _GatheredTensor(
                block=block.detach(), move=move, memory=StorageWeakRef(memory)
            )

    def hooks(self) -> saved_tensors_hooks:
        """Where tensors that are known are not kept."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, x: Tensor) -> Tensor | _View:
        place = x.untyped_storage().data_ptr()
        found = self.known.get(place)
        if found is None:
            return x
        if found.memory.expired():
            del self.known[place]  # other tensors use that memory now
            return x
        return _View(
            of=found, size=tuple(x.shape), stride=x.stride(), offset=int(x.storage_offset())
        )

    def _unpack(self, kept: Tensor | _View) -> Tensor:
        if not isinstance(kept, _View):
            return kept
        # several layers read one gathered input, each with a weight of its own: both are at hand
        cause = kept.of.move.cause
        if cause not in self.last or self.last[cause][0] is not kept.of:
            self.last[cause] = kept.of, self.ranks.redistribute(kept.of.block, kept.of.move)
        return self.last[cause][1].as_strided(kept.size, kept.stride, kept.offset)

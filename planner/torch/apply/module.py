"""What every module that a plan was applied to offers, whichever way it runs."""

from __future__ import annotations

from abc import abstractmethod

from msgspec import Struct
from torch import Tensor, nn

from planner.plan import Plan


class Received(Struct, frozen=True, kw_only=True):
    """What a rank sent or received at once.

    Parameters
    ----------
    layer
        The layer that it was for.
    cause
        "shuffle", "halo", "reduction", "gradient", "statistics" or "loss".
    backward
        Whether it was in the backward pass.
    collective
        "all_reduce", "send_recv", ...
    numbers
        Elements that this rank received, by the count of the cost models: an all-reduce of n
        elements among p ranks is 2 n (p - 1) / p. [items]
    """

    layer: str
    cause: str
    backward: bool
    collective: str
    numbers: float


class PlannedModule(nn.Module):
    """A module that trains as its plan says. Every rank has one, and calls the same of it.

    Its parameters are the rank's blocks of those of the original module; after a backward pass
    their gradients are those of the mean loss over the whole batch, summed over ranks as the plan
    says, so that any optimizer which works on every number by itself does the right thing.
    """

    plan: Plan

    @abstractmethod
    def local_batch(self, tensor: Tensor, slot: int | str = 0) -> Tensor:
        """The part of a tensor of the whole batch that this rank reads.

        Parameters
        ----------
        tensor
            The tensor, of all samples of a step.
        slot
            Which input of the module it is, or "target".
        """

    @abstractmethod
    def step(self, *inputs: Tensor, target: Tensor | None = None) -> Tensor:
        """The forward and the backward pass of one step; the mean loss of the whole batch.

        Parameters
        ----------
        inputs
            The rank's parts of the inputs of the module.
        target
            The rank's part of what the loss compares with, where the module has no loss itself.
        """

    @abstractmethod
    def full_parameters(self) -> dict[str, Tensor]:
        """All parameters as one process would have them, by the names of the original module."""

    @abstractmethod
    def full_gradients(self) -> dict[str, Tensor]:
        """Their gradients after a step, likewise."""

    @abstractmethod
    def messages(self) -> list[Received]:
        """What this rank sent and received since it was asked last."""

"""What a plan is made of: its layers, the usual strategies beside it, and how it was found."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from costmodels.distribution import Distribution


class LayerPlan(Struct, frozen=True, kw_only=True):
    """One layer of a plan.

    Parameters
    ----------
    name, kind
        The layer.
    degrees
        Ways of each split dim at each level, from the inside out. [ways]
    shape
        Members of each level. [items]
    forward_s, backward_s, update_s
        Local computation, when nothing slows it down. [s]
    halo_s, reduction_s, shuffle_s
        Communication that computation waits for, as simulated. [s]
    gradient_s
        Its part of the all-reduce of its gradient bucket, hidden or not. [s]
    weights_bytes, gradients_bytes, state_bytes, output_bytes, saved_bytes
        Local sizes. [B]
    sharded
        What of its weight is cut over the GPUs that hold the same block of it (ZeRO), of
        "weights", "gradients" and "state".
    shard_size
        GPUs that it is cut over, None for all that hold the same block. [items]
    """

    name: str
    kind: str
    degrees: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...]
    forward_s: float
    backward_s: float
    update_s: float
    halo_s: float
    reduction_s: float
    shuffle_s: float
    gradient_s: float
    weights_bytes: float
    gradients_bytes: float
    state_bytes: float
    output_bytes: float
    saved_bytes: float
    sharded: tuple[str, ...] = ()
    shard_size: int | None = None

    @property
    def distribution(self) -> Distribution:
        """How the layer is split."""
        return Distribution(degrees=self.degrees, shape=self.shape)

    @property
    def time(self) -> float:
        """All but the gradient all-reduce. [s]"""
        return (
            self.forward_s
            + self.backward_s
            + self.update_s
            + self.halo_s
            + self.reduction_s
            + self.shuffle_s
        )


class Baseline(Struct, frozen=True, kw_only=True):
    """A usual strategy on the same inputs; without a time, the reason says why.

    Parameters
    ----------
    name
        The strategy.
    step_time_s, peak_memory_bytes, bucket_bytes
        What it costs, simulated like the plan, under the gradient buckets that suit it; None where
        it cannot be used. [s], [B], [B]
    fits
        Whether it can be used and fits in memory.
    reason
        Why it cannot be used, does not fit or has no figures.
    costed
        Whether there was time to find out.
    """

    name: str
    step_time_s: float | None
    peak_memory_bytes: float | None
    fits: bool
    reason: str = ""
    costed: bool = True
    bucket_bytes: float | None = None


class Finalist(Struct, frozen=True, kw_only=True):
    """One of the best assignments of a search, simulated.

    Parameters
    ----------
    step_time_s, peak_memory_bytes
        Its step and its peak memory. [s], [B]
    chosen
        Whether it is the plan.
    """

    step_time_s: float
    peak_memory_bytes: float
    chosen: bool


class SearchSummary(Struct, frozen=True, kw_only=True):
    """How the plan was found and how good it is.

    Parameters
    ----------
    solver
        The path taken through the solvers.
    status
        "optimal", "feasible", or "given" when a strategy was only costed.
    lower_bound_s
        No split of the layers has a faster step; 0 where nothing is proven. [s]
    proven_optimal
        Whether the step reaches the bound.
    gap
        How far the step may be above the optimum, as a part of it.
    num_sensible, num_candidates
        Candidates of all layers before and after the cap. [items]
    cap
        Candidates that a layer may keep. [items]
    num_costed
        Assignments that were costed on the timeline. [items]
    stopped_by
        "time limit" or "interrupt" where the search was cut short.
    num_choices
        Global choices (stages, micro-batches, replicas, what is cut and computed again) that were
        looked at; 0 where only the splits of one stage were searched. [items]
    memory_binds
        Whether the fastest splits of one stage that were met need more memory than there is.
    """

    solver: str
    status: str
    lower_bound_s: float
    proven_optimal: bool
    gap: float
    num_sensible: int
    num_candidates: int
    cap: int
    num_costed: int
    stopped_by: str = ""
    num_choices: int = 0
    memory_binds: bool = False


def given_solver(name: str) -> str:
    """What stands for the solver where a strategy of that name was given."""
    return f"none: {name} was given"

"""Inputs of a request that belong together: degrees of parallelism, and how samples are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ConflictError
from planner.request.inputs.description import part_inputs
from planner.request.inputs.simulating import (
    CHUNKS,
    CORES,
    DP,
    LOADER,
    LOADER_RATE,
    MAX_IN_FLIGHT,
    MICRO_BATCHES,
    PP,
    RECOMPUTE,
    SCHEDULE,
    SIMULATE,
    STORAGE,
    TP,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Data, tensor and pipeline parallelism by degree, and the schedule of the pipeline.

    Parameters
    ----------
    dp, tp, pp
        Ways of each; dp of None is what the others leave. [ways]
    micro_batches
        Parts that the batch is cut into. [items]
    schedule
        One of `costmodels.strategy.SCHEDULES`.
    chunks
        Stages of each group of devices, with the schedule "interleaved". [items]
    max_in_flight
        Forward passes of a stage whose backward pass is still to come; None for the schedule's.
        [items]
    recompute
        Whether the activations of every block of layers are computed again for backward.

    Raises
    ------
    InputError
        When a value cannot be used.
    """

    dp: int | None = DP.default
    tp: int = TP.default
    pp: int = PP.default
    micro_batches: int = MICRO_BATCHES.default
    schedule: str = SCHEDULE.default
    chunks: int = CHUNKS.default
    max_in_flight: int | None = MAX_IN_FLIGHT.default
    recompute: bool = RECOMPUTE.default

    def __post_init__(self) -> None:
        _check_part(self, "degrees")

    @property
    def asked_for(self) -> bool:
        """Whether any of it was asked for."""
        return self != Degrees()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How the samples of a step are loaded.

    Parameters
    ----------
    loader
        A name of `costmodels.input_pipeline.list_loaders`; "synthetic" costs nothing.
    rate
        Samples that a host loads in a second, where measured; None for the loader's model.
        [samples/s]
    cores
        Cores of a host, None for the default. [items]
    storage
        A name of `costmodels.input_pipeline.list_storages`, None for the loader's.

    Raises
    ------
    InputError
        When a value cannot be used, or nothing is loaded, but it is said how.
    """

    loader: str = LOADER.default
    rate: float | None = LOADER_RATE.default
    cores: int | None = CORES.default
    storage: str | None = STORAGE.default

    def __post_init__(self) -> None:
        _check_part(self, "loading")
        unused = (self.rate, self.cores, self.storage) != (None, None, None)
        if self.loader == LOADER.default and unused:
            raise ConflictError(
                "--loader-rate, --cores and --storage need a --loader that loads, such as native"
            )


def _check_part(part: Degrees | Loading, name: str) -> None:
    """Check all that a part of a request says, and keep it as it is used inside."""
    for one in part_inputs(SIMULATE, name):
        given = getattr(part, one.name)
        object.__setattr__(part, one.name, one.check(one.default if given is None else given))

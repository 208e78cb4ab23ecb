"""How the samples of a step are loaded, as far as a question says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.input_pipeline import Host, InputTime, input_time, load_loader, load_storage
from planner.notes import words
from planner.request.subjects import SimulationInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """How the samples of a step are loaded.

    Parameters
    ----------
    loader
        A name as of `costmodels.input_pipeline.list_loaders`.
    rate
        Samples that a host loads in a second, where measured; None for the loader's model.
    cores
        Cores of a host, None for the default. [items]
    storage
        A name as of `costmodels.input_pipeline.list_storages`, None for the loader's.
    """

    loader: str = "synthetic"
    rate: float | None = None
    cores: int | None = None
    storage: str | None = None


def loading_time(subject: SimulationInput, given: Input) -> InputTime:
    """What loading the samples of a step takes."""
    setting, strategy = subject.setting, subject.strategy
    loader = load_loader(given.loader)
    if given.storage is not None:
        loader = loader.with_storage(load_storage(given.storage))
    if not _photographs(setting.model.input_shape):
        size = 4.0 * math.prod(setting.model.input_shape.values())
        loader = loader.for_sample(stored_size=size, decoded_size=size)
    if given.rate is not None:
        loader = loader.with_rate(given.rate)
    # the first stage reads the samples
    first = strategy.stages[0]
    layer = first.layers[0]
    ways = strategy.distributions[layer].degree("sample")
    host = setting.cluster.devices_per_host
    devices = min(first.num_devices, host)
    hosts = max(first.num_devices // host, 1)
    return input_time(
        loader,
        samples_per_host=setting.batch / hosts,
        samples_per_device=setting.batch / ways,
        hosts=hosts,
        devices_per_host=devices,
        host=None if given.cores is None else Host(cores=given.cores),
    )


def loading_notes(
    loading: InputTime, step_seconds: float, subject: SimulationInput, given: Input
) -> list[str]:
    """Whether the input holds a step up, and what its time rests on, a sentence each.

    Parameters
    ----------
    loading
        The input.
    step_seconds
        Time of the step without it. [s]
    subject, given
        What was asked.
    """
    notes = [words(loading.advice(step_seconds))]
    if given.rate is None:
        notes.append(
            "loading is estimated by the figures of 'planner loaders', not by those of this "
            "machine; --loader-rate takes a measured one"
        )
        if not _photographs(subject.setting.model.input_shape):
            notes.append(
                "samples are no photographs: they are taken as stored in 4 bytes a number, and "
                "as decoded at the rate of photographs"
            )
    return notes


def _photographs(shape: Mapping[str, int]) -> bool:
    """Whether samples are such as those that the figures of loaders are of."""
    return set(shape) == {"channel", "height", "width"} and shape["channel"] == 3

"""How long it takes to load the samples of a step, where a request says how they are loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodels.input_pipeline import Host, InputTime, input_time, load_loader, load_storage
from costmodels.notes import Note
from planner.request.parts import Loading
from planner.request.placement import PlacedNetwork


def loading_time(placed: PlacedNetwork, loading: Loading) -> InputTime:
    """How long it takes to load the samples of a step."""
    setting, strategy = placed.setting, placed.strategy
    loader = load_loader(loading.loader)
    if loading.storage is not None:
        loader = loader.with_storage(load_storage(loading.storage))
    if not _are_photographs(setting.model.input_shape):
        size = 4.0 * math.prod(setting.model.input_shape.values())
        loader = loader.for_sample(stored_size=size, decoded_size=size)
    if loading.rate is not None:
        loader = loader.with_rate(loading.rate)
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
        host=None if loading.cores is None else Host(cores=loading.cores),
    )


def loading_notes(placed: PlacedNetwork, loading: Loading) -> tuple[Note, ...]:
    """What the time of loading rests on."""
    if loading.rate is not None:
        return ()
    notes = [Note.of("loading-estimated")]
    if not _are_photographs(placed.setting.model.input_shape):
        notes.append(Note.of("no-photographs"))
    return tuple(notes)


def _are_photographs(shape: Mapping[str, int]) -> bool:
    """Whether samples are of the kind that the figures of loaders are for."""
    return set(shape) == {"channel", "height", "width"} and shape["channel"] == 3

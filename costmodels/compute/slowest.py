"""Time of local work on devices of several kinds: where all do the same, that of the slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from costmodels.cluster import HostGroup
from costmodels.cluster.groups import slowest_device
from costmodels.compute.model import ComputeModel, FloatArray, SourceArray
from costmodels.compute.work import Work


class SlowestCompute(ComputeModel):
    """Time of local work that devices of several groups of hosts do at once.

    Parameters
    ----------
    groups
        The groups.
    models
        Of the devices of each group, by its name; all at one precision.
    """

    def __init__(self, groups: Sequence[HostGroup], models: Mapping[str, ComputeModel]) -> None:
        self.models = {group.name: models[group.name] for group in groups}
        first = self.models[groups[0].name]
        super().__init__(
            slowest_device([group.device for group in groups]),
            first.precision,
            winograd=first.winograd,
            attention_kernel=first.attention_kernel,
        )

    def under(self, groups: tuple[HostGroup, ...]) -> ComputeModel:
        """The model of the devices of some of the groups; of all of them where none are named."""
        if not groups:
            return self
        if len(groups) == 1:
            return self.models[groups[0].name]
        return SlowestCompute(groups, self.models)

    def time(self, work: Work, *, fp8: bool = False) -> tuple[FloatArray, SourceArray]:
        """As of `ComputeModel`: for each candidate the longest time of any device."""
        seconds, sources = zip(
            *(model.time(work, fp8=fp8) for model in self.models.values()), strict=True
        )
        slowest = np.argmax(seconds, axis=0)
        places = np.arange(len(slowest))
        return np.stack(seconds)[slowest, places], np.stack(sources)[slowest, places]

    def describe(self) -> dict[str, str]:
        """As of `ComputeModel`, of every group."""
        return {
            f"{what} on {group}": basis
            for group, model in self.models.items()
            for what, basis in model.describe().items()
        }

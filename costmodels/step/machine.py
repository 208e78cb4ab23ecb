"""What costs depend on besides the layer."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.communication.topology import Topology
from costmodels.compute import ComputeModel
from costmodels.step.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that costs depend on besides the layer: links, device and training options."""

    topology: Topology
    compute: ComputeModel
    training: Training

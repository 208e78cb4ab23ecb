"""What costs depend on besides the layer."""

from __future__ import annotations

from msgspec import Struct

from costmodels.communication.topology import Topology
from costmodels.compute import ComputeModel
from costmodels.step.training import Training


class Machine(Struct, frozen=True, kw_only=True):
    """Everything that costs depend on besides the layer: links, device and training options."""

    topology: Topology
    compute: ComputeModel
    training: Training

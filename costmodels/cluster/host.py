"""The memory of a host, and the links that its devices reach it by."""

from __future__ import annotations

from msgspec import Struct, structs

from costmodels.cluster.ranges import require_plausible
from costmodels.errors import printable, require_positive


class HostMemory(Struct, frozen=True, kw_only=True):
    """What lies in a host beside its devices. All hosts of a cluster are alike.

    Attributes
    ----------
    memory
        Memory of a host. [B]
    memory_bandwidth
        Bandwidth of that memory, which all devices of the host and its processors share. [B/s]
    link_bandwidth
        Achievable bandwidth of one link between devices and that memory, in each direction. [B/s]
    devices_per_link
        Neighbouring devices that share such a link. [items]
    source
        Where the figures are from.
    """

    memory: float
    memory_bandwidth: float
    link_bandwidth: float
    devices_per_link: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        for field, unit in (
            ("memory", "B"),
            ("memory_bandwidth", "B/s"),
            ("link_bandwidth", "B/s"),
            ("devices_per_link", ""),
        ):
            require_positive(f"the host: {field}", getattr(self, field), unit)
            require_plausible("the host", field, getattr(self, field))
        structs.force_setattr(self, "source", printable(self.source))

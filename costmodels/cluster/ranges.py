"""What figures of machines can be: wide, so that only slips of the pen and nonsense are refused.

Sums, products and quotients of figures within these ranges stay finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from costmodels.errors import require_between

# Field of a device, a level or a cluster: the least and the most that it can be, and its unit.
PLAUSIBLE: Mapping[str, tuple[float, float, str]] = MappingProxyType(
    {
        "memory": (1.0, 1e18, "B"),
        "reserved_memory": (0.0, 1e18, "B"),
        "peak_flops": (1e6, 1e21, "FLOP/s"),
        "memory_bandwidth": (1e3, 1e18, "B/s"),
        "num_sms": (1, 2**20, ""),
        "kernel_latency": (0.0, 1.0, "s"),
        "sustained": (0.01, 1.0, ""),
        "size": (1, 2**24, ""),
        "latency": (0.0, 1.0, "s"),
        "start_latency": (0.0, 1.0, "s"),
        "ring_pace": (0.0, 1.0, "s"),
        "in_network_latency": (0.0, 1.0, "s"),
        "send_recv_latency": (0.0, 1.0, "s"),
        "bandwidth": (1e3, 1e18, "B/s"),
        "in_network_bandwidth": (1e3, 1e18, "B/s"),
        "send_recv_bandwidth": (1e3, 1e18, "B/s"),
        "one_way_bandwidth": (1e3, 1e18, "B/s"),
        "links": (1, 2**20, ""),
        "peer_links": (1e-3, 2**20, ""),
        "group_links": (1e-3, 2**20, ""),
        "link_bandwidth": (1e3, 1e18, "B/s"),
        "devices_per_link": (1, 2**20, ""),
        "ramp": (0.0, 100.0, ""),
        "oversubscription": (1.0, 1e6, ""),
        "num_devices": (1, 2**24, ""),
    }
)


def require_plausible(label: str, field: str, value: float) -> None:
    """Refuse a figure that no machine has.

    Parameters
    ----------
    label
        What error messages call that which has the figure.
    field
        A key of `PLAUSIBLE`, or such a key with more behind a point.
    value
        The figure, in the unit of the table.

    Raises
    ------
    InputError
        When it is out of the range of its field.
    """
    least, most, unit = PLAUSIBLE[field.split(".")[0]]
    require_between(f"{label}: {field}", value, (least, most), "correct the figure", unit=unit)

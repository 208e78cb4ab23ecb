"""How one layer is split over the devices, and every way that is sensible."""

from __future__ import annotations

from costmodels.distribution.distribution import (
    Candidates,
    Distribution,
    devices_at_work,
    limit_reason,
    one_candidate,
    shared_distribution,
    split_dims,
)
from costmodels.distribution.enumeration import (
    count_candidates,
    enumerate_candidates,
    factorisations,
    places_of_totals,
    within_host,
)

__all__ = [
    "Candidates",
    "Distribution",
    "count_candidates",
    "devices_at_work",
    "enumerate_candidates",
    "factorisations",
    "limit_reason",
    "one_candidate",
    "places_of_totals",
    "shared_distribution",
    "split_dims",
    "within_host",
]

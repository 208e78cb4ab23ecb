"""The machines: devices, levels of links, clusters, and the files that describe them."""

from __future__ import annotations

from costmodels.cluster.build import list_devices, list_links
from costmodels.cluster.cluster import Cluster
from costmodels.cluster.device import PRECISIONS, Device
from costmodels.cluster.dump import dump_cluster
from costmodels.cluster.groups import HostGroup
from costmodels.cluster.host import HostMemory
from costmodels.cluster.level import Level
from costmodels.cluster.load import (
    cluster_text,
    link_level,
    list_clusters,
    load_cluster,
    load_device,
)

__all__ = [
    "PRECISIONS",
    "Cluster",
    "Device",
    "HostGroup",
    "HostMemory",
    "Level",
    "cluster_text",
    "dump_cluster",
    "link_level",
    "list_clusters",
    "list_devices",
    "list_links",
    "load_cluster",
    "load_device",
]

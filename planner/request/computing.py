"""Times of computation on the devices of a job."""

from __future__ import annotations

from costmodels.cluster import Cluster, Device
from costmodels.compute import ComputeModel, CostTable, SlowestCompute
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.step.training import Training
from planner.request.default_batch import has_attention


def compute_model(
    cluster: Cluster, training: Training, network: Network, tables: tuple[CostTable, ...]
) -> ComputeModel:
    """Times of computation on the devices of a cluster.

    Parameters
    ----------
    cluster, training, network
        The machine, options of the step, and what is trained.
    tables
        Measured times of such devices.

    Raises
    ------
    InputError
        When there are tables for devices of several kinds, or a device lacks the precision.
    """

    def model(device: Device) -> ComputeModel:
        return ComputeModel(
            device,
            training.precision,
            tables=tables,
            winograd=training.winograd,
            attention_kernel=training.attention_kernel,
            sustained=device.sustained if has_attention(network) else 1.0,
        )

    if not cluster.groups:
        return model(cluster.device)
    if tables:
        names = ", ".join(group.name for group in cluster.groups)
        raise InputError(
            f"tables of measured times must be of the one kind of device that a job uses, but it "
            f"is on several groups of hosts of {cluster.name}, {names}; leave --table out, or use "
            "the GPUs of one group"
        )
    rows = {group.name: model(group.device) for group in cluster.groups}
    return SlowestCompute(cluster.groups, rows)

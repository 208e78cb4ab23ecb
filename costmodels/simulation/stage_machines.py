"""What the stages of a job run on, where not all of its devices are alike or hold all weights."""

from __future__ import annotations

from costmodels.simulation.job import Job
from costmodels.simulation.layouts import Handling
from costmodels.simulation.messages import StageLinks
from costmodels.strategy import Stage


def links_of_weights(job: Job, own: tuple[StageLinks, ...]) -> tuple[StageLinks, ...]:
    """Links of all devices that hold the same weights: those of the stages, or more.

    Parameters
    ----------
    job
        The job.
    own
        Links of its stages.
    """
    if job.beyond is None:
        return own
    cluster, shape = job.beyond
    whole = Stage(layers=(), first_device=0, shape=shape)
    return (StageLinks(cluster, shape, whole, job.training.all_reduce, job.links),)


def handling_of(job: Job, links: StageLinks) -> Handling:
    """What the framework adds around collectives of activations of a stage."""
    runtime, device = job.runtime, job.compute.under(links.groups).device
    return Handling(
        per_byte=2.0 * runtime.activation_copies / device.memory_bandwidth,
        fixed=runtime.activation_waits * job.training.launch_time,
    )

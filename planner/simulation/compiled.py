"""The compiler of a placed network: of one job, or of one for each share of the samples."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.simulation import Compiler, Job, Runtime, UnevenCompiler
from costmodels.simulation.shared_pieces import KnownPieces
from costmodels.strategy import BatchShare
from planner.request.placement import PlacedNetwork
from planner.request.setting import Setting
from planner.request.training_graphs import training_graph


def compiler_of(
    placed: PlacedNetwork,
    runtime: Runtime,
    decoding: float = 0.0,
    links: str = "shared",
    known: KnownPieces | None = None,
) -> Compiler:
    """What lays out the tasks of a step.

    Parameters
    ----------
    placed
        The network, the machine and the strategy.
    runtime
        The framework's runtime.
    decoding, links
        As of `Job`.
    known
        As of `Compiler`; of no use to shares of the samples.
    """
    machine = placed.setting.machine
    job = Job(
        graph=placed.graph,
        strategy=placed.strategy,
        cluster=placed.setting.cluster,
        shape=machine.topology.shape,
        compute=machine.compute,
        training=machine.training,
        runtime=runtime,
        decoding=decoding,
        links=links,
    )
    shares = placed.strategy.shares
    if not shares:
        return Compiler(job, known)
    return UnevenCompiler([_of_share(placed.setting, job, share) for share in shares], shares)


def _of_share(setting: Setting, job: Job, share: BatchShare) -> Job:
    """The job of the replicas on one group of hosts."""
    cluster = setting.cluster
    groups = tuple(group for group in cluster.groups if group.name == share.group)
    if len(groups) != 1 or len(job.strategy.stages) != 1:
        raise InputError(
            f"samples of group {share.group} must be of a group of hosts of {cluster.name}, in a "
            "strategy of one stage, but are not; plan again"
        )
    alone = cluster.alone(share.group)
    shape = alone.shape(share.num_devices)
    strategy = job.strategy
    distributions = {name: _on_fewer(one, shape) for name, one in strategy.distributions.items()}
    stage = replace(strategy.stages[0], shape=shape)
    return replace(
        job,
        graph=training_graph(setting.model, share.replicas * share.samples, job.training),
        cluster=alone,
        shape=shape,
        compute=job.compute.under(groups),
        strategy=replace(
            strategy,
            stages=(stage,),
            distributions=distributions,
            schedule=replace(strategy.schedule, micro_batches=share.micro_batches),
            shares=(),
        ),
        beyond=(cluster, job.shape),
    )


def _on_fewer(distribution: Distribution, shape: tuple[int, ...]) -> Distribution:
    """The split of a layer on some of the hosts, which have fewer of the samples."""
    degrees = dict(distribution.degrees)
    if "sample" in degrees:
        *inner, outer = degrees["sample"]
        degrees["sample"] = (*inner, max(outer * shape[-1] // distribution.shape[-1], 1))
    return Distribution(degrees=degrees, shape=shape)

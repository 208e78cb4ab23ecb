"""What happens to the weights of a stage: gathered, their gradients reduced, updated.

Gradients travel in buckets, in the order in which the backward pass makes them. What is cut over
the ranks that hold the same weight (ZeRO) is reduced by reduce-scatter, gathered where it is used,
and dropped afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from costmodels.cluster import Cluster
from costmodels.compute.roofline import BANDWIDTH_FRACTION
from costmodels.simulation.arrivals import Shards, WeightArrivals
from costmodels.simulation.buckets import GradientBucket, Group, reduced_late, runtime_buckets
from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Key, Operation, Ref, message_operation
from costmodels.simulation.runtimes import Runtime
from costmodels.simulation.schedules import BACKWARD, WEIGHT
from costmodels.simulation.servers import push_pull
from costmodels.simulation.stage_program import StageProgram
from costmodels.step.training import Training
from costmodels.strategy import MemoryConfig


def after_check(operation: Operation, runtime: Runtime) -> Operation:
    """A collective behind the check of the hosts that launch it, where the runtime has them."""
    late = runtime.check(operation.ranks)
    return operation._replace(seconds=operation.seconds + late) if late else operation


class WeightWork:
    """Operations on the weights of one stage."""

    def __init__(
        self,
        program: StageProgram,
        cluster: Cluster,
        runtime: Runtime,
        training: Training,
        memory: Callable[[str], MemoryConfig],
        first_group: int = 0,
    ) -> None:
        self.program, self.cluster = program, cluster
        self.runtime, self.training, self.memory = runtime, training, memory
        self.offloaded = program.view.strategy.offload
        self.pieces = {layer.name: program.pieces[layer.name] for layer in program.layers}
        self.first_group = first_group
        self.fused_groups: list[Group] = []
        self.pulled_with: dict[str, Key] = {}
        self.update_waits: list[Ref] = []
        self._summed: dict[str, Ref] = {}
        self.buckets = runtime_buckets(program.layers, program.pieces, runtime, training, memory)
        shards = Shards(program=program, training=training, memory=memory)
        self.cuts, self.shard_group = shards.cuts, shards.group
        self._reductions = self._reduce()
        self.tied_operations: list[Operation] = []
        self.arrivals = {phase: WeightArrivals(shards, phase) for phase in program.phases}

    def groups(self, name: str) -> tuple[Group, Group]:
        """Members of the groups in which the gradients of a layer are summed up. [items]

        First those that hold its weight or share it, then those that hold the same shard; the
        latter are one rank each where all share it, or none do.
        """
        config, whole = self.memory(name), self.pieces[name].gradient_group
        if not (config.weights or config.gradients or config.state) or not config.shard_size:
            return whole, (1,) * len(whole)
        shards = self.shard_group(name)
        return shards, tuple(n // part for n, part in zip(whole, shards, strict=True))

    # memory

    def fixed_memory(self) -> dict[str, float]:
        """Weights, gradients, optimizer state and gradient buckets, by holder. [B]"""
        rows = {"weights": 0.0, "weight gradients": 0.0, "optimizer state": 0.0}
        whole, copied = 0.0, 0.0
        for name, piece in self.pieces.items():
            rows["weight gradients"] += piece.gradients / self.cuts(name, "gradients")
            if "weights" not in self.offloaded:
                rows["weights"] += piece.weights / self.cuts(name, "weights")
            if "optimizer" not in self.offloaded:
                rows["optimizer state"] += piece.state / self.cuts(name, "state")
            whole += piece.gradients
            # what is reduced all at once needs no buckets
            travels = piece.gradient_bytes > 0.0 and not reduced_late(
                self.memory(name), self.runtime
            )
            copied += piece.parameters * self.training.held.buckets * travels
        if self.runtime.views_buckets or self.training.held.buckets:
            return {**rows, "communication buffers": copied}
        limit = self.runtime.fusion or self.runtime.bucket
        if limit is None and self.runtime.each_micro_batch:
            # the gradients of a unit lie whole in a buffer while they are reduced
            return {**rows, "communication buffers": 0.0}
        largest = max((bucket.num_bytes for bucket in self.buckets), default=0.0)
        rows["communication buffers"] = min(2.0 * (limit or largest), whole)
        return rows

    @property
    def host_memory(self) -> float:
        """What waits in the host for a device throughout: weights, state, and gradients for it."""
        total = 0.0
        for name, piece in self.pieces.items():
            if "weights" in self.offloaded:
                total += piece.numbers * self.training.held.weights / self.cuts(name, "weights")
            if "optimizer" in self.offloaded:
                total += (piece.state + piece.gradients) / self.cuts(name, "state")
        return total

    @property
    def brings(self) -> bool:
        """Whether any pass brings weights that are not there."""
        return any(arrivals.operations for arrivals in self.arrivals.values())

    # reductions of gradients

    def _backward_ends(self) -> list[Ref]:
        """After what all gradients of the stage are there."""
        program = self.program
        end = [op.key for op in program.phases[BACKWARD] if op.queue == Queue.COMPUTE]
        after: list[Ref] = [(program.number, BACKWARD, end[-1])]
        if program.phases[WEIGHT]:
            after.append((program.number, WEIGHT, program.phases[WEIGHT][-1].key))
        return after

    def _reduce(self) -> list[Operation]:
        program = self.program
        rows: list[Operation] = []
        for number, bucket in enumerate(self.buckets):
            after: list[Ref] = [program.weight_ready[name] for name in bucket.layers]
            if bucket.late or not (self.runtime.overlap and self.training.gradient_overlap):
                after += self._backward_ends()
            operations = self._bucket_operations(number, bucket, after)
            last: Ref = (program.number, "reduce", operations[-1].key)
            self._summed.update(dict.fromkeys(bucket.layers, last))
            rows += operations
        if not self.runtime.crosses_steps:
            self.update_waits += [(program.number, "reduce", op.key) for op in rows]
        return [after_check(op, self.runtime) for op in rows]

    def _bucket_operations(
        self, number: int, bucket: GradientBucket, after: list[Ref]
    ) -> list[Operation]:
        links, first = self.program.weight_links, bucket.layers[0]
        label = first if len(bucket.layers) == 1 else f"{first} to {bucket.layers[-1]}"
        if self.runtime.gradient == "push_pull":
            return self._push_pull(number, bucket, after, label)
        if self.runtime.fusion is not None and not bucket.cut:
            if bucket.group not in self.fused_groups:
                self.fused_groups.append(bucket.group)
            place = self.first_group + self.fused_groups.index(bucket.group)
            return [
                Operation(
                    key=("gradients of " + first, label, place),
                    kind="fused",
                    queue=Queue.GRADIENT,
                    after=tuple(dict.fromkeys(after)),
                    num_bytes=bucket.num_bytes,
                )
            ]
        kind = "reduce_scatter" if bucket.cut else "all_reduce"
        group = self.shard_group(first) if bucket.cut else bucket.group
        parts = math.prod(group)
        received = bucket.num_bytes * (1.0 - 1.0 / parts)
        one_way = links.one_way(group)
        passes = 1.0 if bucket.cut else self.runtime.passes(parts, one_way)
        key: Key = ("gradients", label, number)
        rows = [
            message_operation(
                key,
                kind,
                links.collective(kind, group, bucket.num_bytes * passes),
                after,
                num_bytes=received if bucket.cut else 2.0 * received,
                queue=Queue.GRADIENT,
            )
        ]
        if self.runtime.bucket is None and self.runtime.each_micro_batch:
            rows[0] = rows[0]._replace(buffer=bucket.num_bytes)
        replicas = tuple(n // part for n, part in zip(bucket.group, group, strict=True))
        if math.prod(replicas) > 1:
            # hybrid sharding: each part is summed up over the replicas of the shards
            part = bucket.num_bytes / parts
            rows.append(
                message_operation(
                    ("gradients of shards", label, number),
                    "all_reduce",
                    links.collective("all_reduce", replicas, part),
                    [(self.program.number, "reduce", key)],
                    num_bytes=2.0 * part * (1.0 - 1.0 / math.prod(replicas)),
                    queue=Queue.GRADIENT,
                )
            )
        return rows

    def _push_pull(
        self, number: int, bucket: GradientBucket, after: list[Ref], label: str
    ) -> list[Operation]:
        """A bucket in pieces, each pulled as soon as it has been pushed and added up."""
        pieces = max(round(bucket.num_bytes / (self.runtime.bucket or bucket.num_bytes)), 1)
        size = bucket.num_bytes / pieces
        push, pull = push_pull(
            self.program.stage_links, self.cluster, self.runtime, bucket.group, size
        )
        rows = []
        for piece in range(pieces):
            pushed: Key = ("push", label, number * 10_000 + piece)
            pulled: Key = ("pull", label, number * 10_000 + piece)
            rows.append(
                message_operation(pushed, "push", push, after, num_bytes=0.0, queue=Queue.GRADIENT)
            )
            rows.append(
                message_operation(
                    pulled,
                    "pull",
                    pull,
                    [(self.program.number, "reduce", pushed)],
                    num_bytes=size,
                    queue=Queue.PARAMETER,
                )
            )
        self.pulled_with.update(dict.fromkeys(bucket.layers, rows[-1].key))
        return rows

    def summed_up(self, name: str) -> list[Ref]:
        """After what the gradient of a layer with a weight is what the update takes."""
        ready = self._summed.get(name) or self.program.weight_ready.get(name)
        return [] if ready is None else [ready]

    def reductions(self) -> list[Operation]:
        """Reductions of all gradients."""
        return self._reductions

    # the update

    @property
    def update_seconds(self) -> float:
        """Time of the optimizer's update; servers do it where there are any. [s]"""
        if self.runtime.gradient == "push_pull":
            return 0.0
        held, total = self.training.held, 0.0
        rate = BANDWIDTH_FRACTION * self.cluster.device.memory_bandwidth
        for name, piece in self.pieces.items():
            ranks = self.cuts(name, "state")
            moved = held.moved / self.cuts(name, "gradients") + held.moved_cut / ranks
            total += piece.update / ranks + piece.parameters * moved / rate
        return total

    def tie(self, others: Sequence[WeightWork]) -> None:
        """Exchange gradients of weights that layers of this stage share.

        Layers of one stage come first, with each other; those of other stages then.

        Parameters
        ----------
        others
            The work on the weights of all stages.
        """
        self._exchange()
        program, graph = self.program, self.program.graph
        for layer in graph.compute_layers:
            owner = layer.shares_weight_with
            if owner is None:
                continue
            here, there = layer.name, owner
            if there in self.pieces:
                here, there = there, here
            if here not in self.pieces or there in self.pieces:
                continue
            if program.view.holders[layer.name] != layer.name:
                continue
            other = next(work for work in others if there in work.pieces)
            size = self.pieces[here].gradients
            operation = message_operation(
                ("tied gradients", here, 0),
                "send_recv",
                program.stage_links.to_stage(other.program.stage_links, size),
                [program.weight_ready[here], other.program.weight_ready[there]],
                num_bytes=size,
                queue=Queue.GRADIENT,
            )
            self.tied_operations.append(operation)
            self.update_waits.append((program.number, "tied", operation.key))

    def _exchange(self) -> None:
        """Give each rank what it lacks of the sums of weights that layers of the stage share.

        Servers add all gradients up themselves, and give each worker what it needs.
        """
        if self.runtime.gradient == "push_pull":
            return
        program = self.program
        after = [*self._backward_ends(), *self.update_waits]
        for name in self.pieces:
            block = program.view.shared.get(name)
            if block is None or block.exchange <= 0.0:
                continue
            operation = message_operation(
                ("exchange of gradients", name, 0),
                "exchange",
                program.stage_links.moved(block.exchange, block.exchange_latency),
                after,
                num_bytes=block.exchange_bytes,
                queue=Queue.GRADIENT,
            )
            self.tied_operations.append(operation)
            self.update_waits.append((program.number, "tied", operation.key))

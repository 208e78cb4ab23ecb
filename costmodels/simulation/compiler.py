"""Compile a network and a strategy into an execution graph (Proteus, V).

Every stage works out its operations on one micro-batch once; they are then laid out in the order
of the schedule, once a micro-batch and step, and joined by what the runtime adds: reductions of
gradients, gathering of weights, the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.simulation.execution import ExecutionGraph, Queue, Task
from costmodels.simulation.folding import FoldedPass, fold_key, fold_stages
from costmodels.simulation.fusing import gradient_fusion
from costmodels.simulation.host import wait_for_host
from costmodels.simulation.host_links import check_offload, room_in_host
from costmodels.simulation.job import Job
from costmodels.simulation.ledger import STEP_TAG
from costmodels.simulation.messages import StageLinks
from costmodels.simulation.offload import BUFFERS, offload_activations
from costmodels.simulation.operations import SENDS, Key, Mark, Operation, Ref
from costmodels.simulation.roles import Roles
from costmodels.simulation.runtimes import Runtime
from costmodels.simulation.schedules import BACKWARD, FORWARD, WEIGHT, StagePass
from costmodels.simulation.shared_pieces import KnownPieces, holders_of_weights, pieces_of_job
from costmodels.simulation.stage_machines import handling_of, links_of_weights
from costmodels.simulation.stage_program import StageProgram
from costmodels.simulation.tensors import JobView
from costmodels.simulation.updates import update_operations
from costmodels.simulation.weights import WeightWork
from costmodels.strategy import MemoryConfig

# More than that takes minutes (215 thousand take 8 s, benchmarks.simulation.__main__). [items]
_MOST_TASKS = 2_000_000
# From here on passes are tasks by themselves, where they can be. [items]
FEWEST_FOLDED = 4000


class Compiler:
    """Lays out the tasks of a job.

    Parameters
    ----------
    job
        The job.
    known
        Costs of layers by the shape of their stage and the groups of hosts that it is on, which
        jobs that differ in their strategy only may share.
    """

    def __init__(self, job: Job, known: KnownPieces | None = None) -> None:
        self.known = {} if known is None else known
        self.job = job
        (strategy := job.strategy).check(job.graph)
        check_offload(strategy, job.cluster, job.runtime.gradient, job.runtime.name)
        self.stage_of = {n: i for i, stage in enumerate(strategy.stages) for n in stage.layers}
        stage_links = tuple(
            StageLinks(job.cluster, job.shape, stage, job.training.all_reduce, job.links)
            for stage in strategy.stages
        )
        holders = holders_of_weights(job.graph, self.stage_of)
        pieces, shared = pieces_of_job(job, holders, self.known)
        self.view = JobView(
            graph=job.graph,
            strategy=strategy,
            pieces=pieces,
            holders=holders,
            shared=shared,
            stage_links=stage_links,
            weight_links=links_of_weights(job, stage_links),
            stage_of=self.stage_of,
            activation_size=job.training.activation_size,
            weight_apart=strategy.schedule.kind == "zero-bubble",
            weight_beside=job.runtime.weight_beside,
            handling=tuple(handling_of(job, links) for links in stage_links),
            runtime=job.runtime,
            fresh_size=float(job.training.held.fresh),
            launch_time=job.training.launch_time,
        )
        self.programs = [StageProgram(self.view, n) for n in range(len(strategy.stages))]
        if job.runtime.runs_ahead:
            for program in self.programs:
                wait_for_host(program)
        # what waits in the host of each stage for each of its micro-batches under way
        self.away = [0.0] * len(self.programs)
        # by stage and the first computation of each unit, the copy to the host that follows it
        self.leaving: dict[int, Mapping[Key, Key | None]] = {}
        if "activations" in strategy.offload:
            kind, count = strategy.schedule.kind, strategy.schedule.micro_batches
            at_once = kind != "gpipe" or count == 1
            for number, program in enumerate(self.programs):
                last = number == len(self.programs) - 1
                self.away[number], self.leaving[number] = offload_activations(
                    program, follows=last and at_once
                )
        self._begin()

    def with_runtime(self, runtime: Runtime) -> Compiler:
        """The same job under another runtime, which changes nothing but what is done to weights.

        What it does around collectives of activations stays as it was.
        """
        other = copy(self)
        other.job = replace(self.job, runtime=runtime)
        other._begin()
        return other

    def with_micro_batches(self, count: int) -> Compiler:
        """The same job with another number of micro-batches of the same size."""
        other, strategy = copy(self), self.job.strategy
        schedule = replace(strategy.schedule, micro_batches=count)
        other.job = replace(self.job, strategy=replace(strategy, schedule=schedule))
        other._begin()
        return other

    @property
    def repeats(self) -> bool:
        """Whether every micro-batch gathers weights, reduces gradients or goes to the host."""
        if "activations" in self.job.strategy.offload:
            return True
        return self.job.runtime.each_micro_batch or any(work.brings for work in self.weights)

    def _begin(self) -> None:
        """Work out what happens to the weights, before anything is laid out."""
        job, usual = self.job, self.job.runtime.memory

        def memory(name: str) -> MemoryConfig:
            return job.strategy.memory.get(name, usual)

        self.folded: Mapping[int, Mapping[str, FoldedPass]] = {}
        self.weights: list[WeightWork] = []
        for program in self.programs:
            count = sum(len(work.fused_groups) for work in self.weights)
            work = WeightWork(
                program, job.cluster, job.runtime, job.training, memory, first_group=count
            )
            self.weights.append(work)
        for work in self.weights:
            work.tie(self.weights)
        self.roles = Roles(job, self.view, self.weights, self.away)
        self.rows: list[tuple[int, int, int, int, Operation]] = []  # role, step, stage, micro
        self.ids: dict[Mark, int] = {}
        self.extra_after: dict[int, list[Mark]] = {}
        self.sent: dict[int, list[Mark]] = {}  # by role, what it has not waited for
        # by role the copies to the host of units that it has begun, None where nothing leaves
        self.left: dict[int, list[Mark | None]] = {}
        # by role and queue the ends of units whose weights it has brought
        self.units: dict[tuple[int, int], list[Mark]] = {}

    @property
    def sources(self) -> Mapping[str, float]:
        """Computation of one micro-batch by where its estimate comes from. [s]"""
        total: dict[str, float] = {}
        for piece in self.view.pieces.values():
            for source, seconds in piece.sources:
                total[source] = total.get(source, 0.0) + seconds
        return total

    def compile(self, steps: int) -> ExecutionGraph:
        """The execution graph of some steps, one after the other."""
        job = self.job
        self.folded = self._fold(steps)
        self._check_size(steps)
        for step in range(steps):
            for role in range(len(self.roles.groups)):
                self._role_step(role, step)
        roles = self.roles.every
        if job.strategy.offload:
            room_in_host(job.cluster, roles)
        return ExecutionGraph(
            roles=roles,
            tasks=tuple(self._task(number) for number in range(len(self.rows))),
            steps=steps,
            fusion=gradient_fusion(job.runtime, self.weights, job.strategy.num_devices),
        )

    def num_tasks(self, steps: int) -> int:
        """Tasks of some steps. [items]"""
        folded = self.folded
        each = sum(
            sum(1 + len(rows.sends) for rows in folded[stage].values())
            if stage in folded
            else sum(map(len, program.phases.values()))
            for stage, program in enumerate(self.programs)
        )
        return each * self.job.strategy.schedule.micro_batches * steps

    def _check_size(self, steps: int) -> None:
        """Refuse what would take minutes and all of the memory."""
        count = self.num_tasks(steps)
        if count > _MOST_TASKS:
            raise InputError(
                f"a step must be at most {_MOST_TASKS:,} operations but {count:,} are asked for; "
                "choose fewer micro-batches or stages"
            )

    def _role_step(self, role: int, step: int) -> None:
        schedule = self.job.strategy.schedule
        stages, order = self.roles.stages(role), self.roles.orders[role]
        last = {(run.stage, run.phase): place for place, run in enumerate(order)}
        if self.job.decoding and 0 in stages:
            # the devices that read the samples decode them
            key, seconds = ("decode", "input", 0), self.job.decoding
            decode = Operation(key, "decode", Queue.COMPUTE, after=(), seconds=seconds)
            self._add(role, step, stages[0], -1, FORWARD, decode)
        for place, run in enumerate(order):
            self._run(role, step, run, final=last[run.stage, run.phase] == place)
        for stage in stages:
            for operation in self.weights[stage].tied_operations:
                self._add(role, step, stage, schedule.micro_batches - 1, "tied", operation)
        self._update(role, step, stages)

    def _fold(self, steps: int) -> dict[int, Mapping[str, FoldedPass]]:
        """Stages whose passes are laid out as one task each, where there would be many tasks."""
        alike = steps == 1 and self.job.strategy.schedule.micro_batches > 2 and not self.repeats
        retained = self.job.training.memory_model == "retained"
        if not alike or retained or self.num_tasks(steps) < FEWEST_FOLDED:
            return {}
        return fold_stages({n: tuple(p.phases.items()) for n, p in enumerate(self.programs)})

    def _run(self, role: int, step: int, run: StagePass, *, final: bool) -> None:
        weights = self.weights[run.stage]
        if run.stage in self.folded and run.micro < self.job.strategy.schedule.micro_batches - 1:
            passes = self.folded[run.stage].get(run.phase)
            for operation in (passes.operation, *passes.sends) if passes is not None else ():
                self._add(role, step, run.stage, run.micro, run.phase, operation)
            return
        arrivals = weights.arrivals[run.phase]
        leaving = self.leaving.get(run.stage, {}) if run.phase == FORWARD else {}
        for operation in arrivals.launched:
            number = self._add(role, step, run.stage, run.micro, run.phase, operation)
            last = arrivals.unit_ends.get(operation.key)
            if last is not None:
                # weights come a few units of layers ahead of their use, in whichever pass that is
                units = self.units.setdefault((role, operation.queue), [])
                from_host = operation.queue == Queue.FROM_HOST
                before = len(units) - (BUFFERS if from_host else 1 + self.job.runtime.prefetch)
                if before >= 0:
                    self.extra_after.setdefault(number, []).append(units[before])
                units.append((step, run.stage, run.micro, run.phase, last))
            if operation.key in leaving:
                # one begins when two units at most are still to leave, of whichever passes
                left = self.left.setdefault(role, [])
                if len(left) >= BUFFERS and (mark := left[-BUFFERS]) is not None:
                    self.extra_after.setdefault(number, []).append(mark)
                copy_key = leaving[operation.key]
                left.append(copy_key and (step, run.stage, run.micro, run.phase, copy_key))
            if run.phase == FORWARD and step and operation.kind == "forward":
                self._after_pulls(number, step, run.stage, operation.name)
        gradients = run.phase == (WEIGHT if self.view.weight_apart else BACKWARD)
        if gradients and (final or self.job.runtime.each_micro_batch):
            for operation in weights.reductions():
                self._add(role, step, run.stage, run.micro, "reduce", operation)

    def _after_pulls(self, number: int, step: int, stage: int, name: str) -> None:
        """The forward pass of a layer waits for the weights of the step before."""
        key = self.weights[stage].pulled_with.get(name)
        if key is not None:
            micro = self.job.strategy.schedule.micro_batches - 1
            self.extra_after.setdefault(number, []).append((step - 1, stage, micro, "reduce", key))

    def _update(self, role: int, step: int, stages: tuple[int, ...]) -> None:
        """The optimizer's update of all stages of a role, after all of their reductions."""
        micro = self.job.strategy.schedule.micro_batches - 1
        works = [self.weights[stage] for stage in stages]
        for stage, operation in update_operations(works):
            self._add(role, step, stage, micro, "update", operation)

    def _add(
        self, role: int, step: int, stage: int, micro: int, phase: str, operation: Operation
    ) -> int:
        number, mark = len(self.rows), (step, stage, micro, phase, operation.key)
        self.ids[mark] = number
        self.rows.append((role, step, stage, micro, operation))
        if self.job.runtime.waits_for_sends:
            if operation.key[0] in SENDS:
                self.sent.setdefault(role, []).append(mark)
            elif operation.queue == Queue.COMPUTE and role in self.sent:
                self.extra_after.setdefault(number, []).extend(self.sent.pop(role))
        return number

    def _id(self, step: int, micro: int, ref: Ref) -> int:
        """The task of an operation, or of the pass that it is folded into."""
        stage, phase, key = ref
        number = self.ids.get((step, stage, micro, phase, key))
        if number is None:
            number = self.ids[step, stage, micro, phase, fold_key(stage, phase)]
        return number

    def _task(self, number: int) -> Task:
        role, step, stage, micro, op = self.rows[number]
        extra = [self.ids[mark] for mark in self.extra_after.get(number, ())]
        after = (*[self._id(step, micro, ref) for ref in op.after], *extra)
        retained = self.job.training.memory_model == "retained"
        # tensors that no step frees are the same in every step
        tag = (0 if retained else step * STEP_TAG) + max(micro, 0)
        return Task(  # by place, since there are hundreds of thousands
            op.name,
            op.kind,
            role,
            int(op.queue),
            step,
            stage,
            micro,
            op.seconds,
            op.transfer,
            op.loads,
            after,
            op.num_bytes,
            op.key[2] if op.kind == "fused" else -1,
            tuple([((tag, *key), holder, size) for key, holder, size in op.makes]),
            () if retained else tuple([(tag, *key) for key in op.takes]),
            () if retained else tuple([(tag, *key) for key in op.uses]),
            op.scratch,
            op.buffer,
            op.inside,
        )

"""Simulate assignments of one formulation: what they have in common is worked out once."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Job,
    Queue,
    SimulatedStep,
    load_runtime,
    run_graph,
)
from costmodels.simulation.parts import Breakdown
from costmodels.simulation.pieces import Pieces
from costmodels.step.memory import PeakMemory
from costmodels.strategy.usual import single_stage
from planner.planning.space.costing import Costed, cost
from planner.planning.space.formulate import Formulation
from planner.simulation.run import (
    OVERLAP_FACTOR,
    PLAN_RUNTIME,
    computing_time,
    plan_runtime,
    waiting_time,
)

Choices = tuple[int, ...]


class SimulatedChoices(Struct, frozen=True, kw_only=True, eq=False):
    """An assignment as it was simulated under one size of gradient buckets.

    Parameters
    ----------
    choices
        Candidate of each layer.
    bucket_bytes
        Size of the buckets. [B]
    seconds
        The step. [s]
    peak_memory
        The most that a device holds. [B]
    received
        What a device receives. [B]
    """

    choices: Choices
    bucket_bytes: float
    seconds: float
    peak_memory: float
    received: float


class PlannedStep(Struct, frozen=True, kw_only=True, eq=False):
    """The step of an assignment in full, as a plan states it.

    Parameters
    ----------
    seconds
        The step. [s]
    waiting
        What of it is spent waiting for slower devices. [s]
    breakdown
        The rest by cause and by layer.
    gradients
        Of the all-reduce of each gradient bucket what falls to each of its layers, by bytes; and
        the exchange of shared weights. [s]
    memory
        Peak memory of a device.
    received
        What a device receives. [B]
    """

    seconds: float
    waiting: float
    breakdown: Breakdown
    gradients: Mapping[str, float]
    memory: PeakMemory
    received: float


class PlanSimulator:
    """Simulates assignments with the usual runtime of a plan.

    Parameters
    ----------
    formulation
        The network on the machine.
    """

    def __init__(self, formulation: Formulation) -> None:
        self.formulation = formulation
        self.trials: dict[tuple[Choices, float], SimulatedChoices] = {}
        self.runtime = load_runtime(PLAN_RUNTIME)
        assert self.runtime.outside_layers == 0.0, "a plan's parts would not add up to its step"
        self.compilers: dict[Choices, Compiler] = {}
        self.splits: dict[tuple[int, int], Distribution] = {}
        graph, machine = formulation.graph, formulation.machine
        costed = {}
        for layer in formulation.layers:
            space = formulation.spaces[layer.name]
            wants = tuple(graph.needs_input_gradient(e) for e in graph.producers[layer.name])
            costed[layer.signature, wants] = (space.candidates, space.costs)
        groups = tuple(group.name for group in formulation.cluster.groups)
        self.known = {(machine.topology.shape, groups): Pieces(graph, machine, costed)}

    def simulate(self, choices: Choices, bucket_bytes: float) -> SimulatedChoices:
        """The step of an assignment under a size of gradient buckets.

        Parameters
        ----------
        choices
            Candidate of each layer.
        bucket_bytes
            Size of the buckets. [B]
        """
        key = (choices, bucket_bytes)
        if key not in self.trials:
            step, waiting = self._run(choices, bucket_bytes)
            # as of stages, what is given back in every step counts
            back = max(step.lasting_short - step.peak.short, 0.0)
            self.trials[key] = SimulatedChoices(
                choices=choices,
                bucket_bytes=bucket_bytes,
                seconds=step.step_time + waiting,
                peak_memory=self._memory(choices, step).total + back,
                received=step.peak.received,
            )
        return self.trials[key]

    def planned_step(self, choices: Choices) -> PlannedStep:
        """The step of an assignment in full, under the options of the formulation.

        Parameters
        ----------
        choices
            Candidate of each layer.
        """
        step, waiting = self._run(choices, self.formulation.machine.training.bucket_bytes)
        return PlannedStep(
            seconds=step.step_time + waiting,
            waiting=waiting,
            breakdown=step.break_down(0),
            gradients=self._gradients(choices, step),
            memory=self._memory(choices, step),
            received=step.peak.received,
        )

    def _run(self, choices: Choices, bucket_bytes: float) -> tuple[SimulatedStep, float]:
        """The step of an assignment, and how long it waits for slower devices. [s]"""
        runtime = plan_runtime(self.runtime, bucket_bytes)
        compiler = self._compiler(choices).with_runtime(runtime)
        step = run_graph(compiler.compile(1), Behaviour(overlap_factor=OVERLAP_FACTOR))
        return step, waiting_time(computing_time(step), compiler.job.strategy.num_waiting)

    def _gradients(self, choices: Choices, step: SimulatedStep) -> dict[str, float]:
        """See `PlannedStep.gradients`."""
        work, times = self._compiler(choices).weights[0], step.task_times
        found = dict.fromkeys(work.pieces, 0.0)
        buckets = iter(work.buckets)
        for task, start, end in zip(times.graph.tasks, times.starts, times.ends, strict=True):
            if task.queue == Queue.GRADIENT and task.kind == "exchange":
                found[task.name] += end - start
            elif task.queue == Queue.GRADIENT:
                bucket = next(buckets)
                for name in bucket.layers:
                    part = work.pieces[name].gradient_bytes / bucket.num_bytes
                    found[name] += part * (end - start)
        return found

    def _memory(self, choices: Choices, step: SimulatedStep) -> PeakMemory:
        """What a device holds at most: as simulated, unless a formula is asked for."""
        if self.formulation.machine.training.memory_model == "paradl":
            return cost(self.formulation, choices).memory
        return step.peak.memory

    def with_bucket(self, bucket_bytes: float) -> Formulation:
        """The formulation under a size of gradient buckets."""
        training = self.formulation.machine.training
        if training.bucket_bytes == bucket_bytes:
            return self.formulation
        return self.formulation.with_training(replace(training, bucket_bytes=bucket_bytes))

    def cost(self, trial: SimulatedChoices) -> Costed:
        """A trial on the timeline, under its own buckets."""
        return cost(self.with_bucket(trial.bucket_bytes), trial.choices)

    def fits(self, trial: SimulatedChoices) -> bool:
        """Whether its peak is within the memory of a device."""
        return trial.peak_memory <= self.formulation.cluster.device.memory

    def _compiler(self, choices: Choices) -> Compiler:
        """What does not depend on buckets, of the assignment simulated last."""
        if choices not in self.compilers:
            formulation, machine = self.formulation, self.formulation.machine
            shape = machine.topology.shape
            job = Job(
                graph=formulation.graph,
                strategy=single_stage(self._distributions(choices), shape),
                cluster=formulation.cluster,
                shape=shape,
                compute=machine.compute,
                training=machine.training,
                runtime=plan_runtime(self.runtime, machine.training.bucket_bytes),
            )
            # others are rarely simulated again, and compilers are large
            self.compilers = {choices: Compiler(job, self.known)}
        return self.compilers[choices]

    def _distributions(self, choices: Choices) -> dict[str, Distribution]:
        """The distribution that each layer gets."""
        found = {}
        for layer, choice in zip(self.formulation.layers, choices, strict=True):
            space = self.formulation.spaces[layer.name]
            key = (id(space), choice)
            if key not in self.splits:
                self.splits[key] = space.candidates.distribution(choice)
            found[layer.name] = self.splits[key]
        return found

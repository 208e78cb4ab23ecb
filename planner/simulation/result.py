"""The result of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodels.input_pipeline import InputTime
from costmodels.notes import Note
from costmodels.simulation import Runtime, SimulatedStep
from costmodels.simulation.measure import RoleUse
from costmodels.step.utilisation import model_flops, model_flops_utilisation
from planner.notes import words
from planner.request.placement import PlacedNetwork

if TYPE_CHECKING:
    from costmodels.closed_form import ClosedForm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """A simulated step of a network.

    Parameters
    ----------
    subject
        What was simulated.
    model
        How: one of `planner.request.inputs.simulating.step_models`.
    runtime
        The framework's runtime.
    step_time
        The step, including the loading of its samples. [s]
    computed
        The step without loading. [s]
    waiting
        The part of it in which all other devices wait for the slowest one. [s]
    outside
        The part of it that the runtime spends outside of layers. [s]
    simulated
        The simulation, None with a closed form.
    closed_form
        The closed form, None with a simulation.
    input
        Loading of the samples, None where it costs nothing.
    remarks
        On approximations and what the step rests on.
    """

    subject: PlacedNetwork
    model: str
    runtime: Runtime
    step_time: float
    computed: float
    waiting: float
    outside: float
    simulated: SimulatedStep | None
    closed_form: ClosedForm | None
    input: InputTime | None
    remarks: tuple[Note, ...]

    def __repr__(self) -> str:
        # all of it would fill screens
        setting, peak = self.subject.setting, self.peak_memory
        held = "" if peak is None else f", peak_memory_bytes={peak:.0f}"
        return (
            f"Simulation({setting.model.name!r}, gpus={setting.gpus}, "
            f"cluster={setting.cluster.name!r}, strategy={self.subject.name!r}, "
            f"step_time_s={self.step_time:.6g}{held})"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was filled in, and the remarks, a sentence each."""
        return (*self.subject.setting.defaults, *map(words, self.remarks))

    @property
    def throughput(self) -> float:
        """Samples in a second. [samples/s]"""
        return self.subject.setting.batch / self.step_time

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, from 0 to 1."""
        setting = self.subject.setting
        peak = setting.cluster.mean_peak_flops(setting.machine.training.precision)
        flops = model_flops(setting.graph)
        return model_flops_utilisation(flops, self.step_time, setting.gpus, peak)

    @property
    def peak_memory(self) -> float | None:
        """The most that any device holds, None with a closed form. [B]"""
        return None if self.simulated is None else self.simulated.peak.memory.total

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the memory of a device, None with a closed form."""
        return None if self.simulated is None else self.simulated.peak.short <= 0.0

    @property
    def capacity(self) -> float:
        """The memory of the devices that are the fullest. [B]"""
        if self.simulated is None:
            return float(self.subject.setting.cluster.device.memory)
        return self.simulated.peak.capacity

    def summary(self) -> dict[str, object]:
        """The figures that a script reads, under stable keys with their units."""
        setting, strategy = self.subject.setting, self.subject.strategy
        plan = self.subject.plan
        result: dict[str, object] = {
            "model": setting.model.name,
            "cluster": setting.cluster.name,
            "gpus": setting.gpus,
            "global_batch_size": setting.batch,
            "precision": setting.machine.training.precision,
            "strategy": self.subject.name,
            "stages": len(strategy.stages),
            "schedule": strategy.schedule.kind,
            "micro_batches": strategy.schedule.micro_batches,
            "offload": list(strategy.offload),
            "runtime": self.runtime.name,
            "step_model": self.model,
            "step_time_s": self.step_time,
            "step_time_without_input_s": self.computed,
            "waiting_for_slowest_s": self.waiting,
            "outside_layers_s": self.outside,
            "throughput_samples_per_s": self.throughput,
            "mfu": self.mfu,
            "model_flops": model_flops(setting.graph),
            "peak_memory_bytes": self.peak_memory,
            "memory_capacity_bytes": self.capacity,
            "fits": self.fits,
            "planned_step_time_s": None if plan is None else plan.step_time,
            "notes": list(self.notes),
        }
        if self.input is not None:
            result["input_s"] = self.input.seconds
            result["input_bottleneck"] = self.input.bottleneck
        if self.closed_form is not None:
            form = self.closed_form
            result["breakdown_s"] = {
                "forward": form.forward,
                "backward": form.backward,
                "update": form.update,
                **form.communication,
            }
        if self.simulated is not None:
            result["critical_path_s"] = self.simulated.critical_path
            result["roles"] = [_role_figures(role) for role in self.simulated.roles]
        return result


def _role_figures(role: RoleUse) -> dict[str, object]:
    """The figures of the devices that do the same, under stable keys with their units."""
    return {
        "name": role.name,
        "first_device": role.first_device,
        "devices": role.num_devices,
        "busy_s": dict(role.busy),
        "exposed_communication_s": role.exposed,
        "idle_s": role.idle,
        "received_bytes": role.received,
        "host_memory_bytes": role.host_memory,
        "peak_memory_bytes": role.memory.total,
        "memory_bytes": dict(role.memory.holders),
        "peak_moment": role.memory.moment,
        "peak_time_s": role.memory_time,
        "largest_tensors": [
            {
                "name": tensor.name,
                "micro_batch": tensor.micro,
                "holder": tensor.holder,
                "bytes": tensor.size,
            }
            for tensor in role.held
        ],
    }

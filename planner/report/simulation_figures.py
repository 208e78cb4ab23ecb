"""The figures of a simulated step in words: its summary, what is short, what its input needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodels.notes import Note
from costmodels.units import format_seconds
from planner.report import figures

if TYPE_CHECKING:
    from costmodels.simulation.measure import RoleUse, SimulatedStep
    from planner.simulation.result import Simulation


def simulation_line(simulation: Simulation) -> str:
    """The simulated step in one line."""
    setting = simulation.subject.setting
    word = figures.sample_word(setting.model.input_shape)
    parts = [
        f"{setting.model.name} on {setting.gpus} x {setting.cluster.device.name} of "
        f"{setting.cluster.name}",
        f"{format_seconds(simulation.step_time)} a step",
        f"{figures.count(simulation.throughput)} {word}/s",
        figures.mfu_words(simulation.mfu),
    ]
    if simulation.peak_memory is not None:
        capacity = figures.size(simulation.capacity)
        parts.append(f"{figures.size(simulation.peak_memory)} of {capacity} a GPU")
    runtime = f", {simulation.runtime.name}" if simulation.simulated is not None else ""
    parts.append(f"{simulation.subject.name}{runtime}, {simulation.model}")
    parts += figures.chosen_batch(setting.batch, setting.gpus, setting.defaults)
    if input_bound(simulation):
        parts.append("held up by its input")
    if simulation.fits is False:
        parts.append("OUT OF MEMORY")
    return ", ".join(parts)


def main_roles(simulated: SimulatedStep, most: int) -> list[RoleUse]:
    """All roles or, of many: the first, the last, and those that compute and hold the most."""
    roles = simulated.roles
    if len(roles) <= most:
        return list(roles)
    chosen = (roles[0], roles[-1], simulated.slowest, simulated.peak)
    return [role for role in roles if any(role is one for one in chosen)]


def out_of_memory(simulation: Simulation) -> str | None:
    """What is short, when, and what holds most then; None where all fits or nothing is known."""
    simulated = simulation.simulated
    if simulated is None or simulation.fits:
        return None
    role, short = simulated.peak, [r for r in simulated.roles if r.short > 0.0]
    ranked = sorted(role.memory.holders.items(), key=lambda item: (-item[1], item[0]))
    holders = ", ".join(f"{figures.size(size)} {name}" for name, size in ranked[:3] if size)
    of_all = "" if len(simulated.roles) == 1 else f" ({len(short)} of {len(simulated.roles)} roles)"
    return (
        f"OUT OF MEMORY: {role.name} needs {figures.size(role.memory.total)} of "
        f"{figures.size(role.capacity)} a GPU, {figures.size(role.short)} short"
        f"{of_all}, {moment(role)}; most is {holders}"
    )


def input_advice(simulation: Simulation) -> Note | None:
    """Whether the input holds the step up and what would help; None where it costs nothing."""
    return simulation.input.advice(simulation.computed) if simulation.input else None


def plan_sentence(simulation: Simulation) -> str | None:
    """The step time that the plan states, where something makes it another one here."""
    plan = simulation.subject.plan
    if plan is None:
        return None
    part = simulation.computed / plan.step_time_s - 1.0
    if abs(part) < 5e-4:
        return None
    text = f"{format_seconds(plan.step_time_s)}, here {figures.percent(abs(part))} "
    text += "longer" if part > 0 else "shorter"
    setting = simulation.subject.setting
    others = (
        plan.global_batch_size != setting.batch
        or plan.training != setting.machine.training
        or plan.cluster != setting.cluster.name
        or plan.runtime != simulation.runtime.name
    )
    return f"{text} (under other options than the plan's)" if others else text


def input_bound(simulation: Simulation) -> bool:
    """Whether the step waits for its input."""
    loading = simulation.input
    return loading is not None and loading.is_bottleneck(simulation.computed)


def moment(role: RoleUse) -> str:
    """When a role holds the most."""
    if role.memory.moment == "start":
        return "from the start of the step on"
    return f"at {role.memory.moment} ({figures.seconds(role.memory_time)} in)"

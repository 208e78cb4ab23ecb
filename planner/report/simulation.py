"""A simulated step on the terminal: its time, what every role does in it, memory, input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from costmodels.units import format_bytes, format_items, format_seconds
from planner.notes import words
from planner.report import figures
from planner.report.console import (
    show_below,
    show_facts,
    show_list,
    show_section,
    show_sentence,
    terminal_table,
)
from planner.report.simulation_figures import (
    input_advice,
    input_bound,
    main_roles,
    out_of_memory,
    plan_sentence,
)

if TYPE_CHECKING:
    from costmodels.simulation.measure import RoleUse, SimulatedStep
    from costmodels.strategy import Strategy
    from planner.simulation.result import Simulation

# More roles than this are listed as the first, the last and the worst ones only.
MAX_ROLES = 8
# Roles whose holders stand side by side.
MAX_COLUMNS = 4
# Largest tensors named of each role.
NUM_TENSORS = 3
QUEUES = {
    "compute": "compute",
    "feature": "features",
    "gradient": "gradients",
    "parameter": "weights",
}
HOST_QUEUES = {
    "to_host": "copies to the host",
    "from_host": "copies from the host",
    "host": "updates on the host",
}


def show_simulation(
    simulation: Simulation,
    console: Console,
    *,
    remedy: str | None = None,
    everything: bool = False,
) -> None:
    """Write all sections of a simulated step.

    Parameters
    ----------
    simulation
        The step.
    console
        Where to.
    remedy
        What would make it fit, None where it does, or nothing is known.
    everything
        Whether to write also every role, and what is zero.
    """
    _show_subject(simulation, console)
    if remedy is not None:
        show_sentence(console, remedy, "bold")
    if simulation.simulated is not None:
        most = len(simulation.simulated.roles) if everything else MAX_ROLES
        _show_times(simulation.simulated, console, most)
        _show_role_memory(simulation, simulation.simulated, console, most)
    if simulation.closed_form is not None:
        _show_causes(simulation, console, everything)
    advice = input_advice(simulation)
    if advice:
        show_section(console, "Input")
        show_sentence(console, words(advice))
    defaults = simulation.subject.setting.defaults
    rest = [words(remark) for remark in simulation.remarks if remark != advice]
    for title, notes in (
        ("Approximations and notes", rest),
        ("Chosen, since not given", defaults),
    ):
        if notes:
            show_section(console, title)
            show_list(console, notes)


def _show_left_out(console: Console, shown: int, simulated: SimulatedStep) -> None:
    rest = len(simulated.roles) - shown
    if rest > 0:
        text = f"{rest} roles are left out: these are the first, the last and those that compute "
        show_sentence(console, f"{text}and hold the most; -v lists all", "dim")


def _pipeline_words(strategy: Strategy) -> str:
    """Stages and their schedule, where it matters: one stage may do all forward passes first."""
    stages, schedule = len(strategy.stages), strategy.schedule
    ordered = stages > 1 or (schedule.micro_batches > 1 and schedule.kind != "1f1b")
    return f", {format_items(stages, 'stage')} by {schedule.kind}" if ordered else ""


def _show_subject(simulation: Simulation, console: Console) -> None:
    subject = simulation.subject
    setting, schedule = subject.setting, subject.strategy.schedule
    device = f"{setting.gpus} x {setting.cluster.device.name} of {setting.cluster.name}"
    console.print(Text(f"{setting.model.name} on {device}, simulated", style="bold"))
    training = setting.machine.training
    shape = " x ".join(str(extent) for extent in setting.model.input_shape.values())
    show_sentence(
        console,
        f"global batch {setting.batch:,} of {shape}, {training.precision}, {training.optimizer}",
    )
    pipeline = _pipeline_words(subject.strategy)
    parts, shares = schedule.micro_batches, subject.strategy.shares
    if shares:
        pipeline += f", samples {figures.shares_words(shares)}"
    elif parts > 1:
        pipeline += f", {parts} micro-batches"
    away = subject.strategy.offload
    waits = f", {_listed(away)} in the memory of the host" if away else ""
    show_sentence(console, f"strategy {subject.name}{pipeline}{waits}")
    runtime = f"runtime {simulation.runtime.name} ({simulation.runtime.title}), "
    runtime = runtime if simulation.simulated is not None else ""
    show_sentence(console, f"{runtime}step model {simulation.model}")
    console.print()
    show_facts(console, _headline_figures(simulation))
    shortage = out_of_memory(simulation)
    if shortage is not None:
        console.print()
        show_sentence(console, shortage, "bold red")


def _listed(names: Sequence[str]) -> str:
    """Such as "activations, weights and optimizer"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _headline_figures(simulation: Simulation) -> list[tuple[str, str, str]]:
    """The figures that matter most: label, text, style."""
    setting, simulated = simulation.subject.setting, simulation.simulated
    shape = setting.model.input_shape
    colour = "bold red" if simulation.fits is False else "bold green"
    held_up = input_bound(simulation)
    time = format_seconds(simulation.step_time)
    if held_up:
        time += f" (input; {format_seconds(simulation.computed)} without it)"
    rows = [
        ("Step time", time, colour),
        (
            "Throughput",
            figures.rate_words(simulation.throughput, setting.gpus, shape, simulation.mfu),
            "",
        ),
    ]
    if simulated is not None:
        role, capacity = simulated.peak, simulation.capacity
        share = figures.percent(role.memory.total / capacity)
        peak = f"{figures.size(role.memory.total)} of {figures.size(capacity)} a GPU ({share})"
        where = f" in {role.name}" if len(simulated.roles) > 1 else ""
        fits = "fits" if simulation.fits else "does not fit"
        rows.append(("Peak memory", f"{peak}{where}: {fits}", "" if simulation.fits else colour))
        away = max(role.host_memory for role in simulated.roles)
        if away:
            rows.append(("In the host", f"{figures.size(away)} for each GPU, at most", ""))
        path = simulated.critical_path
        ratio = simulation.computed / path if path > 0.0 else 1.0
        rows.append(
            (
                "Critical path",
                f"{figures.seconds(path)}; the step takes {ratio:.2f} times as long",
                "",
            )
        )
    if simulation.waiting > 0.0:
        waits = figures.seconds(simulation.waiting)
        rows.append(("Waits", f"{waits} of it, for the slowest of the GPUs (--variation)", ""))
    if simulation.outside > 0.0:
        spent = figures.seconds(simulation.outside)
        rows.append(("Outside", f"{spent} of it, which the runtime spends outside of layers", ""))
    planned = plan_sentence(simulation)
    if planned is not None:
        rows.append(("Planned", planned, ""))
    return rows


def _show_times(simulated: SimulatedStep, console: Console, most: int) -> None:
    show_section(console, "Where the time of a step goes")
    roles = main_roles(simulated, most)
    used = [q for q in QUEUES if any(role.busy[q] > 0.0 for role in simulated.roles)]
    names = [f">{QUEUES[q]}" for q in used]
    table = terminal_table(["~role", "GPUs", *names, ">exposed", ">idle"])
    for role in roles:
        table.add_row(
            role.name,
            _gpus(role),
            *(figures.seconds(role.busy[q]) for q in used),
            figures.seconds(role.exposed),
            figures.seconds(role.idle),
        )
    if any(role.busy[q] > 0.0 for q in HOST_QUEUES for role in simulated.roles):
        show_below(console, table)
        console.print()
        table = terminal_table(["~role", *(f">{name}" for name in HOST_QUEUES.values())])
        for role in roles:
            table.add_row(role.name, *(figures.seconds(role.busy[q]) for q in HOST_QUEUES))
    show_below(console, table)
    _show_left_out(console, len(roles), simulated)
    role, step = simulated.slowest, simulated.step_time
    if step > 0.0:
        working = max(step - role.exposed - role.idle, 0.0)
        show_sentence(
            console,
            f"{role.name}: computes {figures.percent(working / step)} of the step, waits "
            f"{figures.percent(role.exposed / step)} for communication, and "
            f"{figures.percent(role.idle / step)} for other roles or background threads",
        )
    show_sentence(
        console, "communication is exposed where nothing is computed meanwhile, else hidden", "dim"
    )


def _show_role_memory(
    simulation: Simulation, simulated: SimulatedStep, console: Console, most: int
) -> None:
    show_section(console, "Peak memory of a GPU")
    roles = main_roles(simulated, most)
    table = terminal_table(["~role", ">peak", ">of capacity", ">after", "~moment"])
    for role in roles:
        table.add_row(
            role.name,
            figures.size(role.memory.total),
            figures.percent(role.memory.total / role.capacity),
            figures.seconds(role.memory_time),
            role.memory.moment,
            style="bold red" if role.short > 0.0 else "",
        )
    show_below(console, table)
    few = main_roles(simulated, MAX_COLUMNS)
    _show_left_out(console, len(roles), simulated)
    console.print()
    table = terminal_table(["held then by", *(f">{_short(role.name)}" for role in few)])
    for holder in few[0].memory.holders:
        sizes = [role.memory.holders.get(holder, 0.0) for role in few]
        if any(sizes):
            table.add_row(holder, *(figures.size(size) for size in sizes))
    table.add_row("peak", *(figures.size(role.memory.total) for role in few), style="bold")
    show_below(console, table)
    _show_tensors(few, console)


def _gpus(role: RoleUse) -> str:
    first, last = role.first_device, role.first_device + role.num_devices - 1
    return str(first) if first == last else f"{first}-{last}"


def _short(name: str) -> str:
    """The name of a role with many stages, so that four stand side by side."""
    return name if len(name) <= 12 else f"{name[:10]}.."


def _show_tensors(roles: Sequence[RoleUse], console: Console) -> None:
    rows = [(role, tensor) for role in roles for tensor in role.held[:NUM_TENSORS]]
    if not rows:
        return
    console.print()
    table = terminal_table(["~largest then in", ">size", "holder", "~tensor of", ">micro-batch"])
    before = None
    for role, tensor in rows:
        table.add_row(
            "" if role is before else role.name,
            format_bytes(tensor.size),
            tensor.holder,
            tensor.name,
            str(tensor.micro),
        )
        before = role
    show_below(console, table)


def _show_causes(simulation: Simulation, console: Console, everything: bool) -> None:
    """A closed form by cause: it hides nothing and knows no memory."""
    form = simulation.closed_form
    assert form is not None, "only closed forms come here"
    show_section(console, f"What a step is made of, by the closed form for '{form.strategy}'")
    causes: Mapping[str, float] = {
        "forward": form.forward,
        "backward": form.backward,
        "weight update": form.update,
        **{f"communication of {cause}s": time for cause, time in form.communication.items()},
    }
    table = terminal_table(["", ">time", ">share"])
    for label, time in causes.items():
        if time > 0.0 or everything:
            table.add_row(label, figures.seconds(time), figures.percent(time / form.total))
    table.add_row("step", figures.seconds(form.total), "100.0 %", style="bold")
    show_below(console, table)
    show_sentence(
        console, f"{simulation.model} says nothing of memory, schedules and runtimes", "dim"
    )

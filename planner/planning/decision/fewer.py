"""Plans of fewer devices on all of them: the others repeat the work, so that more never cost time.

The space of a question holds such assignments, yet a search sees a part of it. Where they may be
the best, the question is asked for fewer devices, and its answer is simulated on all.
"""

from __future__ import annotations

from dataclasses import replace

from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from planner.plan import Finalist
from planner.planning.decision.decide import ORDER_NOTES, Decision
from planner.planning.decision.finals import EQUAL
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.prepare import UsualStrategies, formulate_given
from planner.request.setting import Setting


def fewer_devices(setting: Setting) -> Setting | None:
    """The same question for as many devices as a part of each level has, the most there are below.

    None where the machine has no such part.
    """
    whole = setting.machine.topology.shape
    for ways in range(2, setting.gpus + 1):
        if setting.gpus % ways:
            continue
        gpus = setting.gpus // ways
        try:
            shape = setting.cluster.shape(gpus)
        except InputError:
            continue
        if all(size % part == 0 for size, part in zip(whole, shape, strict=True)):
            topology = Topology.of(setting.cluster, shape)
            return replace(setting, gpus=gpus, machine=replace(setting.machine, topology=topology))
    return None


def better_of(
    setting: Setting, decision: Decision, smaller: Decision, usual: UsualStrategies
) -> Decision:
    """The decision on a question, or that on fewer devices where it is faster on all of them.

    Parameters
    ----------
    setting
        The question.
    decision
        The decision on it.
    smaller
        The decision on the same question for fewer devices.
    usual
        The usual strategies of the question.
    """
    training = smaller.formulation.machine.training
    shape = setting.machine.topology.shape
    repeated = {
        name: Distribution(degrees=split.degrees, shape=shape)
        for name, split in smaller.formulation.distributions(smaller.best.choices).items()
    }
    asked = replace(setting, machine=replace(setting.machine, training=training))
    formulation = formulate_given(asked, repeated, usual)
    simulator = PlanSimulator(formulation)
    trial = simulator.simulate(formulation.choices(repeated), training.bucket_bytes)
    faster = trial.seconds < decision.seconds * (1.0 - EQUAL / 2)
    decision = replace(decision, stopped_by=decision.stopped_by or smaller.stopped_by)
    if not (faster and simulator.fits(trial)):
        return decision
    mine = Finalist(step_time_s=trial.seconds, peak_memory_bytes=trial.peak_memory, chosen=True)
    others = [replace(row, chosen=False) for row in decision.finalists]
    rows = sorted([*others, mine], key=lambda row: row.step_time_s)
    return replace(
        decision,
        formulation=formulation,
        best=simulator.cost(trial),
        seconds=trial.seconds,
        finalists=tuple(rows),
        notes=tuple(note for note in decision.notes if note.kind not in ORDER_NOTES),
    )

"""Plans of fewer devices on all of them: the others repeat the work, so that more never cost time.

The space of a question holds such assignments, yet a search sees a part of it. Unless it is proven
that none is better, the question is asked for fewer devices, and its answer simulated on all. So an
answer is never slower than that for any part of the devices, whatever the searches find.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.step.training import Training
from planner.plan import Finalist
from planner.planning.bounds.left_out import LayerComputation
from planner.planning.decision.choice import EQUAL
from planner.planning.decision.decide import ORDER_NOTES, Decision
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.prepare import formulate_given, usual_strategies
from planner.request.setting import Setting


class SmallerAnswer(Struct, frozen=True, kw_only=True, eq=False):
    """What the question for more devices needs of an answer.

    Parameters
    ----------
    distributions, training
        How each layer is split, and the options of the step.
    promised, stopped_by
        As of its decision. [s]
    """

    distributions: Mapping[str, Distribution]
    training: Training
    promised: float
    stopped_by: str

    @classmethod
    def of(cls, decision: Decision) -> SmallerAnswer:
        """That of a decision."""
        return cls(
            distributions=decision.formulation.distributions(decision.best.choices),
            training=decision.formulation.machine.training,
            promised=decision.promised,
            stopped_by=decision.stopped_by,
        )


def parts_of(setting: Setting) -> Iterator[Setting]:
    """The same question for as many devices as a part of each level has, the most there are first.

    None of them is a part of another: 24 devices in six hosts have 12 and 8, and no 4.
    """
    whole = setting.machine.topology.shape
    found: list[int] = []
    for ways in range(2, setting.gpus + 1):
        if setting.gpus % ways or any(ways % fewer == 0 for fewer in found):
            continue
        gpus = setting.gpus // ways
        try:
            shape = setting.cluster.shape(gpus)
        except InputError:
            continue
        if all(size % part == 0 for size, part in zip(whole, shape, strict=True)):
            found.append(ways)
            yield setting.on(setting.cluster, gpus)


def fewer_devices(setting: Setting) -> Setting | None:
    """The first of `parts_of` a question, None where its machine has none."""
    return next(parts_of(setting), None)


def least_computation(setting: Setting) -> float:
    """What no step takes less than, by computation alone. [s]"""
    known: dict[tuple[object, ...], float] = {}
    total = 0.0
    for layer in setting.graph.compute_layers:
        wanted = setting.graph.input_gradients(layer.name)
        key = (layer.signature, wanted)
        if key not in known:
            times = LayerComputation.of(layer, setting.machine, wanted).times
            known[key] = float((times.once + times.backward).min())
        total += known[key]
    return total


def better_of(setting: Setting, decision: Decision, smaller: SmallerAnswer) -> Decision:
    """The decision on a question, or the answer for fewer devices where that promises less.

    Parameters
    ----------
    setting
        The question.
    decision
        The decision on it, by plans for all devices.
    smaller
        The answer to the same question for fewer devices.
    """
    decision = replace(
        decision,
        stopped_by=decision.stopped_by or smaller.stopped_by,
        promised=min(decision.promised, smaller.promised),
    )
    if decision.seconds <= smaller.promised * (1.0 + EQUAL / 2):
        return decision
    shape = setting.machine.topology.shape
    repeated = {
        name: Distribution(degrees=split.degrees, shape=shape)
        for name, split in smaller.distributions.items()
    }
    launches = setting.machine.training.forward_launches  # of all devices
    training = replace(smaller.training, forward_launches=launches)
    machine = replace(setting.machine, training=training)
    formulation = formulate_given(
        replace(setting, machine=machine), repeated, usual_strategies(setting)
    )
    simulator = PlanSimulator(formulation)
    trial = simulator.simulate(formulation.choices(repeated), smaller.training.bucket_bytes)
    if not (simulator.fits(trial) and trial.seconds < decision.seconds):
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

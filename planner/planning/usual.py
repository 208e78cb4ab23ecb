"""The usual ways to train with several stages or micro-batches, and their steps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from msgspec import Struct

from costmodels.errors import InputError
from costmodels.simulation import Runtime, load_runtime
from costmodels.simulation.shared_pieces import PiecesByBatch
from costmodels.strategy.blocks import is_transformer
from costmodels.units import format_bytes
from planner.notes import NO_TIME
from planner.plan import Baseline
from planner.planning.staged import StagedStep, simulate_stages, tried
from planner.request.by_degrees import replicas, with_default_micro_batches
from planner.request.named_degrees import NAMED, usual_runtime
from planner.request.parts import Degrees
from planner.request.placement import by_name
from planner.request.setting import DEFAULT_RUNTIME, Setting
from search.problem.deadline import Deadline


def usual_degrees(
    setting: Setting, stages_of_zero: Sequence[int] = (0, 1, 2, 3)
) -> dict[str, Degrees]:
    """The usual ways to train with several stages or micro-batches, the last by Megatron-LM.

    They are called as `planner evaluate --strategy` takes them. How many samples of a replica each
    takes at a time is left to `usual_trials`.

    Parameters
    ----------
    setting
        The question.
    stages_of_zero
        Those that the runtime has; ways with another one are left out.
    """
    host = math.prod(setting.machine.topology.shape[: setting.cluster.host_index + 1])
    attends = is_transformer(setting.graph)
    megatron = Degrees(
        tp=host,
        sequence_parallel=attends and host > 1,
        recompute="selective" if attends else "none",
        zero=1 if 1 in stages_of_zero else stages_of_zero[-1],
    )
    usual = {
        "data": Degrees(),
        **{name: degrees for name, degrees in NAMED.items() if name != "megatron"},
        **named("megatron", megatron),
    }
    return {name: one for name, one in usual.items() if (one.sharding or 0) in stages_of_zero}


def named(name: str, degrees: Degrees) -> dict[str, Degrees]:
    """Degrees by what they are called, such as "megatron:tp=8,zero=1".

    Parameters
    ----------
    name
        A name of `planner.request.named_degrees.NAMED`.
    degrees
        What it stands for, and what follows it.
    """
    plain = NAMED[name]
    said = []
    for one in fields(Degrees):
        value = getattr(degrees, one.name)
        if value != getattr(plain, one.name):
            said.append(one.name if value is True else f"{one.name}={value}")
    return {f"{name}:{','.join(said)}" if said else name: degrees}


class UsualTrial(Struct, frozen=True, kw_only=True, eq=False):
    """A usual way to train, simulated on the inputs of a question.

    Parameters
    ----------
    name
        What it is called.
    degrees
        What it stands for, with as many samples of a replica at a time as it was simulated with.
    step
        Its step, None where it cannot run or there was no time.
    reason
        Why there is none.
    costed
        Whether there was time to find out.
    """

    name: str
    degrees: Degrees
    step: StagedStep | None
    reason: str
    costed: bool

    @property
    def baseline(self) -> Baseline:
        """What a plan says of it."""
        if self.step is None:
            return Baseline(
                name=self.name,
                step_time_s=None,
                peak_memory_bytes=None,
                fits=False,
                reason=self.reason,
                costed=self.costed,
            )
        short = self.step.short
        return Baseline(
            name=self.name,
            step_time_s=self.step.seconds,
            peak_memory_bytes=self.step.peak_memory,
            fits=short <= 0,
            reason=f"{format_bytes(short)} over the memory" if short > 0 else "",
        )


def _is_positive(short: float) -> bool:
    return short > 0.0


def usual_trials(
    setting: Setting,
    runtime: Runtime,
    deadline: Deadline,
    usual: Mapping[str, Degrees] | None = None,
    *,
    under_one: bool = False,
    known: PiecesByBatch | None = None,
) -> tuple[UsualTrial, ...]:
    """The usual ways to train on the same inputs.

    Each takes as many samples of a replica at a time as `planner evaluate` chooses; where that does
    not fit, all but plain data parallelism take half as many until they do.

    Parameters
    ----------
    setting, runtime
        The question, and under what it is simulated.
    deadline
        After which no other is simulated, nor any that would end after it if it took as long as
        the longest so far.
    usual
        What they are; those of `usual_degrees` by default.
    under_one
        Whether all of them are, instead of each under its own framework's runtime.
    known
        As of `tried`.
    """
    rows, longest = [], 0.0
    known = {} if known is None else known
    for name, degrees in (usual_degrees(setting) if usual is None else usual).items():
        step, reason, costed = None, NO_TIME, False
        if deadline.remaining > longest:
            began = time.monotonic()
            other = usual_runtime(name, degrees)
            under = runtime if other is None or under_one else load_runtime(other)
            _, degrees = with_default_micro_batches(setting, degrees)
            share, costed = setting.batch // replicas(degrees, setting.gpus), True
            while True:
                # what takes fewer samples where it does not fit is not simulated to tell that
                size = (degrees.micro_batch_size or share) // 2
                too_much = _is_positive if degrees.asked_for and size else None
                step, reason = tried(setting, degrees, under, known, None, too_much)
                if reason or not too_much or (step is not None and step.fits) or deadline.passed:
                    break
                half = next(number for number in range(size, 0, -1) if share % number == 0)
                degrees = replace(degrees, micro_batch_size=half)
            if step is None and not reason:
                reason, costed = NO_TIME, False
            elif step is None and (name == "data" or under.shard):
                step, why = _with_unequal_shares(setting, under)
                reason = why if name == "data" else reason
            if degrees.asked_for:
                (name,) = named(name.partition(":")[0], degrees)
            longest = max(longest, time.monotonic() - began)
        rows.append(UsualTrial(name=name, degrees=degrees, step=step, reason=reason, costed=costed))
    return tuple(rows)


def _with_unequal_shares(setting: Setting, runtime: Runtime) -> tuple[StagedStep | None, str]:
    """Replicas that do not divide the batch, cut as the runtime does by itself; as of `tried`."""
    under = setting if runtime.name == DEFAULT_RUNTIME else setting.under(runtime)
    try:
        return simulate_stages(by_name(under, "data"), runtime), ""
    except InputError as error:
        return None, str(error)

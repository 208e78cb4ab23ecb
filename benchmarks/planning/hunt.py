"""Random questions that look for faults of plans: what is worse with more, and what is beaten.

Each seed draws a question: a transformer (small, or built in) or a convolutional network, a
machine, numbers of GPUs and samples, a runtime, what is kept and forbidden. It is asked again with
more memory, bandwidth and GPUs, and with less kept and forbidden: none of these may be slower, but
by what a simpler plan is worth. No usual strategy that fits may be faster, nor any of some ways to
train that are drawn, and no bound may be above what is found otherwise. The same question has the
same plan, and simulating that takes as long.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import planner
from benchmarks.planning.drawn import IMAGES, Drawn, drawn, wider
from benchmarks.planning.joint import plan_words
from benchmarks.planning.monotonic import EQUAL
from costmodels.cluster import load_cluster
from costmodels.errors import InputError
from planner.errors import InfeasibleError
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.requests import wishes_of
from planner.joint.runtimes import choice_runtime, searched_runtime, stages_of_zero
from planner.joint.ways_inside import insides
from planner.joint.weights import LeastWeights
from planner.plan import Plan
from planner.planning.decision.finals import SIMPLER_WITHIN
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

# Of what the plan without a limit needs beside what is reserved, so much may be used.
LIMITS = (0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
# Ways to train that are drawn and simulated beside a plan. [items]
DRAWN = 16


@dataclass(slots=True)
class Hunt:
    """Questions from seeds, and what is wrong with their answers.

    Parameters
    ----------
    folder
        Where the config files of small networks are written.
    faults
        What is wrong, a line each.
    questions
        Drawn so far. [items]
    """

    folder: Path
    faults: list[str] = field(default_factory=list)
    questions: int = 0

    def seed(self, seed: int) -> None:
        """Ask the questions of one seed."""
        rng = random.Random(seed)
        base = drawn(rng, seed, self.folder)
        plan = self.ask(base)
        if plan is None:
            return
        device = load_cluster(base.cluster).device
        reserved = device.reserved_memory
        shares = sorted(rng.sample(LIMITS, 2))
        limits = [reserved + share * (plan.peak_memory - reserved) for share in shares]
        tight = [(one, self.ask(one)) for one in (replace(base, memory=m) for m in limits)]
        for (less, found), (more, other) in zip(tight, [*tight[1:], (base, plan)], strict=True):
            self.compare("memory", less, found, more, other)
        middle, middle_plan = rng.choice([*tight, (base, plan)])
        for name, more in (
            ("host", replace(middle, host=2.0)),
            ("network", replace(middle, network=2.0)),
            ("gpus", replace(middle, gpus=2 * base.gpus)),
            *(("wider", one) for one in wider(middle, rng)),
        ):
            if load_cluster(more.cluster).can_use(more.gpus):
                self.compare(name, middle, middle_plan, more, self.ask(more))
        for asked, found in ((base, plan), (middle, middle_plan)):
            self.beaten(asked, found, rng)
        again = self.ask(middle)
        if (again is None) != (middle_plan is None) or (
            again is not None and middle_plan is not None and dumped(again) != dumped(middle_plan)
        ):
            self.fault("not the same plan", middle, 0.0)

    def ask(self, asked: Drawn) -> Plan | None:
        """The plan, None where there is none; how long it took is told."""
        began, self.questions = time.process_time(), self.questions + 1
        plan: Plan | None = None
        try:
            plan = planner.optimize(asked.model, **asked.inputs, **asked.wishes)
            told = f"{plan.step_time_s:.6g} s, bound {plan.search.lower_bound_s:.6g} s, "
            told += f"{plan.peak_memory / 2**20:.1f} MiB, {plan_words(plan)}"
            told += f", {plan.idle_gpus} idle" if plan.idle_gpus else ""
            told += f", withdrawn {plan.fallbacks}" if "withdrawn" in str(plan.fallbacks) else ""
        except InfeasibleError as error:
            told = "no plan" + (", proven" if error.proven else "")
        except InputError as error:
            told = f"refused: {error}"
        took = time.process_time() - began
        print(f"  {asked.words()}: {told}, took {took:.1f} s", file=sys.stderr, flush=True)
        return plan

    def compare(
        self, name: str, less: Drawn, found: Plan | None, more: Drawn, other: Plan | None
    ) -> None:
        """The answers to a question, and to one with more of something."""
        if found is None:
            return
        if other is None:
            self.fault(f"{name}: no plan with more", more, math.inf)
            return
        most = found.step_time_s * _worth(more)
        self.above(f"{name}: slower with more", more, other.step_time_s, most)
        self.above(f"{name}: bound refuted", more, other.search.lower_bound_s, found.step_time_s)

    def beaten(self, asked: Drawn, plan: Plan | None, rng: random.Random) -> None:
        """The plan beside its own simulation, usual ways and ways to train that are drawn."""
        seconds = math.inf if plan is None else plan.step_time_s
        bound = 0.0 if plan is None else plan.search.lower_bound_s
        if plan is not None:
            step = planner.simulate(plan).step_time
            if not math.isclose(step, seconds, rel_tol=1e-6):
                self.fault("simulated otherwise", asked, step / seconds - 1.0)
        for name, step, fits in (*self.usual(asked), *self.ways(asked, seconds, rng)):
            if fits:
                self.above(f"slower than {name}", asked, seconds, step * _worth(asked))
                self.above(f"bound refuted by {name}", asked, bound, step)

    def usual(self, asked: Drawn) -> Iterator[tuple[str, float, bool]]:
        """Usual strategies, their steps and whether they fit; none where any may be ruled out."""
        if asked.wishes:
            return
        inputs = asked.inputs
        known = stages_of_zero(resolve(make_request("optimize", {"model": asked.model, **inputs})))
        stages = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
        for name in ("data", *stages, "megatron:tp=2", "megatron:tp=2,pp=2"):
            under: dict[str, object] = {"runtime": "ddp"} if name.startswith("megatron") else {}
            if stages.get(name, 0) not in known:
                continue
            try:
                step = planner.simulate(asked.model, strategy=name, **{**under, **inputs})
            except InputError:
                continue
            yield name, step.step_time, bool(step.fits)

    def ways(
        self, asked: Drawn, seconds: float, rng: random.Random
    ) -> Iterator[tuple[str, float, bool]]:
        """Some choices of the space that may be faster than the plan by computation alone."""
        request = make_request("optimize", {"model": asked.model, **asked.inputs, **asked.wishes})
        setting = resolve(request)
        wishes = wishes_of(request, setting)
        runtime = searched_runtime(setting)
        found = choices(setting, list(insides(setting)), stages_of_zero(setting))
        allowed = [one for one in map(wishes.with_shards, found) if wishes.allows(one)]
        estimates, weights = Estimates(setting, runtime), LeastWeights(setting)
        floors = PipelineBounds(setting, estimates.plain.reduced)
        rivals = [
            one
            for one in rng.sample(allowed, len(allowed))
            if estimates.cuts.are_possible(one.parts) and weights.fit(one)
        ]
        near = (one for one in rivals if floors.floor(one) < seconds)
        for choice in itertools.islice(near, DRAWN):
            step, _ = tried(setting, choice.degrees, choice_runtime(runtime, choice.zero))
            if step is not None:
                yield f"{choice.degrees}", step.seconds, step.fits

    def above(self, name: str, asked: Drawn, value: float, most: float) -> None:
        """Tell what is above what it may be."""
        if value > most * (1.0 + EQUAL):
            self.fault(name, asked, value / most - 1.0)

    def fault(self, name: str, asked: Drawn, part: float) -> None:
        """Tell one fault."""
        line = f"{name} by {part:.2%}: {asked.words()}"
        self.faults.append(line)
        print(f"FAULT {line}", file=sys.stderr, flush=True)


def _worth(asked: Drawn) -> float:
    """How many times as long a simpler plan may take: of images splits alone are simpler."""
    return 1.0 + SIMPLER_WITHIN * (asked.model in IMAGES)


def dumped(plan: Plan) -> str:
    """A plan as it is written."""
    return plan.to_json()


def hunt_rows(seeds: Sequence[int]) -> list[dict[str, object]]:
    """A row for each seed: its questions and faults, which are told as found."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            began, hunt = time.process_time(), Hunt(Path(folder))
            print(f"seed {seed}", file=sys.stderr, flush=True)
            hunt.seed(seed)
            took = time.process_time() - began
            faults = "; ".join(hunt.faults)
            rows.append(
                {"seed": seed, "questions": hunt.questions, "cpu [s]": took, "faults": faults}
            )
    return rows

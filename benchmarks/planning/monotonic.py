"""Whether more ever makes a plan slower: GPUs, memory, bandwidth, candidates.

A *series* are questions that differ in one resource, from the least of it to the most. In each pair
of its questions the plan for more of it must not be slower. No plan may be slower than a usual
strategy that fits, and no bound above a plan of the same question or of one for less.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec.structs import replace

from benchmarks.planning.gaps import NETWORKS
from costmodels.cluster import Cluster, Level, load_cluster
from costmodels.errors import InputError

CLUSTERS = ("abci", "aws-p3.2xlarge", "dgx-a100", "dgx-h100", "juwels-booster", "lassen")
COUNTS = tuple(2**n for n in range(13))
# GPUs of the series in anything but GPUs. [items]
OTHER_COUNTS = (16, 64)
# Global batch of networks whose samples are large, and of others. [samples]
BATCHES = {"cosmoflow": 4, "mesh": 4, "unet": 16, "gpt2": 32}
BATCH = 256
BANDWIDTHS = (0.5, 1.0, 2.0, 4.0)
CAPS = (64, 125, 250, 500, 1000, 2000)
# Limits on memory, as parts of what the plan without one needs; and none.
LIMITS = (0.6, 0.7, 0.8, 0.9, 0.97, 1.0, math.inf)
# Steps that differ by less than this part are equal.
EQUAL = 1e-3
KINDS = ("gpus", "memory", "host", "network", "cap")
FAULTS = ("slower_with_more", "slower_than_usual", "bound_refuted")
STRATEGIES = ("data", "spatial", "filter", "channel", "data+filter", "data+spatial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to the planner.

    Parameters
    ----------
    model, cluster
        Names of the network and of the machine.
    gpus, batch
        Number of GPUs, and the global batch. [items], [samples]
    host, network
        How many times the bandwidth of links within hosts, and between them.
    memory
        Limit on a GPU, +inf for all that it has. [B]
    cap
        Candidates that a layer may keep, None for the default. [items]
    """

    model: str
    cluster: str
    gpus: int
    batch: int
    host: float = 1.0
    network: float = 1.0
    memory: float = math.inf
    cap: int | None = None

    @property
    def machine(self) -> Cluster:
        """The machine with that bandwidth and memory."""
        cluster = faster(load_cluster(self.cluster), self.host, self.network)
        memory = min(self.memory, cluster.device.memory)
        return replace(cluster, device=replace(cluster.device, memory=memory))

    def words(self) -> str:
        """The question in a few words."""
        extras = {"host": self.host != 1.0, "network": self.network != 1.0}
        extras |= {"memory": self.memory < math.inf, "cap": self.cap is not None}
        more = "".join(f" {name} {getattr(self, name):g}" for name, said in extras.items() if said)
        return f"{self.model} {self.cluster} {self.gpus} b{self.batch}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the planner answers; +inf where no plan fits.

    Parameters
    ----------
    seconds, bound
        The step as simulated, and what no step is below. [s]
    memory
        What the plan needs. [B]
    usual, strategy
        The fastest usual strategy that fits, as simulated by itself, and its name. [s]
    took
        Processor time of the answer. [s]
    """

    seconds: float = math.inf
    bound: float = 0.0
    memory: float = math.inf
    usual: float = math.inf
    strategy: str = ""
    took: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Questions that differ in one resource, the least first.

    Parameters
    ----------
    kind
        Which resource.
    base
        The question that the others are made from.
    """

    kind: str
    base: Question

    def questions(self, ask: Callable[[Question], Answer]) -> list[Question]:
        """The questions; of limits on memory those that the plan without one suggests."""
        base = self.base
        if self.kind == "gpus":
            cluster = load_cluster(base.cluster)
            return [dataclasses.replace(base, gpus=n) for n in COUNTS if cluster.can_use(n)]
        if self.kind == "cap":
            return [dataclasses.replace(base, cap=cap) for cap in CAPS]
        if self.kind == "memory":
            peak, reserve = ask(base).memory, load_cluster(base.cluster).device.reserved_memory
            limits = (part * peak for part in LIMITS if reserve < part * peak)
            return (
                [dataclasses.replace(base, memory=limit) for limit in limits]
                if peak < math.inf
                else []
            )
        return [dataclasses.replace(base, **{self.kind: factor}) for factor in BANDWIDTHS]


def all_series() -> list[Series]:
    """The whole grid."""
    found = []
    for model, cluster in itertools.product(NETWORKS, CLUSTERS):
        batch = BATCHES.get(model.split("-")[0], BATCH)
        base = Question(model=model, cluster=cluster, gpus=1, batch=batch)
        found.append(Series(kind="gpus", base=base))
        for gpus, kind in itertools.product(OTHER_COUNTS, KINDS[1:]):
            found.append(Series(kind=kind, base=dataclasses.replace(base, gpus=gpus)))
    return found


def answer(question: Question) -> Answer:
    """Ask the planner, and simulate the usual strategies by themselves."""
    import planner
    from planner.errors import InfeasibleError

    began = time.process_time()
    asked = {
        "gpus": question.gpus,
        "cluster": question.machine,
        "global_batch_size": question.batch,
    }
    usual = {math.inf: ""}
    for name in STRATEGIES:
        try:
            step = planner.simulate(question.model, strategy=name, **asked)
        except InputError:
            continue
        usual.update({step.step_time: name} if step.fits else {})
    best = min(usual)
    try:
        plan = planner.optimize(question.model, cap=question.cap, **asked)
    except InfeasibleError as error:
        if error.stopped_by == "interrupt":
            raise KeyboardInterrupt from None
        return Answer(usual=best, strategy=usual[best], took=time.process_time() - began)
    if plan.search.stopped_by == "interrupt":
        raise KeyboardInterrupt  # what was found until then is no answer
    return Answer(
        seconds=plan.step_time_s,
        bound=plan.search.lower_bound_s,
        memory=plan.peak_memory,
        usual=best,
        strategy=usual[best],
        took=time.process_time() - began,
    )


def order_faults(
    answers: Sequence[tuple[Question, Answer]],
) -> Iterator[tuple[str, Question, float]]:
    """What is wrong with the answers of a series: the column of the table, where, and how much.

    Parameters
    ----------
    answers
        Questions and their answers, the least of the resource first.
    """
    for (_, less), (question, more) in itertools.combinations(answers, 2):
        if more.seconds > less.seconds * (1.0 + EQUAL):
            yield "slower_with_more", question, more.seconds / less.seconds - 1.0
        if more.bound > less.seconds * (1.0 + EQUAL):
            yield "bound_refuted", question, more.bound / less.seconds - 1.0
    for question, one in answers:
        if one.seconds > one.usual * (1.0 + EQUAL):
            yield "slower_than_usual", question, one.seconds / one.usual - 1.0
        lowest = min(one.seconds, one.usual)
        if one.bound > lowest * (1.0 + EQUAL):
            yield "bound_refuted", question, one.bound / lowest - 1.0


class Asked:
    """Questions asked so far, and in a file those of the same planner that a rerun need not ask.

    Parameters
    ----------
    file
        A line for each answer, None to keep none.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.answers: dict[Question, Answer] = {}
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.answers[Question(**row["question"])] = Answer(**row["answer"])

    def __call__(self, question: Question) -> Answer:
        """The answer to a question, told when it is new."""
        if question in self.answers:
            return self.answers[question]
        one = self.answers[question] = answer(question)
        line = f"{question.words()}: {one.seconds:.6g} s, bound {one.bound:.6g} s"
        print(
            f"{line}, usual {one.usual:.6g} s {one.strategy}, took {one.took:.1f} s",
            file=sys.stderr,
        )
        if self.file is not None:
            row = json.dumps({"question": asdict(question), "answer": asdict(one)})
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(row + "\n")
        return one


def monotonic_rows(
    sample: int | None,
    seed: int,
    *,
    rungs: int = 3,
    kinds: Sequence[str] = KINDS,
    most: int = COUNTS[-1],
    resume: Path | None = None,
) -> list[dict[str, object]]:
    """Ask all series or some, few GPUs first, and count what is wrong; it is told at once.

    Parameters
    ----------
    sample
        Series to draw, None for all of them with all of their questions. [items]
    seed
        Seed of the draw, and of the order among questions of as many GPUs.
    rungs
        Questions to draw of each series drawn. [items]
    kinds
        Resources of the series.
    most
        No question is about more GPUs. [items]
    resume
        File of the answers so far, which are not asked for again.
    """
    draw, ask = random.Random(seed), Asked(resume)
    series = [one for one in all_series() if one.kind in kinds and one.base.gpus <= most]
    series = draw.sample(series, len(series) if sample is None else min(sample, len(series)))
    asked: dict[Series, list[Question]] = {}
    for one in sorted(series, key=lambda one: one.base.gpus):
        questions = [question for question in one.questions(ask) if question.gpus <= most]
        if sample is not None:
            places = draw.sample(range(len(questions)), min(rungs, len(questions)))
            questions = [questions[place] for place in sorted(places)]
        asked[one] = questions
    order = [(question, one) for one, questions in asked.items() for question in questions]
    found: dict[Series, set[tuple[str, Question, float]]] = {one: set() for one in series}
    for question, one in sorted(order, key=lambda pair: pair[0].gpus):
        ask(question)
        known = [(other, ask(other)) for other in asked[one] if other in ask.answers]
        for fault in sorted(set(order_faults(known)) - found[one], key=str):
            found[one].add(fault)
            print(f"{fault[0]} by {fault[2]:.2%}: {fault[1].words()}", file=sys.stderr)
    return [_kind_row(kind, asked, found) for kind in KINDS]


def _kind_row(
    kind: str,
    asked: dict[Series, list[Question]],
    found: dict[Series, set[tuple[str, Question, float]]],
) -> dict[str, object]:
    questions = [rows for one, rows in asked.items() if one.kind == kind]
    faults = [fault for one, rows in found.items() if one.kind == kind for fault in rows]
    counts = Counter(name for name, _, _ in faults)
    return {
        "more": kind,
        "series": len(questions),
        "questions": sum(map(len, questions)),
        "pairs": sum(math.comb(len(rows), 2) for rows in questions),
        **{name: counts[name] for name in FAULTS},
        "worst": max((part for _, _, part in faults), default=0.0),
    }


def faster(cluster: Cluster, host: float, network: float) -> Cluster:
    """A cluster with so many times the bandwidth of links within hosts, and between them."""
    inner = cluster.host_index + 1
    levels = (
        _faster(level, host if place < inner else network)
        for place, level in enumerate(cluster.levels)
    )
    return replace(cluster, levels=tuple(levels))


def _faster(level: Level, factor: float) -> Level:
    """A level with so many times the bandwidth."""
    names = ("bandwidth", "in_network_bandwidth", "send_recv_bandwidth")
    values = {name: getattr(level, name) for name in names}
    return replace(level, **{n: factor * value for n, value in values.items() if value is not None})

"""Random networks, machines and assignments, and how long a simulated step of them takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from machines import graph
from msgspec.structs import replace

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.topology import Topology
from costmodels.compute import ComputeModel
from costmodels.graph import Graph
from costmodels.step.machine import Machine
from costmodels.step.training import Training
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.space.formulate import Formulation, formulate

# Clusters with hosts of one, few and many devices, wired and switched, and devices of each.
PLACES = (
    ("lassen", (4, 8, 16)),
    ("dgx-a100", (8, 16, 32)),
    ("abci", (4, 16)),
    ("aws-p3.2xlarge", (4, 8)),
    ("dgx-h100", (8, 16)),
    ("hkbu-10gbe", (4, 8)),
)
BUCKETS = (1.0, 2.0**16, 2.0**20, 5 * 2.0**20, 25 * 2.0**20, 100 * 2.0**20)
LARGEST, USUAL = max(BUCKETS), 25 * 2.0**20

Row = tuple[str, str, dict[str, Any], tuple[str, ...]]


class RandomNetwork:
    """A network grown layer by layer, with skips, branches, joins and shared weights.

    Parameters
    ----------
    rng
        Where chance comes from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rows: list[Row] = []
        self.channels = int(rng.choice([8, 12, 64, 256]))
        self.size = int(rng.choice([8, 14, 32]))
        self.dims = ("height", "width", "depth")[: int(rng.integers(1, 4))]

    def add(self, kind: str, *reads: str, **options: Any) -> str:
        """A further layer; its name."""
        name = f"{kind}{len(self.rows)}"
        self.rows.append((name, kind, options, reads))
        return name

    def block(self, last: str) -> str:
        """A block of layers that keeps all extents."""
        width, spatial = self.channels, {"kernel": int(self.rng.choice([1, 3])), "padding": 0}
        spatial["padding"] = spatial["kernel"] // 2
        kind = self.rng.choice(["plain", "residual", "branches", "twice", "deep"])
        conv = self.add("conv", last, filters=width, **spatial)
        if kind == "plain":
            return self.add("activation", conv)
        if kind == "residual":
            statistics = str(self.rng.choice(["local", "synchronised"]))
            norm = self.add("batch_norm", conv, statistics=statistics)
            return self.add("add", self.add("activation", norm), last)
        if kind == "branches":
            other = self.add("conv", last, filters=width, kernel=1)
            joined = self.add("concat", conv, other, self.add("activation", last))
            return self.add("conv", joined, filters=width, kernel=1)
        if kind == "twice":
            again = self.add("conv", conv, filters=width, share=conv, **spatial)
            return self.add("add", again, conv, last)
        pooled = self.add("pool", conv, kernel=2, stride=2)
        inside = self.add("conv", pooled, filters=2 * width, kernel=3, padding=1)
        large = self.add("upsample", inside, factor=2)
        return self.add("conv", self.add("concat", large, conv), filters=width, kernel=1)

    def built(self) -> Graph:
        """The network under a random batch."""
        last = self.add("conv", "input", filters=self.channels, kernel=3, padding=1)
        for _ in range(int(self.rng.integers(1, 4))):
            last = self.block(last)
        if self.rng.random() < 0.5:
            last = self.add("global_pool", last)
        for _ in range(int(self.rng.integers(0, 3))):
            last = self.add("linear", last, filters=int(self.rng.choice([10, 96, 1000, 4096])))
        if self.rng.random() < 0.7:
            last = self.add("loss", last)
        shape = {"channel": int(self.rng.choice([3, 8])), **dict.fromkeys(self.dims, self.size)}
        return graph(shape, self.rows, int(self.rng.choice([4, 6, 16, 64])))


def random_tokens(rng: np.random.Generator) -> Graph:
    """Blocks of attention, with a head that may use the table of the embedding."""
    hidden, words = int(rng.choice([32, 96, 768])), int(rng.choice([64, 5000]))
    rows: list[Row] = [("table", "embedding", {"rows": words, "filters": hidden}, ("input",))]

    def add(kind: str, *reads: str, **options: Any) -> str:
        name = f"{kind}{len(rows)}"
        rows.append((name, kind, options, reads))
        return name

    last = "table"
    for _ in range(int(rng.integers(1, 3))):
        norm = add("layer_norm", last)
        parts = add("linear", norm, filters=3 * hidden)
        mixed = add("linear", add("attention", parts, heads=4), filters=hidden)
        last = add("add", last, mixed)
        inner = add("activation", add("linear", add("layer_norm", last), filters=4 * hidden))
        last = add("add", last, add("linear", inner, filters=hidden))
    shared = {"bias": False, "share": "table"} if rng.random() < 0.6 else {}
    head = add("linear", last, filters=words, **shared)
    if rng.random() < 0.8:
        add("loss", head)
    return graph({"sequence": 32}, rows, int(rng.choice([4, 6, 16])))


def random_machine(rng: np.random.Generator) -> tuple[Cluster, Machine]:
    """Some devices of a built-in cluster, and random options of the step."""
    name, counts = PLACES[int(rng.integers(len(PLACES)))]
    where = load_cluster(name)
    precision = where.default_precision
    training = Training(
        precision=precision,
        optimizer=str(rng.choice(["sgd", "adam"])),
        halo_overlap=bool(rng.random() < 0.7),
        always_cut=bool(rng.random() < 0.3),
        gradient_overlap=bool(rng.random() < 0.85),
        all_reduce=str(rng.choice(["auto", "auto", "ring", "tree", "hierarchical"])),
        launch_time=float(rng.choice([0.0, 25e-6])),
    )
    topology = Topology.of(where, where.shape(int(rng.choice(counts))))
    compute = ComputeModel(where.device, precision)
    return where, Machine(topology=topology, compute=compute, training=training)


def random_formulation(
    rng: np.random.Generator, cap: int = 40, bucket_bytes: float = LARGEST
) -> Formulation:
    """A random network on a random machine.

    Parameters
    ----------
    rng
        Where chance comes from.
    cap
        Candidates that a layer may keep. [items]
    bucket_bytes
        Largest size of gradient buckets. [B]
    """
    network = random_tokens(rng) if rng.random() < 0.25 else RandomNetwork(rng).built()
    where, machine = random_machine(rng)
    training = replace(machine.training, bucket_bytes=min(bucket_bytes, USUAL))
    machine = replace(machine, training=training)
    return formulate(network, where, machine, cap=cap, bucket_bytes=bucket_bytes)


def random_choices(f: Formulation, rng: np.random.Generator) -> tuple[int, ...]:
    """An assignment: neighbours split alike, layers that are alike split alike, or neither."""
    leap = float(rng.choice([0.0, 0.1, 0.5, 1.0]))
    chosen: list[int] = []
    known: dict[int, int] = {}
    for place, layer in enumerate(f.layers):
        candidates = f.spaces[layer.name].candidates
        if id(candidates) not in known or rng.random() < leap:
            known[id(candidates)] = int(rng.integers(len(candidates)))
        choice: int | None = None
        if place and rng.random() > leap:
            before = f.spaces[f.layers[place - 1].name].candidates
            choice = candidates.find(before.distribution(chosen[-1]))
        chosen.append(known[id(candidates)] if choice is None else choice)
    return tuple(chosen)


def random_steps(
    seed: int, plans: int, each: int = 20
) -> Iterator[tuple[Formulation, tuple[int, ...], float]]:
    """Random assignments and their simulated steps. [s]

    Parameters
    ----------
    seed
        Of all that is random.
    plans
        How many. [items]
    each
        Assignments of each network and machine. [items]
    """
    rng = np.random.default_rng(seed)
    for number in range(plans):
        if number % each == 0:
            f = random_formulation(rng)
        choices = random_choices(f, rng)
        bucket = float(rng.choice(BUCKETS))
        training = replace(f.machine.training, bucket_bytes=bucket)
        simulator = PlanSimulator(f.with_training(training))
        yield f, choices, simulator.simulate(choices, bucket).seconds

"""What is predicted and measured on two ranks: short networks, and the candidate plans of each.

The convolutions are those of the four stages of ResNet-18, the transformers blocks of GPT-2 of
small widths. A plan splits every layer in two, by one dim or another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.cluster import Cluster, Device, Level
from costmodels.compute import CostTable
from costmodels.distribution import Distribution, one_candidate
from costmodels.graph import Network
from planner.models.files import parse_network
from planner.planning.optimize import plan_of_strategy
from planner.request.request import Request
from planner.request.setting import Setting, resolve
from planner.tables.profile.needs import Need, Needs, layer_works, shapes_of
from planner.tables.profile.shape import Shape

RANKS = 2
# Channels and pixels a side of the stages of ResNet-18.
STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))
# Width, positions and heads of the blocks.
WIDTHS = ((128, 128, 4), (256, 128, 4), (512, 64, 8))
_LAYERS = ("a", "relu1", "b", "relu2")
CONV_PLANS: Mapping[str, Mapping[str, str]] = {
    "sample": dict.fromkeys(_LAYERS, "sample"),
    "height": dict.fromkeys(_LAYERS, "height"),
    "width": dict.fromkeys(_LAYERS, "width"),
    "filter": {"a": "filter", "relu1": "channel", "b": "filter", "relu2": "channel"},
    "channel": dict.fromkeys(_LAYERS, "channel"),
    "filter, channel": {"a": "filter", "relu1": "channel", "b": "channel", "relu2": "channel"},
}
_BLOCK = ("norm1", "qkv", "attend", "proj", "join1", "norm2", "up", "act", "down", "join2")
BLOCK_PLANS: Mapping[str, Mapping[str, str]] = {
    "sample": dict.fromkeys(_BLOCK, "sample"),
    "tensor": {
        "qkv": "filter",
        "attend": "head",
        "proj": "channel",
        "up": "filter",
        "act": "channel",
        "down": "channel",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansQuestion:
    """A network, and how it may be split.

    Parameters
    ----------
    name
        What it is called.
    kind
        "conv" or "block".
    sizes
        Channels and pixels a side, or width, positions and heads. [items]
    batch
        Samples of a step. [samples]
    """

    name: str
    kind: str
    sizes: tuple[int, ...]
    batch: int

    @property
    def plans(self) -> Mapping[str, Mapping[str, str]]:
        """The dim that each layer is split by, by the name of the plan."""
        return CONV_PLANS if self.kind == "conv" else BLOCK_PLANS

    @property
    def network(self) -> Network:
        """The network as a file would say it."""
        text = _conv_text(*self.sizes) if self.kind == "conv" else _block(*self.sizes)
        return parse_network(text, suffix=".toml")


def questions(scale: int = 1) -> list[PlansQuestion]:
    """All of them.

    Parameters
    ----------
    scale
        Part of the samples that is left, for machines that are busy.
    """
    found = [
        PlansQuestion(name=f"conv{n}_x", kind="conv", sizes=sizes, batch=max(8 // scale, RANKS))
        for n, sizes in enumerate(STAGES, start=2)
    ]
    return found + [
        PlansQuestion(
            name=f"block {sizes[0]}", kind="block", sizes=sizes, batch=max(8 // scale, RANKS)
        )
        for sizes in WIDTHS
    ]


def _conv_text(channels: int, side: int) -> str:
    layer = f'kind = "conv"\nfilters = {channels}\nkernel = 3\npadding = "same"\n'
    return (
        f'name = "conv"\n[input]\nchannel = {channels}\nheight = {side}\nwidth = {side}\n'
        f'[[layer]]\nname = "a"\n{layer}'
        '[[layer]]\nname = "relu1"\nkind = "activation"\n'
        f'[[layer]]\nname = "b"\n{layer}'
        '[[layer]]\nname = "relu2"\nkind = "activation"\n'
    )


def _block(width: int, positions: int, heads: int) -> str:
    rows = (
        ("norm1", "layer_norm", ""),
        ("qkv", "linear", f"filters = {3 * width}\nbias = false"),
        ("attend", "attention", f"heads = {heads}\ncausal = true"),
        ("proj", "linear", f"filters = {width}\nbias = false"),
        ("join1", "add", 'inputs = ["proj", "input"]'),
        ("norm2", "layer_norm", ""),
        ("up", "linear", f"filters = {4 * width}\nbias = false"),
        ("act", "activation", ""),
        ("down", "linear", f"filters = {width}\nbias = false"),
        ("join2", "add", 'inputs = ["down", "join1"]'),
    )
    text = f'name = "block"\n[input]\nsequence = {positions}\nhidden = {width}\n'
    return text + "".join(
        f'[[layer]]\nname = "{name}"\nkind = "{kind}"\n{more}\n' for name, kind, more in rows
    )


def this_machine(memory: float) -> Cluster:
    """Two ranks of one thread each, as a cluster; what was measured comes before its figures.

    Parameters
    ----------
    memory
        Of the machine. [B]
    """
    device = Device(
        name="one thread",
        memory=memory / RANKS,
        reserved_memory=2.0**28,
        peak_flops={"fp32": 5e10},
        memory_bandwidth=1e10,
        num_sms=1,
        kernel_latency=5e-6,
        source="Round figures, which measured times correct.",
    )
    link = Level(name="host", size=RANKS, latency=1e-4, bandwidth=1e9)
    return Cluster(
        name="two-ranks",
        device=device,
        levels=(link,),
        host_level="host",
        default_precision="fp32",
    )


def setting_of(
    question: PlansQuestion, cluster: Cluster, tables: tuple[CostTable, ...] = ()
) -> Setting:
    """A question as the planner is asked it: nothing overlaps, since processors are timed.

    Parameters
    ----------
    question, cluster, tables
        What is asked, on which machine, and what is known of it.
    """
    return resolve(
        Request(
            source=question.network,
            gpus=RANKS,
            cluster=cluster,
            global_batch_size=question.batch,
            optimizer="sgd",
            launch_time=0.0,
            gradient_overlap=False,
            halo_overlap=False,
            tables=tables,
        )
    )


def splits(question: PlansQuestion, plan: str, setting: Setting) -> dict[str, Distribution]:
    """How a plan splits every layer.

    Parameters
    ----------
    question, plan, setting
        What is asked, the name of the plan, and the machine.
    """
    dims = question.plans[plan]
    found = {}
    for layer in setting.graph.compute_layers:
        dim = dims.get(layer.name)
        ways = {dim: (RANKS,)} if dim else {}
        found[layer.name] = Distribution(degrees=ways, shape=(RANKS,))
    return found


def needs_of_plans(all_questions: list[PlansQuestion], cluster: Cluster) -> Needs:
    """The shapes that the plans of all questions compute.

    Parameters
    ----------
    all_questions, cluster
        What is asked, and of which machine.
    """
    found: dict[Shape, Need] = {}
    for question in all_questions:
        setting = setting_of(question, cluster)
        for plan in question.plans:
            for name, split in splits(question, plan, setting).items():
                layer = setting.graph.layers[name]
                for work in layer_works(layer, one_candidate(split), setting.graph, setting):
                    seconds = float(setting.machine.compute.time(work)[0].max())
                    for shape, _ in shapes_of(work):
                        need = found.setdefault(shape, Need(shape, in_plan=1.0))
                        need.modelled[work.direction] = seconds
    return Needs(
        needs=tuple(found.values()), precision="fp32", unmeasurable=0.0, question="all plans"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPlan:
    """A predicted step.

    Parameters
    ----------
    seconds
        Of the step. [s]
    received
        What a rank receives. [B]
    measured
        Part of the computation whose shapes were measured.
    """

    seconds: float
    received: float
    measured: float


def predict(
    question: PlansQuestion, plan: str, cluster: Cluster, table: CostTable
) -> PredictedPlan:
    """What the planner says of a plan.

    Parameters
    ----------
    question, plan
        What is asked, and the name of the plan.
    cluster, table
        The machine, and what was measured on it.
    """
    setting = setting_of(question, cluster, (table,))
    found = plan_of_strategy(setting, splits(question, plan, setting), plan)
    sources = found.compute_sources_s
    return PredictedPlan(
        seconds=found.step_time,
        received=found.communication_bytes,
        measured=sources.get("table", 0.0) / math.fsum(sources.values()),
    )

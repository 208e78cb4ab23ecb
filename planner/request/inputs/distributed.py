"""Distributed SGD over a slow network: workers, links, servers and the models that predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from costmodels.errors import InputError
from costmodels.units import parse_bandwidth, parse_seconds
from planner.request.inputs.description import (
    AnyInput,
    Input,
    Rule,
    at_least,
    between,
    one_of,
    seed_rule,
)
from planner.request.inputs.question import (
    EXECUTION,
    INPUT_SIZE,
    LAUNCH_TIME,
    MODEL,
    OPTIMIZER,
    PRECISION,
    TABLES,
)

ARCHITECTURES = ("ps", "all-reduce")
MODES = ("sync", "async")
THROUGHPUT_MODELS = ("coarse", "fine", "both")
SHARING_RULES = ("auto", "processor-sharing", "first-come")


def _link_rate(what: str) -> Callable[[str], float]:
    """Reads text such as "10 Gbps" and refuses what no link carries."""

    def read(text: str) -> float:
        value = parse_bandwidth(text, what=what)
        plausible_bandwidth(what)(value)
        return value

    return read


def plausible_bandwidth(what: str) -> Rule:
    """Rates that a link can have."""
    return between(1e3, 1e18, what, 'write it like "10 Gbps"', unit="B/s")


def _plausible_seconds(text: str) -> float:
    value = parse_seconds(text, what="the time of an update", allow_zero=True)
    _plausible_update_time(value)
    return value


_plausible_update_time = between(0, 3600, "the time of an update", "correct it", unit="s")


def _refuse_computation_variation(value: float) -> None:
    what = "the variation of computation"
    between(0, 10, what, "0.02 means a standard deviation of 2 %")(value)
    if 0 < value < 1e-6:
        raise InputError.rule(what, "be 0 or at least 1e-6", f"{value:g}", "use 0")


def _refuse_gpus_per_host(value: int) -> None:
    if value < 1:
        raise InputError(f"a host must have at least 1 GPU but has {value}; raise --gpus-per-host")


WORKERS: Input[None] = Input(
    name="workers",
    default=None,
    option="--workers",
    metavar="N-N|N,N,...",
    kind="counts",
    help="Numbers of workers (hosts); 1-16 by default. Several kinds keep their proportion.",
    text='Numbers of workers, as such or like "1-16" (the default) or "1,2,4"; several kinds keep '
    "their proportion. [items]",
)
DEVICE: Input[str] = Input(
    name="device",
    default="v100",
    shown=True,
    option="--device",
    metavar="NAME",
    help='GPU of a worker, or kinds with their numbers, such as "v100:4,t4:2".',
    text='A built-in device, or several kinds with their numbers like "v100:4,t4:2".',
)
BANDWIDTH: Input[str] = Input(
    name="bandwidth",
    default="10 Gbps",
    shown=True,
    option="--bandwidth",
    metavar="RATE",
    help="Link of a worker or server in one direction.",
    text='Link of a worker or server in one direction, a number or text such as "10 Gbps". [B/s]',
    unit=_link_rate("the bandwidth"),
    rule=plausible_bandwidth("the bandwidth"),
)
ARCHITECTURE: Input[str] = Input(
    name="architecture",
    default="ps",
    shown=True,
    option="--architecture",
    metavar="NAME",
    help="ps (parameter servers) or all-reduce (ring).",
    text='"ps" (parameter servers) or "all-reduce" (a ring).',
    rule=one_of("the architecture", lambda: ARCHITECTURES),
)
MODE: Input[str] = Input(
    name="mode",
    default="sync",
    shown=True,
    option="--mode",
    metavar="NAME",
    help="sync or async.",
    text='"sync" or "async", the latter with parameter servers only.',
    rule=one_of("the mode", lambda: MODES),
)
MODELS: Input[str] = Input(
    name="throughput_models",
    keyword="models",
    default="both",
    shown=True,
    option="--model",
    metavar="NAME",
    help="coarse (queueing, closed form), fine (simulation of every layer) or both.",
    text='"coarse" (queueing, closed form), "fine" (simulation of every layer) or "both".',
    rule=one_of("the model of throughput", lambda: THROUGHPUT_MODELS),
)
BATCH: Input[int] = Input(
    name="batch_per_gpu",
    keyword="batch",
    default=32,
    shown=True,
    option="--batch",
    metavar="N",
    kind="whole",
    help="Samples of a GPU.",
    text="Samples of a step of one GPU. [samples]",
    rule=at_least(1, "the batch of a GPU", "raise it", unit="sample"),
)
OVERLAP: Input[bool] = Input(
    name="transfer_overlap",
    keyword="overlap",
    default=True,
    option="--no-overlap",
    kind="switch",
    help="Transfers wait for computation, and computation for transfers.",
    text="Whether transfers overlap computation layer by layer.",
)
FLOW_CAP: Input[None] = Input(
    name="flow_cap",
    default=None,
    option="--flow-cap",
    metavar="RATE",
    help="Limit of one flow between worker and server.",
    text="Limit of one flow between worker and server, a number or text such as "
    '"1 Gbps"; none by default. [B/s]',
    unit=_link_rate("the cap of a flow"),
    rule=plausible_bandwidth("the cap of a flow"),
)
GPUS_PER_HOST: Input[int] = Input(
    name="gpus_per_host",
    default=1,
    option="--gpus-per-host",
    metavar="N",
    kind="whole",
    help="GPUs of a worker, which all-reduce first.",
    text="GPUs of one worker, which all-reduce among themselves first. [items]",
    rule=_refuse_gpus_per_host,
)
HOST: Input[str | None] = Input(
    name="host",
    default=None,
    option="--host",
    metavar="NAME|FILE",
    help="Cluster whose hosts join the GPUs of a worker alike.",
    text="Cluster whose hosts tell how these GPUs are joined; by default one with the same GPUs.",
)
PARAMETER_SERVERS: Input[int] = Input(
    name="parameter_servers",
    keyword="servers",
    default=1,
    option="--servers",
    metavar="N",
    kind="whole",
    help="Parameter servers with equal parts.",
    text="Parameter servers, each with an equal part of every layer. [items]",
)
UPDATE_TIME: Input[None] = Input(
    name="update_time",
    default=None,
    option="--update-time",
    metavar="TIME",
    help='Update at the server, such as "2 ms".',
    text='Applying the gradients of one worker, a number or text such as "2 ms"; by default as '
    "costed on the GPU. [s]",
    unit=_plausible_seconds,
    rule=_plausible_update_time,
    chosen="time of an update as costed on the GPU of the first kind of workers",
)
SHARING_RULE: Input[str] = Input(
    name="sharing_rule",
    keyword="rule",
    default="auto",
    option="--rule",
    metavar="NAME",
    help="How flows share a link: auto (as the paper does), first-come or processor-sharing.",
    text='How flows share a link: "auto" (as the paper does), "processor-sharing" or "first-come".',
    rule=one_of("the rule by which flows share links", lambda: SHARING_RULES),
)
UTILISATION_THRESHOLD: Input[float] = Input(
    name="utilisation_threshold",
    default=0.6,
    option="--utilisation-threshold",
    metavar="SHARE",
    kind="number",
    help="Link use up to which links serve first come, first served; 0.6 by default.",
    text="Link use up to which links serve first come, first served: rho_T of equation 5 of Li et "
    "al. 2022.",
    rule=between(0, 1, "the utilisation threshold", "the paper uses 0.6"),
)
STEPS: Input[int | None] = Input(
    name="steps",
    default=None,
    option="--steps",
    metavar="N",
    kind="whole",
    help="Steps of each worker in a simulation.",
    text="Steps of each worker in a simulation; by default enough. [items]",
)
COMPUTATION_VARIATION: Input[float] = Input(
    name="computation_variation",
    keyword="variation",
    default=0.02,
    option="--variation",
    metavar="SHARE",
    kind="number",
    help="Coefficient of variation of computation in simulations; 0.02 by default.",
    text="Coefficient of variation of the computation of a step in simulations.",
    rule=_refuse_computation_variation,
)
SIMULATION_SEED: Input[int] = Input(
    name="simulation_seed",
    keyword="seed",
    default=0,
    option="--seed",
    metavar="N",
    kind="whole",
    help="Seed of simulations; 0 by default.",
    text="Seed of simulations.",
    rule=seed_rule("the seed"),
)
THROUGHPUT: tuple[AnyInput, ...] = (
    MODEL,
    WORKERS,
    DEVICE,
    BANDWIDTH,
    ARCHITECTURE,
    MODE,
    MODELS,
    BATCH,
    replace(
        PRECISION,
        default="fp32",
        help="fp32 (the default), tf32, fp16 or bf16.",
        text='"fp32", "tf32", "fp16" or "bf16".',
    ),
    replace(OPTIMIZER, default="sgd"),
    INPUT_SIZE,
    OVERLAP,
    FLOW_CAP,
    GPUS_PER_HOST,
    HOST,
    PARAMETER_SERVERS,
    UPDATE_TIME,
    SHARING_RULE,
    UTILISATION_THRESHOLD,
    STEPS,
    COMPUTATION_VARIATION,
    SIMULATION_SEED,
    EXECUTION,
    LAUNCH_TIME,
    TABLES,
)

"""How a step runs when it is simulated: strategy, runtime, step model, loading of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodels.errors import InputError
from planner.request.inputs.degrees import DEGREE_INPUTS
from planner.request.inputs.description import AnyInput, Input, at_least, one_of
from planner.request.inputs.question import DEGREE, GPUS, STRATEGY

# Step models that run every operation; the others are closed forms.
SIMULATIONS = ("simulate", "plain", "flexflow-sim")


def step_models() -> Sequence[str]:
    """Names of all step models."""
    from costmodels.closed_form import CLOSED_FORMS

    return (*SIMULATIONS, *CLOSED_FORMS)


_one_step_model = one_of("the step model", step_models, "choose one")


def _refuse_step_model(value: str) -> None:
    # that these exist is known without loading the closed forms
    if value not in SIMULATIONS:
        _one_step_model(value)


def _refuse_overlap_factor(value: float) -> None:
    if not 0.0 <= value <= 10.0:
        raise InputError.rule(
            "the overlap factor",
            "be from 0 to 10",
            f"{value:g}",
            "0.1 means that computation takes 10 % longer while gradients travel",
        )


def _refuse_loader_rate(value: float) -> None:
    if not 1e-3 <= value <= 1e12:
        rule = "be from 0.001 to 1e+12 samples/s" if value > 0 else "be greater than 0"
        raise InputError.rule(
            "the rate of a loader (--loader-rate)", rule, f"{value:g} samples/s", "measure it again"
        )


def _refuse_variation(value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError.rule(
            "the variation between devices",
            "be from 0 to 1",
            f"{value:g}",
            "0.015 means a standard deviation of 1.5 % of the time that they compute",
        )


SOURCE: Input[None] = Input(
    name="source",
    default=None,
    required=True,
    kind="object",
    text="What to simulate: a plan or its file, a strategy file, or a network as of "
    "`planner.optimize`.",
)
DEGREES: Input[None] = Input(
    name="degrees",
    default=None,
    kind="object",
    text="With a network, instead of a strategy: a `planner.Degrees`.",
)
RUNTIME: Input[str | None] = Input(
    name="runtime",
    default=None,
    option="--runtime",
    metavar="NAME",
    kind="object",
    help="See 'planner runtimes'; ddp by default.",
    text='A name in `costmodels.simulation.runtimes`, or a runtime; by default "ddp", or "ps-sync" '
    "where servers are given.",
)
SERVERS: Input[int | None] = Input(
    name="servers",
    default=None,
    option="--servers",
    metavar="N",
    kind="count",
    help="Parameter servers on hosts of their own; the workers' hosts serve by default.",
    text="Parameter servers on hosts of their own; the workers' hosts serve by default. [items]",
)
STEP_MODEL: Input[str] = Input(
    name="step_model",
    keyword="model",
    default="simulate",
    shown=True,
    option="--model",
    metavar="NAME",
    help="simulate, plain (no overlap factor, links not shared), flexflow-sim, or a closed form: "
    "paradl or paleo.",
    text='How: "simulate"; "plain" (no overlap factor, links not shared); "flexflow-sim" (fixed '
    'costs by nominal bandwidth); or a closed form, "paradl" or "paleo".',
    rule=_refuse_step_model,
)
OVERLAP_FACTOR: Input[float | None] = Input(
    name="overlap_factor",
    default=None,
    option="--overlap-factor",
    metavar="X",
    kind="number",
    help="How much longer computation takes while gradients travel; 0.1 by default.",
    text="How much longer computation and gradient communication take while both run; from 0 to "
    "10.",
    rule=_refuse_overlap_factor,
    usual=0.1,
)
VARIATION: Input[float | None] = Input(
    name="variation",
    default=None,
    option="--variation",
    metavar="X",
    kind="number",
    help="Standard deviation between devices, whose slowest all wait for; 0.015 by default.",
    text="Standard deviation of the time that devices compute in a step, as part of its mean: "
    "where they take steps together, all wait for the slowest. By default 0.015 with the step "
    'model "simulate", 0 with the others.',
    rule=_refuse_variation,
)
CONGESTION: Input[float] = Input(
    name="congestion",
    default=1.0,
    option="--congestion",
    metavar="X",
    kind="number",
    help="How many times less links between hosts carry, because of other jobs; 1, seen up to 4.",
    text="How many times less the links between hosts carry, because of other jobs; from 1 to "
    "1000.",
)
LOADING: Input[None] = Input(
    name="loading",
    keyword="input",
    default=None,
    kind="object",
    text="How samples are loaded, a `planner.Loading`; by default they cost nothing.",
)
LOADER: Input[str] = Input(
    name="loader",
    part="loading",
    default="synthetic",
    option="--loader",
    metavar="NAME",
    help="Data loader, see 'planner loaders'; none.",
    text='A name of `costmodels.input_pipeline.list_loaders`; "synthetic" costs nothing.',
)
LOADER_RATE: Input[float | None] = Input(
    name="rate",
    part="loading",
    keyword="loader_rate",
    default=None,
    option="--loader-rate",
    metavar="X",
    kind="number",
    help="Its samples/s a host, if measured.",
    rule=_refuse_loader_rate,
    text="Samples that a host loads in a second, where measured; None for the loader's model. "
    "[samples/s]",
)
CORES: Input[int | None] = Input(
    name="cores",
    part="loading",
    default=None,
    option="--cores",
    metavar="N",
    kind="whole",
    rule=at_least(1, "what loads the samples of a host (--cores)", "raise it", unit="core"),
    help="Cores of a host for loading.",
    text="Cores of a host, None for the default. [items]",
)
STORAGE: Input[str | None] = Input(
    name="storage",
    part="loading",
    default=None,
    option="--storage",
    metavar="NAME",
    help="Where samples lie, instead of the loader's.",
    text="A name of `costmodels.input_pipeline.list_storages`, None for the loader's.",
)
SIMULATE: tuple[AnyInput, ...] = (
    SOURCE,
    replace(
        GPUS,
        required=False,
        help="Number of GPUs; plan files tell it.",
        text="Number of GPUs, which plans and strategy files may tell. [items]",
    ),
    STRATEGY,
    replace(DEGREE, help="As of 'planner evaluate'."),
    DEGREES,
    *DEGREE_INPUTS,
    RUNTIME,
    SERVERS,
    STEP_MODEL,
    OVERLAP_FACTOR,
    VARIATION,
    CONGESTION,
    LOADING,
    LOADER,
    LOADER_RATE,
    CORES,
    STORAGE,
)

"""What was asked: every input of every command, as it was given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

from costmodels.cluster import Cluster
from costmodels.compute import CostTable
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.simulation import Runtime
from costmodels.strategy import Strategy
from planner.errors import ConflictError
from planner.models.onnx import is_onnx_file
from planner.plan import Plan
from planner.request.inputs import COMMANDS, field_inputs
from planner.request.inputs import distributed as sgd
from planner.request.inputs import question as asked
from planner.request.inputs import searching as searched
from planner.request.inputs import simulating as simulated
from planner.request.parts import Degrees, Loading
from planner.torch.source import is_reference, network_of_source

Source: TypeAlias = str | os.PathLike[str] | Plan | Network
StrategySource: TypeAlias = str | os.PathLike[str] | Plan | Strategy

_INPUTS = field_inputs()
_PATH = (str, os.PathLike)


class _Object(NamedTuple):
    """What an input of kind "object" may be, and its rule."""

    types: tuple[type, ...]
    rule: str


_OBJECTS: Mapping[str, _Object] = {
    "source": _Object((*_PATH, Plan, Network), "be a network or a plan, or a name or path of one"),
    "cluster": _Object((*_PATH, Cluster), "be a cluster, or a name or path of one"),
    "strategy": _Object((*_PATH, Plan, Strategy), "be a plan, a strategy, or a name or path"),
    "runtime": _Object((*_PATH, Runtime), "be a runtime, or a name or path of one"),
    "degrees": _Object((Degrees,), "be a planner.Degrees"),
    "loading": _Object((Loading,), "be a planner.Loading"),
    "dump_problem": _Object(_PATH, "be a path"),
}
_PARTS: Mapping[str, type[Degrees] | type[Loading]] = {"degrees": Degrees, "loading": Loading}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Every input of `optimize`, `evaluate`, `scale`, `pareto`, `simulate` and `throughput`.

    An input that is None was not given: a plan or a file says it, or its default is filled in where
    the network and the machine are known. What each means stands in `planner.request.inputs`.

    Raises
    ------
    InputError
        When a value breaks the rule of its input.
    """

    source: Source
    gpus: int | None = asked.GPUS.default
    counts: str | Sequence[int] = asked.COUNTS.default
    strong: bool = asked.STRONG.default
    cluster: str | Cluster | None = asked.CLUSTER.default
    global_batch_size: int | None = asked.GLOBAL_BATCH_SIZE.default
    precision: str | None = asked.PRECISION.default
    optimizer: str | None = asked.OPTIMIZER.default
    inputs: object = asked.INPUTS.default
    input_size: int | None = asked.INPUT_SIZE.default
    vocab_padding: int | None = asked.VOCAB_PADDING.default
    expert_capacity: float | None = asked.EXPERT_CAPACITY.default
    memory: str | float | None = asked.MEMORY.default
    all_reduce: str | None = asked.ALL_REDUCE.default
    bucket_bytes: str | float | None = asked.BUCKET_BYTES.default
    execution: str | None = asked.EXECUTION.default
    launch_time: str | float | None = asked.LAUNCH_TIME.default
    memory_model: str | None = asked.MEMORY_MODEL.default
    halo_overlap: bool | None = asked.HALO_OVERLAP.default
    always_cut: bool | None = asked.ALWAYS_CUT.default
    gradient_overlap: bool | None = asked.GRADIENT_OVERLAP.default
    winograd: bool | None = asked.WINOGRAD.default
    tables: Sequence[str | os.PathLike[str] | CostTable] = asked.TABLES.default
    # the search
    search: str = searched.SOLVER.default
    seed: int = searched.SEED.default
    time_limit: float | None = searched.TIME_LIMIT.default
    cap: int | None = searched.CAP.default
    num_best: int = searched.NUM_BEST.default
    tune_trials: int = searched.TUNE_TRIALS.default
    least_memory: bool = searched.LEAST_MEMORY.default
    keep: str | None = searched.KEEP.default
    forbid: str | None = searched.FORBID.default
    framework: str | None = searched.FRAMEWORK.default
    against: str = searched.AGAINST.default
    dump_problem: str | os.PathLike[str] | None = searched.DUMP_PROBLEM.default
    # a strategy, and how it runs
    strategy: StrategySource | None = asked.STRATEGY.default
    degree: int | None = asked.DEGREE.default
    degrees: Degrees | None = simulated.DEGREES.default
    runtime: str | Runtime | None = simulated.RUNTIME.default
    servers: int | None = simulated.SERVERS.default
    step_model: str = simulated.STEP_MODEL.default
    overlap_factor: float | None = simulated.OVERLAP_FACTOR.default
    variation: float | None = simulated.VARIATION.default
    congestion: float = simulated.CONGESTION.default
    loading: Loading | None = simulated.LOADING.default
    # distributed SGD
    workers: str | Sequence[int] | None = sgd.WORKERS.default
    device: str = sgd.DEVICE.default
    bandwidth: str | float = sgd.BANDWIDTH.default
    architecture: str = sgd.ARCHITECTURE.default
    mode: str = sgd.MODE.default
    throughput_models: str = sgd.MODELS.default
    batch_per_gpu: int = sgd.BATCH.default
    transfer_overlap: bool = sgd.OVERLAP.default
    flow_cap: str | float | None = sgd.FLOW_CAP.default
    gpus_per_host: int = sgd.GPUS_PER_HOST.default
    host: str | None = sgd.HOST.default
    parameter_servers: int = sgd.PARAMETER_SERVERS.default
    update_time: str | float | None = sgd.UPDATE_TIME.default
    sharing_rule: str = sgd.SHARING_RULE.default
    utilisation_threshold: float = sgd.UTILISATION_THRESHOLD.default
    steps: int | None = sgd.STEPS.default
    computation_variation: float = sgd.COMPUTATION_VARIATION.default
    simulation_seed: int = sgd.SIMULATION_SEED.default

    def __post_init__(self) -> None:
        for name, described in _INPUTS.items():
            given = getattr(self, name)
            known = _OBJECTS.get(name)
            if known is not None and given is not None:
                if not isinstance(given, known.types):
                    what = "the model or source" if name == "source" else described.called
                    raise InputError.rule(what, known.rule, repr(given), "correct it")
                given = os.fspath(given) if isinstance(given, os.PathLike) else given
            value = described.check(described.default if given is None else given)
            object.__setattr__(self, name, value)
        if self.tune_trials and None not in (self.bucket_bytes, self.all_reduce):
            raise ConflictError(
                "--tune-trials must have something to try but the bucket size and the all-reduce "
                "are given; leave one of the three out"
            )

    @property
    def num_gpus(self) -> int:
        """Number of GPUs. [items]

        Raises
        ------
        InputError
            When none was given.
        """
        if self.gpus is None:
            raise InputError("the number of GPUs must be given with a network; add --gpus")
        return self.gpus

    def completed(self, **values: object) -> Request:
        """The request, with these values for the fields that were not given."""
        missing: dict[str, Any] = {k: v for k, v in values.items() if getattr(self, k) is None}
        return replace(self, **missing)


def make_request(command: str, values: Mapping[str, object]) -> Request:
    """The request of a command.

    Parameters
    ----------
    command
        Which one: a key of `planner.request.inputs.COMMANDS`.
    values
        What was given, by the names of the inputs in Python; what is missing or None was not.

    Raises
    ------
    InputError
        When a value breaks the rule of its input.
    """
    fields: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for one in COMMANDS[command]:
        value = values.get(one.called)
        if one.part:
            usual = type(value) is type(one.default) and value == one.default
            if value is not None and not usual:
                parts.setdefault(one.part, {})[one.name] = value
        else:
            fields[one.name] = one.default if value is None else value
    for name, given in parts.items():
        if fields.get(name) is not None:
            raise ConflictError(
                f"{name} are given as a whole and one by one ({', '.join(given)}); leave one out"
            )
        fields[name] = _PARTS[name](**given)
    if "source" in fields and "inputs" in fields:
        fields |= _traced(fields["source"], fields["inputs"])
    return Request(**fields)


def _traced(source: object, inputs: object) -> dict[str, object]:
    """The network of a module or an ONNX file, without its inputs; nothing for other sources.

    Raises
    ------
    InputError
        When it cannot be traced, or inputs are given with something else.
    """
    none_given = inputs is None or (isinstance(inputs, tuple | list | dict) and not inputs)
    if is_onnx_file(source):
        from planner.models.onnx.network import network_of_onnx

        return {"source": network_of_onnx(cast("str", source), inputs), "inputs": ()}
    if is_reference(source) or callable(source):
        return {"source": network_of_source(source, inputs), "inputs": ()}
    if not none_given:
        raise ConflictError(
            "--input must be given for a PyTorch module or an ONNX file but the model is neither; "
            "leave it out, or name a module like my_package.my_module:build"
        )
    return {}

"""The raw runs behind Kahira et al. 2021 by simulation, their input pipeline included.

Every rank loads its own samples from files on the shared file system where samples are split over
all ranks (`native`); in spatial and filter parallelism a leader loads for the four GPUs of its host
and scatters (`staged`). From 128 hosts on, what a host reads in every epoch (154 GB of files over
all hosts) is about the 1 GiB that the file system keeps in memory by default, and runs on 256 hosts
read ten times as fast as the file system gives: samples then come from memory.

Both loaders and the storage stand in `costmodels.input_pipeline` with what they were taken from:
the rate of the staging process from ResNet-50 with spatial + data parallelism, files a second from
data-parallel AlexNet. The row at 64 samples a host and those on one GPU calibrate and enter no
error. Shown, but not counted: runs of one epoch with its start-up, code of 2019, slower repetitions
of a run, and collectives of early code (`benchmarks.published.kahira_raw` has the rules, which look
at measurements only).
"""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.runs import MeasuredRun, network
from benchmarks.accuracy.training_report import RowTable
from benchmarks.accuracy.training_steps import with_factor
from benchmarks.published.kahira import PER_HOST, run_of
from benchmarks.published.kahira_raw import RawRun, exclusions, read_raw_runs
from costmodels.errors import InputError
from costmodels.simulation import load_runtime
from costmodels.strategy.usual import single_stage
from planner.request.parts import Degrees, Loading
from planner.request.placement import PlacedNetwork, micro_graph, place_network
from planner.request.request import Request
from planner.request.setting import resolve
from planner.request.usual_strategies import Infeasible, strategy_distributions
from planner.simulation.run import simulate_placed

NAME = "ParaDL raw runs: ABCI"
# Bytes of a CosmoFlow sample: 512^3 positions of 4 channels, 4 bytes each.
_VOLUME = 512**3 * 4 * 4
# Everything is added up at once after the backward pass, as ChainerMN does.
_RUNTIME = load_runtime("ddp", bucket=math.inf, first_bucket=None, overlap=False)
_MICRO_BATCHES = 4


_RULES = ("a repetition is faster", "early collectives")
# Hosts from which on each reads no more than it keeps in memory.
_CACHED_HOSTS = 128


def _excluded(run: RawRun) -> str:
    if "early code" in run.era:
        return "early code of 2019"
    if "single epoch incl. start-up" in run.notes:
        return "one epoch with its start-up"
    return ""


def _calibrates(run: RawRun) -> bool:
    """Whether the run is what loaders were taken from, or the computation of a network."""
    if run.gpus == 1:
        return True
    staged = (run.model, run.strategy) == ("resnet50", "data+spatial")
    return staged and run.gpus == 8 and run.batch == 128


def subject_of(run: RawRun) -> PlacedNetwork:
    """What a run did."""
    if run.strategy == "pipeline":
        return place_network(
            Request(
                source=network(run.model),
                gpus=run.gpus,
                cluster="abci",
                global_batch_size=run.batch,
                precision="fp32",
                winograd=False,
                degrees=Degrees(pp=run.gpus, micro_batches=_MICRO_BATCHES, schedule="gpipe"),
            )
        )
    return _from_run(run_of(run.model, run.strategy, run.gpus, run.batch))


def _from_run(run: MeasuredRun) -> PlacedNetwork:
    assert isinstance(run.model, str)
    setting = resolve(
        Request(
            source=network(run.model),
            gpus=run.gpus,
            cluster=run.cluster,
            global_batch_size=run.batch,
            winograd=run.winograd,
            **run.options,
        )
    )
    shape = setting.machine.topology.shape
    if run.rule is not None:
        rows = run.rule(setting.graph, shape)
    else:
        found = strategy_distributions(
            setting.graph, run.strategy, shape, setting.cluster.host_index, run.degree
        )
        if isinstance(found, Infeasible):
            raise InputError(found.reason)
        rows = found
    return PlacedNetwork(
        setting=setting,
        graph=micro_graph(setting, 1),
        strategy=single_stage(rows, shape),
        name=run.strategy,
    )


def _loader(run: RawRun) -> Loading:
    """How the samples of a run come to its devices."""
    storage = "memory" if run.gpus >= _CACHED_HOSTS * PER_HOST else None
    if run.strategy == "data":
        return Loading(loader="native", storage=storage)
    if run.model.startswith("cosmoflow"):
        # the staging process by the bytes of a sample: 3/4 of it go to the other three devices
        return Loading(loader="staged", rate=126e6 / (0.75 * _VOLUME))
    return Loading(loader="staged", storage=storage)


def _factors(runs: list[RawRun]) -> dict[str, float]:
    """Factor on computation from the fastest run on one GPU; published profiles for the others."""
    from benchmarks.published.kahira import published_calibration

    factors = {}
    for model in dict.fromkeys(run.model for run in runs):
        single = [r for r in runs if r.model == model and r.gpus == 1 and not _excluded(r)]
        if not single:
            try:
                factors[model] = published_calibration(model)
            except KeyError:
                factors[model] = 1.0
            continue
        best = min(single, key=lambda r: r.seconds)
        subject, factor = subject_of(best), 1.0
        for _ in range(3):
            done = simulate_placed(with_factor(subject, factor), _RUNTIME, "simulate", 0.0, None)
            factor *= best.seconds / done.step_time
        factors[model] = factor
    return factors


def compare(path: Path) -> RowTable:
    """Every raw run beside its prediction."""
    runs = read_raw_runs(path)
    factors = _factors(runs)
    cells: list[Cell] = []
    known: dict[tuple[str, str, int, int], tuple[float, str]] = {}
    ruled = [r if r.startswith(_RULES) else "" for r in exclusions(runs)]
    for run, rule in zip(runs, ruled, strict=True):
        if run.key not in known:
            try:
                subject = with_factor(subject_of(run), factors[run.model])
                done = simulate_placed(subject, _RUNTIME, "simulate", 0.0, _loader(run))
                slow = done.step_time > 1.001 * done.computed
                known[run.key] = (done.step_time, "loading" if slow else "computing")
            except (InputError, ValueError) as error:
                known[run.key] = (math.nan, str(error).partition(";")[0])
        predicted, what = known[run.key]
        reason = _excluded(run) or rule
        if math.isnan(predicted):
            predicted, reason = run.seconds, f"cannot be run: {what}"
        cells.append(
            Cell(
                group=f"{run.model}, {run.gpus} GPUs, {run.batch} samples",
                label=f"{run.model}, {run.strategy}, {run.gpus} GPUs, {run.batch} samples ({what})",
                kind=run.strategy,
                gpus=run.gpus,
                measured=run.seconds,
                predicted=predicted,
                calibrating=_calibrates(run) and not reason,
                excluded=reason,
                ranked=not reason,
            )
        )
    factors_text = ", ".join(f"{name} {value:.3f}" for name, value in factors.items())
    return RowTable(
        name=NAME,
        cells=tuple(cells),
        notes=(
            f"Factors on computation: {factors_text}.",
            f"Pipelines: {PER_HOST} GPUs a host; {_MICRO_BATCHES} micro-batches are an assumption.",
        ),
    )

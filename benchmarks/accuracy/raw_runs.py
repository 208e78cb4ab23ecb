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

from pathlib import Path

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.row_report import RowTable
from benchmarks.accuracy.steps import (
    TIMELINE,
    Loading,
    MeasuredRun,
    simulated_step,
    simulation_input,
    timeline_step,
    with_factor,
)
from benchmarks.published.kahira import PER_HOST, abci_run, published_calibration
from benchmarks.published.kahira_raw import RawRun, exclusions, read_raw_runs
from costmodels.errors import InputError
from costmodels.simulation import load_runtime

NAME = "ParaDL raw runs: ABCI"
# Bytes of a CosmoFlow sample: 512^3 positions of 4 channels, 4 bytes each.
_VOLUME = 512**3 * 4 * 4
# Everything is added up at once after the backward pass, as ChainerMN does.
# buckets larger than all gradients together: one all-reduce
_RUNTIME = load_runtime("ddp", bucket=1e18, first_bucket=None, overlap=False)
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


def _described(run: RawRun) -> MeasuredRun:
    """What a run did."""
    if run.strategy == "pipeline":
        return MeasuredRun(
            model=run.model,
            cluster="abci",
            gpus=run.gpus,
            batch=run.batch,
            pipeline=("gpipe", _MICRO_BATCHES),
            options={"precision": "fp32"},
            winograd=False,
        )
    return abci_run(run.model, run.strategy, run.gpus, run.batch)


def _loader_of(run: RawRun) -> Loading:
    """How the samples of a run come to its devices."""
    storage = "memory" if run.gpus >= _CACHED_HOSTS * PER_HOST else None
    if run.strategy == "data":
        return Loading(loader="native", storage=storage)
    if run.model.startswith("cosmoflow"):
        # the staging process by the bytes of a sample: 3/4 of it go to the other three devices
        return Loading(loader="staged", rate=126e6 / (0.75 * _VOLUME))
    return Loading(loader="staged", storage=storage)


def _predicted(run: RawRun, factor: float, model: str) -> tuple[float, str]:
    """Time of a step, and what it waits for. [s]"""
    if model == TIMELINE:
        return timeline_step(_described(run), factor).total, "computing"
    subject = with_factor(simulation_input(_described(run)), factor)
    done = simulated_step(subject, _RUNTIME, model=model, loader=_loader_of(run))
    return done.step_time, "loading" if done.step_time > 1.001 * done.computed else "computing"


def _factor_alone(run: RawRun, model: str) -> float:
    """Factor on computation with which a run on one GPU takes as long as measured."""
    factor = 1.0
    for _ in range(3):
        if model == TIMELINE:
            found = timeline_step(_described(run), factor).total
        else:
            subject = with_factor(simulation_input(_described(run)), factor)
            found = simulated_step(subject, _RUNTIME, model=model).step_time
        factor *= run.seconds / found
    return factor


def _raw_factors(runs: list[RawRun], model: str) -> dict[str, float]:
    """Factor on computation from the fastest run on one GPU; published profiles for the others."""
    factors = {}
    for name in dict.fromkeys(run.model for run in runs):
        single = [r for r in runs if r.model == name and r.gpus == 1 and not _excluded(r)]
        if single:
            factors[name] = _factor_alone(min(single, key=lambda r: r.seconds), model)
            continue
        try:
            factors[name] = published_calibration(name)
        except KeyError:
            factors[name] = 1.0
    return factors


def compare_simulated(path: Path, model: str = "simulate") -> tuple[RowTable, dict[str, int]]:
    """Raw runs beside their predictions, and how many cannot be run for which reason.

    Parameters
    ----------
    path
        Such as `abci_raw_runs.csv`.
    model
        The step model.
    """
    runs = read_raw_runs(path)
    factors = _raw_factors(runs, model)
    cells: list[Cell] = []
    left: dict[str, int] = {}
    known: dict[tuple[str, str, int, int], tuple[float, str] | str] = {}
    ruled = [r if r.startswith(_RULES) else "" for r in exclusions(runs)]
    for run, rule in zip(runs, ruled, strict=True):
        if run.key not in known:
            try:
                known[run.key] = _predicted(run, factors[run.model], model)
            except (InputError, ValueError) as error:
                known[run.key] = f"cannot be run: {str(error).partition(';')[0]}"
        found = known[run.key]
        if isinstance(found, str):
            left[found] = left.get(found, 0) + 1
        else:
            cells.append(_raw_cell(run, found, _excluded(run) or rule))
    factors_text = ", ".join(f"{name} {value:.3f}" for name, value in factors.items())
    table = RowTable(
        name=NAME,
        cells=tuple(cells),
        notes=(
            f"Factors on computation: {factors_text}.",
            f"Pipelines: {PER_HOST} GPUs a host; {_MICRO_BATCHES} micro-batches are an assumption.",
        ),
    )
    return table, left


def _raw_cell(run: RawRun, found: tuple[float, str], reason: str) -> Cell:
    predicted, what = found
    return Cell(
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

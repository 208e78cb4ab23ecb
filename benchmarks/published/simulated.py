"""Runs of the papers, predicted by simulation under the runtime that they name."""

from __future__ import annotations

from benchmarks.accuracy.steps import (
    OVERLAP_FACTOR,
    Loading,
    MeasuredRun,
    Prediction,
    simulated_step,
    simulation_input,
    with_factor,
)
from costmodels.simulation import load_runtime


def simulated_prediction(
    run: MeasuredRun, factor: float = 1.0, loader: Loading | None = None
) -> Prediction:
    """Predict a run by simulation under its runtime.

    Parameters
    ----------
    run
        The run.
    factor
        What computation is multiplied by.
    loader
        How samples are loaded; None where they cost nothing.
    """
    subject = with_factor(simulation_input(run), factor)
    runtime = run.runtime or load_runtime("ddp")
    done = simulated_step(subject, runtime, overlap_factor=OVERLAP_FACTOR, loader=loader)
    assert done.simulated is not None
    compute = done.simulated.slowest.busy["compute"]
    return Prediction(
        total=done.step_time,
        compute=compute,
        update=0.0,
        communication=max(done.computed - compute - done.waiting - done.outside, 0.0),
        memory=done.peak_memory or 0.0,
        roofline=0.0,
    )

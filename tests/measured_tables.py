"""Tables as if measured: the shapes of data parallelism, at a ratio to the modelled time."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from costmodels.compute import Work
from costmodels.compute.table import COLUMNS
from costmodels.compute.work import DENSE_DIRECTIONS
from costmodels.layers.local_work import local_work, update_work
from planner.planning.prepare import formulate_given, usual_strategies
from planner.request.request import Request
from planner.request.setting import Setting, resolve
from planner.request.usual_strategies import Infeasible


def data_parallel_works(setting: Setting) -> Iterator[Work]:
    """The local work of every layer under data parallelism, pass by pass."""
    usual = usual_strategies(setting)
    rows = usual["data"]
    assert not isinstance(rows, Infeasible)
    formulation = formulate_given(setting, rows, usual)
    for layer, choice in zip(formulation.layers, formulation.choices(rows), strict=True):
        space = formulation.spaces[layer.name]
        one = space.candidates.take(np.array([choice]))
        for direction in DENSE_DIRECTIONS:
            yield from local_work(space.layer, one, direction)
        if layer.parameters:
            parameters = np.array([float(layer.parameters)])
            yield update_work(parameters, setting.machine.training.optimizer)


def measured_table(
    path: Path, request: Request, ratio: Callable[[int, Work], float | None]
) -> Path:
    """A table of the shapes of data parallelism.

    Parameters
    ----------
    path
        Where to.
    request
        The network and machine.
    ratio
        Measured time as a multiple of the modelled one for the number of a shape and its work,
        None where it was not measured.
    """
    setting = resolve(request)
    compute = setting.machine.compute
    seen: dict[tuple[str, ...], None] = {}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for work in data_parallel_works(setting):
            cells = shape_cells(work, compute.precision)
            if cells in seen:
                continue
            factor = ratio(len(seen), work)
            seen[cells] = None
            if factor is not None:
                seconds = float(compute.time(work)[0][0]) * factor
                writer.writerow([*cells, repr(seconds)])
    return path


def shape_cells(work: Work, precision: str) -> tuple[str, ...]:
    """The columns of a table for a work, but for the seconds."""

    def whole(value: object) -> str:
        return str(int(np.atleast_1d(np.asarray(value))[0]))

    def joined(values: tuple[object, ...]) -> str:
        return "x".join(map(whole, values))

    return (
        work.operation,
        work.direction,
        precision,
        *(whole(value) for value in (work.samples, work.channels, work.filters)),
        *(joined(v) for v in (work.in_extents, work.out_extents, work.kernel, work.stride)),
        whole(work.groups),
    )

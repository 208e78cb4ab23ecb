"""Writes the local shapes that planning some networks asks the time of, for `measure_device`.

    python -m benchmarks.measure_shapes SHAPES.csv [--model resnet50 ...] [--cluster dgx-h200]
        [--gpus 8 --gpus 64] [--batch-per-gpu 32]

They are the distinct shapes of all candidates of all layers, in the order in which they are met,
of the operations that can be measured. Shapes that no library runs, such as a split that leaves a
part of a group of filters, are counted and left out.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.device.measure import cells_of
from benchmarks.device.passes import OPERATIONS, Shape
from costmodels.compute import Work
from costmodels.compute.work import DENSE_DIRECTIONS
from costmodels.errors import InputError
from costmodels.layers.local_work import local_work
from planner.planning.options import SearchOptions
from planner.planning.prepare import prepare
from planner.planning.space.formulate import Formulation
from planner.request.request import Request
from planner.request.setting import resolve


def works(formulation: Formulation) -> Iterator[Work]:
    """The local work of all candidates of every distinct layer, pass by pass."""
    spaces = {id(space): space for space in formulation.spaces.values()}
    for space in spaces.values():
        for direction in DENSE_DIRECTIONS:
            yield from local_work(space.layer, space.candidates, direction)


def shapes_of(work: Work) -> tuple[list[Shape], int]:
    """Distinct shapes of a work, and how many others cannot be run."""
    columns = (work.samples, work.channels, work.filters, work.groups)
    extents = (*work.in_extents, *work.out_extents)
    table = np.stack(np.broadcast_arrays(*(np.atleast_1d(c) for c in (*columns, *extents))), axis=1)
    found, count, refused = [], len(work.in_extents), 0
    for cells in np.unique(table[(table > 0).all(axis=1)].astype(int), axis=0).tolist():
        samples, channels, filters, groups, *rest = cells
        try:
            shape = Shape(
                operation=work.operation,
                samples=samples,
                channels=channels,
                filters=filters,
                in_extents=tuple(rest[:count]),
                out_extents=tuple(rest[count:]),
                kernel=work.kernel,
                stride=work.stride,
                groups=groups,
            )
        except ValueError:
            refused += 1
        else:
            found.append(shape)
    return found, refused


def distinct(all_works: Iterable[Work]) -> tuple[list[Shape], int]:
    """Distinct shapes that can be measured, and how many of the candidates' others cannot."""
    found: dict[Shape, None] = {}
    refused = 0
    for work in all_works:
        if work.operation in OPERATIONS:
            shapes, more = shapes_of(work)
            found.update(dict.fromkeys(shapes))
            refused += more
    return list(found), refused


def write_shapes(path: Path, shapes: Iterable[Shape]) -> None:
    """Write the shapes as the CSV file that `measure_device` reads."""
    rows = [cells_of(shape) for shape in shapes]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Write the shapes of the networks named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", type=Path)
    parser.add_argument("--model", nargs="+", action="extend")
    parser.add_argument("--cluster", default="dgx-h200")
    parser.add_argument("--gpus", type=int, action="append")
    parser.add_argument("--batch-per-gpu", type=int, default=32)
    arguments = parser.parse_args()

    def all_works() -> Iterator[Work]:
        for model in arguments.model or ["resnet50"]:
            for gpus in arguments.gpus or [8, 64]:
                batch = gpus * arguments.batch_per_gpu
                setting = resolve(
                    Request(
                        source=model, gpus=gpus, cluster=arguments.cluster, global_batch_size=batch
                    )
                )
                yield from works(prepare(setting, SearchOptions()).formulation)

    try:
        shapes, refused = distinct(all_works())
    except InputError as error:
        sys.exit(str(error))
    if not shapes:
        sys.exit("the networks have no shape that can be measured; name other networks")
    write_shapes(arguments.shapes, shapes)
    counts = Counter(shape.operation for shape in shapes)
    parts = ", ".join(f"{name} {counts[name]}" for name in OPERATIONS if counts[name])
    print(f"{len(shapes)} shapes written to {arguments.shapes} ({parts}); {refused} left out")


if __name__ == "__main__":
    main()

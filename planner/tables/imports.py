"""Reads measured tables of public forms and writes them as one of the planner's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from costmodels.compute.table import COLLECTIVE_COLUMNS, COLUMNS, FORMAT, CostTable
from costmodels.errors import InputError, plain
from planner.tables.aiconfigurator import read_aiconfigurator
from planner.tables.found import Found
from planner.tables.kernels import read_deepbench, read_neusight
from planner.tables.nccl_tests import read_nccl_tests

READERS: Final[Mapping[str, Callable[[str], list[Found]]]] = {
    "aiconfigurator": read_aiconfigurator,
    "nccl-tests": read_nccl_tests,
    "neusight": read_neusight,
    "deepbench": read_deepbench,
}
"""How to read each public form."""


class ImportedTable(Struct, frozen=True, kw_only=True):
    """The text of a table, and what of the file it lacks."""

    device: str
    text: str
    num_times: int
    num_collectives: int
    left_out: Mapping[str, int] = field(default_factory=dict)


def import_table(form: str, path: str | os.PathLike[str], *, gpu: str = "") -> ImportedTable:
    """A table of one device from a file or folder of a public form.

    Parameters
    ----------
    form
        One of `READERS`.
    path
        The file; for aiconfigurator also the folder of a system.
    gpu
        Text that the name of the device contains, where the file has several.

    Raises
    ------
    InputError
        When it is not of that form, the device is not told, or no table may state its figures.
    """
    path = os.fspath(path)
    found = READERS[form](path)
    chosen = [one for one in found if gpu.lower() in one.device.lower()]
    if len(chosen) != 1:
        names = ", ".join(one.device for one in chosen or found)
        raise InputError.rule(
            f"the GPU of {plain(path)}",
            "be one, since a table is of one device",
            f"{len(chosen)} that match '{gpu}'" if gpu else f"{len(chosen)}",
            f"name one with --gpu: {names}",
        )
    (one,) = chosen
    if not one.rows and not one.collectives:
        reasons = ", ".join(one.left_out) or "the file is empty"
        raise InputError(
            f"{plain(path)} must hold times of layers or collectives but none can be used: "
            f"{reasons}; give another file"
        )
    document = {
        "format": FORMAT,
        "provenance": {
            "device": one.device,
            **one.provenance,
            "source": f"{form}, {plain(os.path.basename(os.path.normpath(path)))}",
        },
        "columns": [*COLUMNS, "visible"],
        "rows": one.rows,
        "collectives": {"columns": list(COLLECTIVE_COLUMNS), "rows": one.collectives},
    }
    text = json.dumps(document, separators=(",", ":")) + "\n"
    CostTable.of_text(text, f"what {plain(path)} holds as a table")
    return ImportedTable(
        device=one.device,
        text=text,
        num_times=len(one.rows),
        num_collectives=len(one.collectives),
        left_out=one.left_out,
    )

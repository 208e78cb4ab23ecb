"""What nvidia-smi says of the GPUs of this host: their names, and how they are joined.

`nvidia-smi topo -m` prints a matrix of GPUs and network adapters: NV4 between two GPUs are four
NVLinks, straight or through a switch; PIX, PXB, PHB, NODE and SYS are ever longer ways over PCIe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, field

from costmodels.errors import printable

QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,pcie.link.gen.max",
    "--format=csv,noheader,nounits",
)
TOPOLOGY = ("nvidia-smi", "topo", "-m")

# Names of built-in devices by what nvidia-smi calls them; the first that is found counts. Where the
# memory tells devices apart it is given, in GiB.
_NAMES: Sequence[tuple[str, str, float | None]] = (
    (r"GB200", "b200-nvl72", None),
    (r"B200", "b200", None),
    (r"H200", "h200", None),
    (r"H100 (PCIe|NVL)", "h100-pcie", None),
    (r"H100|H800", "h100", None),
    (r"A100.*40GB|A100-SXM4-40|A100-PCIE-40", "a100-40gb", None),
    (r"A100", "a100-80gb", 60.0),
    (r"A100", "a100-40gb", None),
    (r"V100.*32GB", "v100-32gb", None),
    (r"V100", "v100-32gb", 20.0),
    (r"V100", "v100-16gb", None),
    (r"RTX 6000 Ada", "rtx6000-ada", None),
    (r"L40S", "l40s", None),
    (r"\bL4\b", "l4", None),
    (r"RTX A6000", "a6000", None),
    (r"RTX A5000", "a5000", None),
    (r"\bA40\b", "a40", None),
    (r"\bA30\b", "a30", None),
    (r"\bA10\b", "a10", None),
    (r"\bT4\b", "t4", None),
    (r"RTX 8000", "rtx8000", None),
    (r"RTX 4090(?! (D|Laptop))", "4090", None),
    (r"RTX 3090(?! Ti)", "3090", None),
    (r"RTX 3080(?! (Ti|Laptop))", "3080", None),
    (r"RTX 3070(?! (Ti|Laptop))", "3070", None),
    (r"RTX 2080 Super with Max-Q", "2080-super-max-q", None),
    (r"RTX 2080 with Max-Q", "2080-max-q", None),
    (r"RTX 2080 Ti", "2080ti", None),
    (r"RTX 2080(?! Super)", "2080", None),
    (r"RTX 2070 with Max-Q", "2070-max-q", None),
    (r"RTX 2070(?! Super)", "2070", None),
    (r"GTX 1080 Ti", "1080ti", None),
    (r"GTX 1080", "1080", None),
    (r"TITAN V", "titanv", None),
    (r"TITAN Xp", "titanxp", None),
    (r"P100", "p100", None),
    (r"M60", "m60", None),
    (r"K80", "k80", None),
)
_LINKS = re.compile(r"NV(\d{1,3})", re.ASCII)
_WAYS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
_ADAPTER = re.compile(r"(?:mlx\d+_\w+|NIC\d+|hfi\w+|ib\w*\d+|rdma\w*|efa\w*)")


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as `QUERY` prints it; memory in GiB, None for what is not told."""

    name: str
    memory: float | None
    pcie: int | None


class Wiring(Struct, frozen=True, kw_only=True):
    """How the GPUs of a host are joined.

    Parameters
    ----------
    links
        NVLinks between every two GPUs, 0 where there are none. [items]
    across
        Whether the way between some two crosses sockets.
    adapters
        Network adapters. [items]
    """

    links: tuple[tuple[int, ...], ...] = ()
    across: bool = False
    adapters: tuple[str, ...] = field(default=())


def read_gpus(text: str) -> list[Gpu]:
    """GPUs as `QUERY` prints them; lines of another form are left out."""
    found = []
    for line in printable(text).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0]:
            name, memory, pcie = cells
            known = re.fullmatch(r"\d{1,9}(?:\.\d+)?", memory, re.ASCII)
            found.append(
                Gpu(
                    name=name,
                    memory=float(memory) / 1024 if known else None,
                    pcie=int(pcie) if re.fullmatch(r"\d", pcie, re.ASCII) else None,
                )
            )
    return found


def read_topology(text: str) -> Wiring:
    """The matrix of `TOPOLOGY`; nothing where it is of another form."""
    plain_text = re.sub(r"\x1b\[[\d;]*m", "", text)
    lines = [line.split() for line in printable(plain_text).splitlines()]
    head = next((cells for cells in lines if cells and cells[0] == "GPU0"), None)
    if head is None:
        return Wiring()
    gpus = [cell for cell in head if re.fullmatch(r"GPU\d+", cell, re.ASCII)]
    adapters = tuple(cell for cell in head if _ADAPTER.fullmatch(cell))
    matrix, across = [], False
    for number in range(len(gpus)):
        # the head names the columns and begins with one, too, but not with an entry behind it
        row = next((c for c in lines if c and c[0] == f"GPU{number}" and c is not head), None)
        cells = row[1 : len(gpus) + 1] if row else []
        if len(cells) < len(gpus) or not all(_LINKS.fullmatch(c) or c in _WAYS for c in cells):
            return Wiring(adapters=adapters)
        matrix.append(tuple(int(m[1]) if (m := _LINKS.fullmatch(c)) else 0 for c in cells))
        across |= "SYS" in cells
    return Wiring(links=tuple(matrix), across=across, adapters=adapters)


def built_in_device(name: str, memory: float | None = None) -> str | None:
    """The built-in device that a GPU is, None where it is none of them.

    Parameters
    ----------
    name
        What nvidia-smi, or SLURM, calls it.
    memory
        Its memory, where that is told. [GiB]
    """
    for pattern, device, least in _NAMES:
        if re.search(pattern, name, re.IGNORECASE) and (least is None or (memory or 0.0) >= least):
            return device
    return None

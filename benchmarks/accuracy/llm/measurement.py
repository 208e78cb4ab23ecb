"""What a measured row of transformer training says: what ran, and what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.llm.machines import BusBandwidths
from benchmarks.accuracy.machines import read_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A transformer as a row describes it; 0 where it does not. [items]"""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    experts: int = 0
    top_k: int = 0
    tied: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What was trained, how and on what: everything that a prediction depends on.

    Parameters
    ----------
    sizes
        The transformer.
    framework
        The name of its entry in `data/llm.toml`.
    gpu, gpus, per_host
        Devices, how many, and how many a host. [items]
    links
        Words on links between hosts.
    measured_links
        Bus bandwidths that the row measured apart from the step, None where it has none.
    fastest_links
        The largest of them of all rows on the same hosts.
    tp, pp, dp, cp, ep, chunks
        Ways of each kind of parallelism; chunks of interleaved stages. [ways]
    zero, fsdp
        Stage of ZeRO, and over how many devices FSDP cuts weights, 0 for none. [ways]
    micro_batch, global_batch
        Sequences. [items]
    recompute
        "none", "selective", "full", or the number of blocks.
    precision, sequence_parallel
        As the row, or else the framework, has it.
    """

    sizes: Sizes
    framework: str
    gpu: str
    gpus: int
    per_host: int
    links: str
    measured_links: BusBandwidths | None
    fastest_links: BusBandwidths | None = None
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    chunks: int
    zero: int
    fsdp: int
    micro_batch: int
    global_batch: int
    recompute: str
    precision: str
    sequence_parallel: bool

    @property
    def label(self) -> str:
        """For people."""
        ways = {"tp": self.tp, "pp": self.pp, "dp": self.dp, "cp": self.cp, "ep": self.ep}
        parts = [f"{name} {n}" for name, n in ways.items() if n > 1 or name in ("tp", "pp", "dp")]
        parts += [f"chunks {self.chunks}"] if self.chunks > 1 else []
        parts += [f"zero {self.zero}"] if self.zero else []
        parts += [f"fsdp {self.fsdp}"] if self.fsdp else []
        parts.append(f"micro {self.micro_batch} of {self.global_batch}")
        parts.append(f"recompute {self.recompute}") if self.recompute != "none" else None
        return f"{self.sizes.name}, {self.gpus} x {self.gpu}: {' '.join(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a row measured of a configuration; None where it did not.

    Parameters
    ----------
    source
        Rows that are summed up together.
    workload
        Rows whose steps may be ranked against each other have the same.
    configuration
        What ran.
    seconds
        A step. [s]
    flop_rate
        FLOP/s of a GPU instead of the time, and whether recomputation is counted. [FLOP/s]
    memory, whole_device
        Peak of a device, and whether that counts what is outside of the framework's allocator. [B]
    of_first
        Whether it is a device of the first stage, instead of the one that holds most.
    fits
        Whether it ran out of memory.
    doubt
        Why the row is shown but not counted; empty where it is.
    """

    source: str
    workload: tuple[object, ...]
    configuration: Configuration
    seconds: float | None = None
    flop_rate: tuple[float, bool] | None = None
    memory: float | None = None
    whole_device: bool = False
    of_first: bool = False
    fits: bool | None = None
    doubt: str = ""


def framework_entry(of: Configuration) -> Mapping[str, Any]:
    """The entry of `data/llm.toml` on how a configuration was trained."""
    entries: list[dict[str, Any]] = read_words("llm")["frameworks"]
    return next(entry for entry in entries if entry["words"] == of.framework)

"""Published ways to train transformers, each as the question it answers and what its authors do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.request.parts import Degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A question, and how others train it.

    Parameters
    ----------
    source
        Who does.
    model, gpus, batch
        The network, devices, and sequences of a step.
    degrees
        What they do.
    cluster, more
        The machine, and other inputs of the question.
    """

    source: str
    model: str
    gpus: int
    batch: int
    degrees: Degrees
    cluster: str = "dgx-a100"
    more: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.source}: {self.model} on {self.gpus}, batch {self.batch}"

    @property
    def asked(self) -> dict[str, object]:
        """The question."""
        return {
            "model": self.model,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "global_batch_size": self.batch,
            "precision": "bf16",
            "optimizer": "adam",
            **self.more,
        }


def _megatron(tp: int, pp: int, chunks: int = 1, micro_batch_size: int = 1) -> Degrees:
    """Megatron-LM of 2021: everything is computed again (Narayanan et al. 2021, section 3.5)."""
    return Degrees(
        tp=tp,
        pp=pp,
        chunks=chunks,
        micro_batch_size=micro_batch_size,
        recompute="full",
    )


def _selective(degrees: Degrees, zero: int | None = None) -> Degrees:
    """Sequence parallelism, and attention computed again (Korthikanti et al. 2022)."""
    return replace(degrees, sequence_parallel=True, recompute="selective", zero=zero)


def _llama3(dp: int, cp: int = 1) -> Degrees:
    """Llama Team 2024, section 3.3.2: optimizer state and gradients cut, unequal end stages."""
    return Degrees(
        tp=8,
        pp=16,
        cp=cp,
        dp=dp,
        sequence_parallel=True,
        zero=2,
        micro_batch_size=1,
        stage_blocks=(7, *[8] * 14, 7),
    )


def _titan(recompute: str, micro_batch_size: int) -> Degrees:
    return Degrees(fsdp=True, recompute=recompute, micro_batch_size=micro_batch_size)


# What the exhaustive search of Calculon (Isaev et al. 2023) picks without offload.
CALCULON = (
    Published(
        source="calculon",
        model="gpt3-175b",
        gpus=64,
        batch=64,
        degrees=_selective(_megatron(8, 4, 12), zero=1),
    ),
    Published(
        source="calculon",
        model="gpt3-175b",
        gpus=256,
        batch=256,
        degrees=_selective(_megatron(8, 2, 16), zero=1),
    ),
    Published(
        source="calculon",
        model="gpt3-175b",
        gpus=1024,
        batch=1024,
        degrees=_selective(_megatron(8, 4, 12), zero=1),
    ),
)
_LONG: dict[str, object] = {"input_size": 131072}
_SHORT: dict[str, object] = {"input_size": 8192}
_GRAND_TETON: dict[str, object] = {"input_size": 8192, "memory": "96 GB"}
_LLAMA2: dict[str, object] = {"input_size": 4096}
PUBLISHED = (
    # Narayanan et al. 2021, Table 1, with the sizes of examples/academic_paper_scripts/sc21
    *(
        Published(source="megatron", model=model, gpus=gpus, batch=batch, degrees=degrees)
        for model, gpus, batch, degrees in (
            ("megatron-1.7b", 32, 512, _megatron(1, 1, 1, 16)),
            ("megatron-7.5b", 128, 512, _megatron(4, 1, 1, 16)),
            ("megatron-39.1b", 512, 1536, _megatron(8, 2, 1, 4)),
            ("megatron-145.6b", 1536, 2304, _megatron(8, 8, 2, 2)),
            ("megatron-529.6b", 2520, 2520, _megatron(8, 35, 3, 1)),
            # Korthikanti et al. 2022, Table 5
            ("gpt3-175b", 64, 64, _selective(_megatron(8, 8, 3))),
            ("megatron-529.6b", 280, 280, _selective(_megatron(8, 35, 3))),
            ("megatron-1t", 512, 512, _selective(_megatron(8, 64))),
        )
    ),
    # Llama Team 2024, Table 4
    *(
        Published(
            source="llama 3",
            model="llama3-405b",
            gpus=gpus,
            batch=batch,
            degrees=degrees,
            cluster="dgx-h100",
            more=more,
        )
        for gpus, batch, degrees, more in (
            (8192, 2048, _llama3(64), _SHORT),
            (16384, 2048, _llama3(128), _SHORT),
            (16384, 128, _llama3(8, cp=16), _LONG),
        )
    ),
    # pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md and docs/performance.md
    *(
        Published(
            source="torchtitan",
            model=model,
            gpus=gpus,
            batch=batch,
            degrees=degrees,
            cluster=cluster,
            more=more,
        )
        for model, gpus, batch, degrees, cluster, more in (
            ("llama3-8b", 8, 16, _titan("operations", 2), "dgx-h100", _GRAND_TETON),
            ("llama3-8b", 128, 256, _titan("operations", 2), "dgx-h100", _GRAND_TETON),
            ("llama2-13b", 64, 128, _titan("none", 2), "dgx-a100", _LLAMA2),
            ("llama2-70b", 64, 64, _titan("operations", 1), "dgx-a100", _LLAMA2),
            ("llama2-70b", 64, 128, _titan("full", 2), "dgx-a100", _LLAMA2),
        )
    ),
)

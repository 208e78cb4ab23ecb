"""Steps of whole networks on one GPU: predicted from a profile of it, then run.

The shapes that a step computes are profiled (`planner profile` does the same), the step and its
peak memory are predicted by `planner.evaluate` on one GPU, and the module that was traced for that
is run, so that both are the very same layers.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.measure.scores import mean_relative_error
from costmodels.cluster import Cluster, load_cluster
from costmodels.compute import CostTable
from costmodels.errors import InputError
from planner.planning.evaluate import evaluate_request
from planner.request.machine import detect_cluster
from planner.request.request import Request
from planner.tables.profile.place import find_place
from planner.tables.profile.run import profile_question
from planner.tables.profile.store import open_profile
from planner.torch.source import network_of_source

_WARM_UP: Final = 5
_STEPS: Final = 20
AIM: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCase:
    """One step on one GPU.

    Parameters
    ----------
    name, batch, precision
        What is run, with how many samples, in which precision.
    build
        Makes the module.
    inputs
        Makes what it reads.
    """

    name: str
    batch: int
    precision: str
    build: Callable[[], Any]
    inputs: Callable[[int], Any]


def cases() -> Iterator[GpuCase]:
    """ResNet-50, VGG-16, GPT-2 XL and blocks of Llama at several batches."""
    import torch

    from benchmarks.measure.modules import gpt_xl, llama_blocks, resnet50, vgg16

    def images(batch: int) -> Any:
        return torch.randn(batch, 3, 224, 224)

    def tokens(batch: int) -> Any:
        return torch.randint(0, 32000, (batch, 1024))

    for batch in (16, 64, 128):
        yield GpuCase(name="resnet50", batch=batch, precision="tf32", build=resnet50, inputs=images)
        yield GpuCase(name="vgg16", batch=batch, precision="tf32", build=vgg16, inputs=images)
    for batch in (1, 2, 4):
        yield GpuCase(name="gpt2-xl", batch=batch, precision="bf16", build=gpt_xl, inputs=tokens)
        yield GpuCase(
            name="llama", batch=batch, precision="bf16", build=llama_blocks, inputs=tokens
        )


def measured_step(case: GpuCase) -> tuple[float, float]:
    """Seconds and peak bytes of a step on the GPU. [s], [B]"""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    module = case.build().to("cuda", dtype)
    inputs = case.inputs(case.batch).to("cuda")
    inputs = inputs if inputs.dtype == torch.int64 else inputs.to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6, momentum=0.9)

    for _ in range(_WARM_UP):
        _step(module, inputs, optimizer)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(_STEPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        _step(module, inputs, optimizer)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    peak = torch.cuda.max_memory_reserved()
    del module, optimizer, inputs
    torch.cuda.empty_cache()
    return statistics.median(times), float(peak)


def _step(module: Any, inputs: Any, optimizer: Any) -> None:
    import torch

    outputs = module(inputs)
    rows = outputs.reshape(-1, outputs.shape[-1])
    target = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    torch.nn.functional.cross_entropy(rows, target).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def predicted_step(case: GpuCase, cluster: Cluster, folder: Path) -> tuple[float, float]:
    """Seconds and peak bytes of a step as the planner predicts them from a profile. [s], [B]

    Parameters
    ----------
    case, cluster
        What is run, and where.
    folder
        Where the profile is kept.
    """
    request = Request(
        source=network_of_source(case.build, (case.inputs(case.batch),)),
        gpus=1,
        cluster=cluster,
        global_batch_size=case.batch,
        precision=case.precision,
        optimizer="sgd",
    )
    place = find_place("cuda")
    profile = open_profile(str(folder / "gpu.json"), place.provenance)
    profile_question(request, profile, place, lambda text: None)
    table = CostTable.of_text(profile.text(), "gpu.json")
    plan = evaluate_request(
        Request(
            source=request.source,
            gpus=1,
            cluster=cluster,
            global_batch_size=case.batch,
            precision=case.precision,
            optimizer="sgd",
            strategy="data",
            tables=(table,),
        )
    )
    memory = sum(plan.memory_bytes.values()) - cluster.device.reserved_memory
    return plan.step_time, memory


def measure_gpu(folder: str | None) -> int:
    """Print all steps; 0 where the mean errors keep the aim.

    Parameters
    ----------
    folder
        Where the profile is kept, None for nowhere.
    """
    try:
        find_place("cuda")
        cluster = detect_cluster().cluster
    except InputError as error:
        print(error)
        return 2
    cluster = load_cluster("dgx-h100") if cluster.device.name == "h100" else cluster
    times, peaks = [], []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(folder or temporary)
        place.mkdir(parents=True, exist_ok=True)
        for case in cases():
            said, held = predicted_step(case, cluster, place)
            seconds, peak = measured_step(case)
            times.append((said, seconds))
            peaks.append((held, peak))
            print(
                f"{case.name:10s} {case.batch:4d} {case.precision:5s} step {said * 1e3:8.2f} of "
                f"{seconds * 1e3:8.2f} ms ({said / seconds - 1:+.1%}), peak {held / 2**30:6.2f} of "
                f"{peak / 2**30:6.2f} GiB ({held / peak - 1:+.1%})"
            )
    step, peak = mean_relative_error(times), mean_relative_error(peaks)
    print(f"mean error of a step {step:.1%}, of its peak {peak:.1%} (aim: at most {AIM:.0%})")
    return 0 if max(step, peak) <= AIM else 1

"""The device that is measured: that it is there, what it is called, and how it is timed."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct

from costmodels.errors import InputError, printable
from planner.tables.profile.timing import Batch, batch_by_clock, batch_by_events

DEVICES = ("cpu", "cuda")
# Devices compute the first seconds up to a third slower, until clocks and caches have settled. [s]
WARM_UP_SECONDS = 2.0
_SIZE = 256
# What must be the same for times to stand in one table.
SAME = ("device", "host", "software", "threads", "clock")


class MeasuredPlace(Struct, frozen=True, kw_only=True):
    """A device of this machine.

    Parameters
    ----------
    device
        "cpu" or "cuda".
    batch
        Times a call on it.
    provenance
        What a table says of it.
    """

    device: str
    batch: Batch
    provenance: Mapping[str, str]

    @property
    def name(self) -> str:
        """What the device is called."""
        return self.provenance["device"]


def find_place(
    device: str, threads: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> MeasuredPlace:
    """The device to measure.

    Parameters
    ----------
    device
        "cpu" or "cuda".
    threads
        Threads of a CPU, None for those that PyTorch takes. [items]
    clock
        Times a CPU: the wall clock, or the time that the process computes. [s]

    Raises
    ------
    InputError
        When PyTorch or the device is missing.
    """
    try:
        import torch
    except ImportError:
        raise InputError(
            "measuring needs PyTorch, which is not installed; pip install torch==2.13.0"
        ) from None
    if device not in DEVICES:
        raise InputError.rule(
            "the device to measure (--device)", "be cpu or cuda", f"'{device}'", "name one"
        )
    if device == "cuda":
        if threads is not None:
            raise InputError("--threads are those of a CPU; leave it out, or measure --device cpu")
        return _gpu()
    if threads is not None:
        if threads < 1:
            raise InputError.rule("the threads (--threads)", "be at least 1", threads, "raise it")
        torch.set_num_threads(threads)
    name = _processor()
    wall = clock is time.perf_counter
    return MeasuredPlace(
        device="cpu",
        batch=batch_by_clock if wall else partial(batch_by_clock, clock=clock),
        provenance={
            "device": f"CPU {name}",
            **_host(),
            "software": f"PyTorch {torch.__version__}",
            "threads": str(torch.get_num_threads()),
            "clock": "wall clock" if wall else "processor time",
        },
    )


def _gpu() -> MeasuredPlace:
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            "measuring needs a CUDA device but PyTorch sees none; run it on a machine with a GPU "
            "and a CUDA build of PyTorch, or give --device cpu"
        )
    # the library may search for its best convolution first, as it does in training
    torch.backends.cudnn.benchmark = True
    software = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    return MeasuredPlace(
        device="cuda",
        batch=batch_by_events,
        provenance={
            "device": torch.cuda.get_device_name(),
            **_host(),
            "software": f"{software}, cuDNN {torch.backends.cudnn.version()}",
            "clock": "CUDA events, cudnn.benchmark on",
        },
    )


def _host() -> dict[str, str]:
    return {"host": printable(socket.gethostname()), "date": datetime.now(UTC).date().isoformat()}


def _processor() -> str:
    """The model of the processor, as Linux tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return printable(line.partition(":")[2].strip())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def check_precision(place: MeasuredPlace, precision: str) -> None:
    """Refuse a precision that the device does not compute in.

    Raises
    ------
    InputError
        When it is TF32, and the device a CPU.
    """
    if place.device == "cpu" and precision == "tf32":
        raise InputError(
            "a CPU must be measured in fp32, bf16 or fp16, not in tf32; choose another --precision"
        )


def use_precision(precision: str) -> object:
    """Set up PyTorch for a precision, and return its type of activations."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def free_memory(place: MeasuredPlace) -> None:
    """Give back what the allocator keeps, so that the next shape has all of the memory."""
    if place.device == "cuda":
        import torch

        torch.cuda.empty_cache()


def warm_up(place: MeasuredPlace, seconds: float = WARM_UP_SECONDS) -> None:
    """Keep a device busy before anything is measured on it.

    Parameters
    ----------
    place
        The device.
    seconds
        How long. [s]
    """
    import torch

    end = time.monotonic() + seconds
    matrix = torch.ones(_SIZE, _SIZE, device=place.device)
    while time.monotonic() < end:
        (matrix @ matrix).sum().item()  # waits for the device

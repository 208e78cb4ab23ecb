"""Which workers there are: kinds of GPUs with their proportion, and numbers of workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from costmodels.cluster import Device, list_devices, load_device
from costmodels.errors import InputError
from planner.request.inputs.counts import parse_counts

MAX_WORKERS = 10_000


class Mix(Struct, frozen=True, kw_only=True):
    """Kinds of workers.

    Parameters
    ----------
    devices
        Names of their built-in devices.
    parts
        Workers of each kind in the smallest group that keeps the proportion. [items]
    total
        Workers that were asked for with the kinds; None if only kinds were. [items]
    notes
        What was chosen, in sentences.
    """

    devices: tuple[str, ...]
    parts: tuple[int, ...]
    total: int | None
    notes: tuple[str, ...]

    @property
    def unit(self) -> int:
        """Workers of the smallest group. [items]"""
        return sum(self.parts)

    def counts(self, workers: int) -> tuple[int, ...]:
        """Workers of each kind. [items]"""
        return tuple(part * (workers // self.unit) for part in self.parts)


def find_device(name: str) -> tuple[str, str]:
    """The built-in device that a name stands for, and what to say about it.

    A name that begins the names of several devices means the one with least memory if memory is
    all they differ in, since throughput does not depend on it.

    Raises
    ------
    InputError
        When there is no such device, or several that differ.
    """
    known = list_devices()
    if name in known:
        return name, ""
    found = [load_device(one) for one in known if name and one.startswith(name.lower())]
    if not found:
        load_device(name)  # raises, and names what comes close
    if len({_device_speed(one) for one in found}) > 1:
        raise InputError(
            f"the device '{name}' must name one device but begins the names of several that differ "
            f"in speed; use one of {', '.join(one.name for one in found)}"
        )
    chosen = min(found, key=lambda one: one.memory).name
    if len(found) == 1:
        return chosen, ""
    others = ", ".join(one.name for one in found if one.name != chosen)
    return chosen, f"device {chosen} for '{name}'; {others} differs in memory only"


def _device_speed(device: Device) -> tuple[object, ...]:
    rates = tuple(sorted(device.peak_flops.items()))
    return rates, device.memory_bandwidth, device.num_sms, device.kernel_latency


def parse_mix(text: str) -> Mix:
    """Kinds of workers from "v100" or "v100:4,t4:2".

    Raises
    ------
    InputError
        When a device is unknown or comes twice, or a number is none.
    """
    names, numbers, notes = [], [], []
    pieces = [piece.strip() for piece in text.split(",")]
    for piece in pieces:
        name, colon, number = (part.strip() for part in piece.partition(":"))
        if colon and not (number.isdecimal() and int(number) >= 1):
            raise InputError.rule(
                f"the number of workers with a {name}",
                "be a whole number of at least 1",
                f"'{number}'",
                "write it like v100:4,t4:2",
            )
        if not colon and len(pieces) > 1:
            raise InputError(
                f"each of several kinds of workers must come with its number but {name} has none; "
                "write it like v100:4,t4:2"
            )
        device, note = find_device(name)
        if device in names:
            raise InputError(
                f"each kind of workers must be named once but {device} is named twice; add its "
                "numbers"
            )
        names.append(device)
        numbers.append(int(number) if colon else 1)
        notes += [note] if note else []
    total = sum(numbers) if ":" in text else None
    if total is not None and total > MAX_WORKERS:
        raise InputError(
            f"there must be at most {MAX_WORKERS:,} workers but there are {total:,}; lower the "
            "numbers"
        )
    divisor = math.gcd(*numbers)
    return Mix(
        devices=tuple(names),
        parts=tuple(n // divisor for n in numbers),
        total=total,
        notes=tuple(notes),
    )


def parse_workers(workers: str | Sequence[int] | None, mix: Mix) -> tuple[int, ...]:
    """Numbers of workers, increasing, each once.

    Of a range like "1-16" only the numbers that keep the proportion of several kinds are taken;
    numbers on their own must keep it. By default 1 to 16, or the numbers given with the kinds.

    Raises
    ------
    InputError
        When they are no such numbers.
    """
    if workers is None:
        workers = [mix.total] if mix.total is not None else "1-16"
    numbers = parse_counts(
        workers, what="workers", most=MAX_WORKERS, possible=lambda n: n % mix.unit == 0
    )
    for number in numbers:
        if not 1 <= number <= MAX_WORKERS:
            raise InputError.rule(
                "the number of workers",
                f"be from 1 to {MAX_WORKERS:,}",
                f"{number:,}",
                "correct it",
            )
        if number % mix.unit:
            kinds = " to ".join(map(str, mix.parts))
            raise InputError(
                f"the number of workers must keep the proportion {kinds} of "
                f"{', '.join(mix.devices)} but is {number}; use a multiple of {mix.unit}"
            )
    if not numbers:
        if mix.unit == 1:
            raise InputError("there must be numbers of workers but there are none; give some")
        raise InputError(
            f"the numbers of workers must include a multiple of {mix.unit}, which keeps the "
            f"proportion of {', '.join(mix.devices)}, but are '{workers}'; widen the range"
        )
    return tuple(sorted(set(numbers)))

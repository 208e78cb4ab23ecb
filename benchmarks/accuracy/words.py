"""What the words of a measured row mean: network, precision, framework, schedule, epoch.

All words are data (`data/words.toml`). No source is known by name; but a publication may be that of
the code that ran, and rows that gave a constant are found by what they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from benchmarks.accuracy.machines import read_words
from benchmarks.accuracy.steps import built_in_names
from costmodels.cluster import Device
from costmodels.simulation import Runtime, load_runtime
from costmodels.simulation.executions import executed

IMAGENET_SAMPLES = 1_281_167
# Built-in networks that do not train on ImageNet.
_OTHER_DATA = re.compile(r"cosmoflow|mesh|unet|gpt")
_PRECISIONS = (
    (r"fp16|float16|half|\bamp\b|mixed|16-bit", "fp16"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp32|float32|tf32|single|32-bit", "fp32"),
)


class Skip(Exception):
    """Why a row cannot be predicted."""


@lru_cache(maxsize=512)
def network_named(text: str, publication: str = "") -> tuple[str, Mapping[str, Any]]:
    """The built-in network of a row, "" for none, and what the code that ran says of it.

    Parameters
    ----------
    text
        What the row calls it.
    publication
        Of the row.
    """
    plain = re.sub(r"[\s_()\[\]-]+", "", text.lower())
    for entry in read_words("words")["networks"]:
        found = re.search(entry["words"], plain)
        if found and re.search(entry.get("also", ""), publication.lower()):
            name = found.expand(entry["network"])
            return (name if name in built_in_names() else ""), entry
    return next((n for n in built_in_names() if re.sub(r"[_-]", "", n) == plain), ""), {}


def precision_of(text: str, device: Device) -> str:
    """Precision that a publication states, as the device names it.

    Raises
    ------
    Skip
        When it states none, or the device has not got it.
    """
    known, lowered = device.peak_flops, text.lower()
    # BF16 first: "bfloat16" contains the word for FP16
    stated = [name for words, name in _PRECISIONS if re.search(words, lowered)]
    if not stated:
        raise Skip("precision not stated")
    wanted = "bf16" if "bf16" in stated and "fp16" not in lowered else stated[0]
    if wanted == "fp32" and "tf32" in known:
        wanted = "tf32"
    if wanted not in known:
        raise Skip(f"the built-in device {device.name} has no {wanted}")
    return wanted


def epoch_samples(model: str) -> int:
    """Samples of an epoch of the network, 0 where they are not known. [samples]"""
    for entry in read_words("words")["epochs"]:
        if re.search(entry["network"], model):
            return int(entry["samples"])
    return 0 if _OTHER_DATA.search(model) else IMAGENET_SAMPLES


def with_old_libraries(row: Mapping[str, str], precision: str, device: Device) -> tuple[str, str]:
    """The precision that the libraries of a row know, and why the row tells too little."""
    known = read_words("words")["old_libraries"]
    text = f"{row['framework']} {row['notes']}".lower()
    if "tf32" not in device.peak_flops or not re.search(known["words"], text):
        return precision, ""
    return ("fp32", "") if precision == "tf32" else (precision, str(known["doubt"]))


@lru_cache(maxsize=512)
def runtime_of(strategy: str, framework: str, hosts: int) -> tuple[Runtime, str]:
    """The runtime of a row, and why its schedule tells too little; or `Skip`."""
    strategy, framework = strategy.lower().strip(), framework.lower()
    for entry in read_words("words")["schedules"]:
        if re.search(entry["strategy"], strategy) and re.search(
            entry.get("framework", ""), framework
        ):
            if "reason" in entry:
                raise Skip(entry["reason"])
            return _changed(entry, framework, hosts), entry.get("doubt", "")
    raise Skip(f"schedule not known: {strategy.split(':')[0]}")


def _changed(entry: Mapping[str, Any], framework: str, hosts: int) -> Runtime:
    """The runtime of a schedule with what it and the framework change."""
    name, overlap = entry["runtime"], entry.get("overlap", True)
    if entry.get("whole"):
        # larger than all gradients together
        return load_runtime(name, bucket=1e18, first_bucket=None, overlap=overlap)
    runtime = load_runtime(name)
    if name == "horovod" and re.search(r"horovod 0\.(1\d|20)", framework):
        # defaults until Horovod 0.21 (horovod pull request 2468)
        return replace(runtime, cycle=5e-3, fusion=64 * 2.0**20)
    if not entry.get("servers"):
        return runtime
    if hosts == 1:
        # without other hosts nothing is sent to a server: partitions are reduced inside the host
        return replace(load_runtime("ddp"), bucket=runtime.bucket, overlap=overlap, name=name)
    return replace(runtime, servers=hosts, overlap=overlap)


# What an entry of the frameworks may say of a runtime.
_PROFILE = ("fuses", "fuses_in", "overlap", "channels_last", "low_precision_gradients")


@lru_cache(maxsize=1024)
def framework_of(name: str, text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The framework of a row, and what it makes of a runtime.

    Of a framework that is not known, nothing is changed, and its rows calibrate those of the same
    words only. The name is the column of the framework, the text all that is said of what ran.
    """
    for entry in read_words("words")["frameworks"]:
        if re.search(entry["words"], name) and re.search(entry.get("also", ""), text):
            changes = {key: entry[key] for key in _PROFILE if key in entry}
            changes = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
            runtime = load_runtime(entry.get("launches", "ddp"))
            runtime = executed(runtime, entry.get("execution", "eager"))
            changes["launch_time"] = runtime.launch_time
            return entry["framework"], tuple(changes.items())
    return name, ()


def constant_given(row: Mapping[str, str], precision: str, batch: int, gpus: int) -> str:
    """Which constant a row gave, "" for none."""
    text = f"{row['source']} {row['url']}".lower()
    for entry in read_words("words")["sources"]:
        if (
            re.search(entry["text"], text)
            and re.search(entry["model"], row["model"].lower())
            and re.search(entry["gpu"], row["gpu"].lower())
            and gpus == entry.get("gpus", gpus)
            and batch == entry.get("batch", batch)
            and re.search(entry.get("precision", ""), precision)
            and re.search(entry.get("strategy", ""), row["strategy"].lower())
            and re.search(entry.get("links", ""), row["interconnect"].lower())
        ):
            return str(entry["constant"])
    return ""

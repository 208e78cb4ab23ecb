"""Rows of a collection of training throughputs, in the planner's terms.

A row becomes a run where its network, GPU, links, precision, batch and way of training are all
known here; otherwise it is skipped with the reason. Machines that are not built in are put together
from levels of built-in ones. "fp32" on GPUs that have TF32 means TF32, which PyTorch and NVIDIA's
containers then use by default for convolutions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks.accuracy.runs import MeasuredRun
from costmodels.cluster import Cluster, Device, Level, list_devices, load_cluster, load_device
from costmodels.errors import InputError

IMAGENET_SAMPLES = 1_281_167
NETWORKS = (
    (r"resnet-?50(d|.*ssd|.*fpn)", ""),
    (r"(ssd|mask|retina|se-|resnext|wide|nnu|bert|gpu|v-net)", ""),
    (r"resnet[- ]?(18|34|50|101|152)([ -]v1(\.5|b)?)?$", r"resnet\1"),
    (r"vgg-?(16|19)$", r"vgg\1"),
    (r"alexnet$", "alexnet"),
    (r"inception_?-?v3$", "inception_v3"),
    (r"(googlenet|inception_?-?v1)$", "googlenet"),
    (r"densenet-?(121|161|169|201)$", r"densenet\1"),
    (r"(mobilenet_v2|mobilenetv2_100)$", "mobilenet_v2"),
    (r"efficientnet[ _](v1-)?b0$", "efficientnet_b0"),
)
DEVICES = (
    (r"max-q|laptop|k80|m60|radeon", ""),
    (r"v100.*32", "v100-32gb"),
    (r"v100", "v100-16gb"),
    (r"p100", "p100"),
    (r"titan ?xp", "titanxp"),
    (r"2080 ti", "2080ti"),
    (r"3090", "3090"),
    (r"a6000", "a6000"),
    (r"a100.*80", "a100-80gb"),
    (r"a100", "a100-40gb"),
    (r"h100", "h100"),
    (r"h200", "h200"),
)
# Links inside a host, by the text on links and the device: which level of which built-in cluster.
INSIDE = (
    (r"cube mesh|dgx-1|nvlink2|nvlink 2", r"v100", "dgx1-v100", 0),
    (r"sxm nvlink|nvlink3|nvlink 3|nvswitch|nvlink 600|nvidia nvlink", r"a100", "dgx-a100", 0),
    (r"sxm nvlink|nvlink", r"h100", "dgx-h100", 0),
    (r"pcie3|^pcie$", r"2080ti|titanxp|p100", "titanxp-pcie", 0),
)
# Links between hosts: text, device, technology, links of a host.
BETWEEN = (
    (r"10gbe", "", "ethernet-10g", 1),
    (r"100gbib|infiniband edr 100gb/s", "", "infiniband-edr", 1),
    (r"dgx-1v\) \+ infiniband|nvlink2 / infiniband edr", r"v100", "infiniband-edr", 4),
    (r"dgx a100\) \+ infiniband|8x connectx-6", r"a100", "infiniband-hdr", 8),
    (r"2x connectx-6 ib hdr 200gb", r"a100", "infiniband-hdr", 2),
)
LINK_OF = {"infiniband-edr": "dgx1-v100", "infiniband-hdr": "dgx-a100"}
OVERLAP = {"dp allreduce, no overlap (BSP)": False}
REPLICATED = (
    "dp replicated",
    "dp allreduce",
    "dp",
    "dp ddp",
    "dp ring allreduce",
    "dp allreduce, no overlap (bsp)",
    "dp allreduce, overlapped (wfbp, horovod)",
    "dp allreduce, merged gradients (mg-wfbp)",
    "data: dp allreduce (chainermn)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured row that can be predicted.

    Parameters
    ----------
    source
        Group of rows that are summed up together.
    run
        The run.
    seconds
        Measured time of a step. [s]
    whole
        Whether the time includes the weight update.
    kin
        What a row on one GPU must share to calibrate this one.
    name
        For people.
    """

    source: str
    run: MeasuredRun
    seconds: float
    whole: bool
    kin: tuple[str, ...]
    name: str


class Skip(Exception):
    """Why a row cannot be predicted."""


def _match(text: str, patterns: tuple[tuple[str, str], ...]) -> str:
    """The first pattern's answer, "" where none matches or it says so."""
    for pattern, answer in patterns:
        found = re.search(pattern, text, re.IGNORECASE)
        if found:
            return found.expand(answer) if answer else ""
    return ""


def source_group(source: str) -> str:
    """A source, all submissions to one round of MLPerf together."""
    words = source.split()
    if source.startswith("MLPerf"):
        return " ".join(words[:3])
    return source.split(" logs")[0].split(" results")[0].split(" (")[0]


def precision_of(text: str, device: Device) -> str:
    """Precision that a publication states, as the device names it.

    Raises
    ------
    Skip
        When it states none, or the device has not got it.
    """
    known, lowered = device.peak_flops, text.lower()
    if re.search(r"fp16|\bamp\b", lowered):
        wanted = "fp16"
    elif "bf16" in lowered:
        wanted = "bf16"
    elif "fp32" in lowered or "tf32" in lowered:
        wanted = "tf32" if "tf32" in known else "fp32"
    else:
        raise Skip("precision not stated")
    if wanted not in known:
        raise Skip(f"the built-in device {device.name} has no {wanted}")
    return wanted


def _ethernet() -> Level:
    """10 Gb/s Ethernet between hosts, as `data/links.toml` has it."""
    return Level(name="network", size=64, latency=50e-6, bandwidth=1.25e9 * 0.94)


@lru_cache(maxsize=256)
def _cluster(device: str, interconnect: str, gpus: int, per_host: int) -> Cluster:
    """The machine of a row, or `Skip`."""
    own = load_device(device)
    usual = "fp32" if "fp32" in own.peak_flops else next(iter(own.peak_flops))
    if gpus == 1:
        alone = Level(name="host", size=1, latency=0.0, bandwidth=1e12)
        return Cluster(
            name=device,
            device=own,
            levels=(alone,),
            host_level="host",
            default_precision=usual,
        )
    text = interconnect.lower()
    if "nvlink2 (4 gpus)" in text:
        return replace(load_cluster("abci"), device=own, default_precision=usual)
    inside = next(
        (
            load_cluster(c).levels[i]
            for p, d, c, i in INSIDE
            if re.search(p, text) and re.search(d, device)
        ),
        None,
    )
    if inside is None:
        raise Skip(f"no built-in links inside a host of {device} by '{interconnect or 'nothing'}'")
    members = min(gpus, per_host)
    if device.startswith("v100") and ("nvswitch" in text or members > 8):
        inside = replace(inside, peer_links=None)
    levels = [replace(inside, name="host", size=members)]
    if gpus > per_host:
        levels.append(_between(text, device))
    return Cluster(
        name=f"{device}, {interconnect}",
        device=own,
        levels=tuple(levels),
        host_level="host",
        default_precision=usual,
    )


def _between(text: str, device: str) -> Level:
    for pattern, devices, link, links in BETWEEN:
        if re.search(pattern, text) and re.search(devices, device):
            if link == "ethernet-10g":
                return _ethernet()
            network = load_cluster(LINK_OF[link]).levels[-1]
            return replace(network, name="network", size=4096, links=links)
    raise Skip(f"no built-in links between hosts by '{text}'")


def _seconds(row: Mapping[str, str], batch: int, model: str) -> float:
    """Time of a step from whatever was published. [s]"""
    value, metric = float(row["value"]), row["metric"]
    if metric == "throughput":
        return batch / value
    if metric in ("step_time_fwd_bwd_median", "iteration_time_min_over_epochs"):
        return value / 1e3
    if metric == "train_epoch_time_median" and model.startswith("resnet"):
        return value * batch / IMAGENET_SAMPLES
    raise Skip(f"{metric} is no time of a step")


def read(row: Mapping[str, str]) -> Row:
    """A row as a run, or `Skip` with the reason."""
    model = _match(row["model"], NETWORKS)
    if not model:
        raise Skip(f"no built-in network {row['model']}")
    device = _match(row["gpu"], DEVICES)
    if device not in list_devices():
        raise Skip(f"no built-in device {row['gpu']}")
    if not row["gpus"] or not (row["global_batch"] or row["batch_per_gpu"]):
        raise Skip("number of GPUs or batch not stated")
    gpus = int(row["gpus"])
    strategy = row["strategy"].lower()
    if gpus > 1 and strategy not in REPLICATED:
        if "server" in strategy or "bytescheduler" in strategy or "ps " in strategy:
            raise Skip("parameter server or asynchronous: waits for the simulator")
        if "nn.dataparallel" in strategy:
            raise Skip("one process scatters and gathers (nn.DataParallel)")
        raise Skip(f"strategy '{strategy.split(':')[0]}' is compared by --published")
    if re.search(r"loader bound|input-bound|start-up", row["notes"], re.IGNORECASE):
        raise Skip("bound by its data loader or with its start-up, as its notes say")
    per_gpu = float(row["batch_per_gpu"] or 0)
    batch = int(float(row["global_batch"] or per_gpu * gpus))
    precision = precision_of(row["precision"], load_device(device))
    per_host = int(float(row["gpus_per_node"] or gpus))
    try:
        cluster = _cluster(device, row["interconnect"], gpus, per_host)
        cluster.shape(gpus)
    except InputError as error:
        raise Skip(str(error).split(",")[0]) from None
    source = source_group(row["source"])
    options = {
        "precision": precision,
        "gradient_overlap": OVERLAP.get(row["strategy"], "chainermn" not in strategy),
    }
    return Row(
        source=source,
        run=MeasuredRun(
            model=model,
            cluster=cluster,
            gpus=gpus,
            batch=batch,
            options=options,
            winograd="chainer" not in row["framework"].lower(),
        ),
        seconds=_seconds(row, batch, model),
        whole=row["metric"] != "step_time_fwd_bwd_median",
        kin=(
            row["source"],
            row["model"],
            row["gpu"],
            row["precision"],
            row["framework"],
            str(batch // gpus),
        ),
        name=f"{row['model']}, {gpus} x {row['gpu']}, batch {batch}, {row['precision']}",
    )

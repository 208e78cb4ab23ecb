"""How many hosts and GPUs a job has: what SLURM and torchrun say in the environment.

torchrun knows the ranks of the job itself (WORLD_SIZE, LOCAL_WORLD_SIZE), SLURM what was allocated
(SLURM_JOB_NUM_NODES or the hosts of SLURM_JOB_NODELIST, SLURM_GPUS_ON_NODE, SLURM_GPUS_PER_NODE,
SLURM_GPUS); where both speak, the ranks of torchrun count. The type of GPU is in those of SLURM
that may state it, such as `a100:4`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from costmodels.errors import InputError, plain

_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_TYPED = re.compile(r"(?:gres[:/])?(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d{1,6})(?:\(.*\))?", re.ASCII)
# Hosts that a list of SLURM may name. [items]
_MOST_HOSTS = 2**20


class JobSize(Struct, frozen=True, kw_only=True):
    """What the environment says of a job; None for what it does not.

    Parameters
    ----------
    hosts, gpus_per_host
        How many. [items]
    gpu_type
        What SLURM calls the GPUs, empty where it does not say.
    source
        Who said so, empty where nobody did.
    """

    hosts: int | None = None
    gpus_per_host: int | None = None
    gpu_type: str = ""
    source: str = ""


def read_job(environment: Mapping[str, str]) -> JobSize:
    """What the environment says of a job.

    Raises
    ------
    InputError
        When a variable cannot be read, or ranks do not fill hosts equally.
    """
    slurm, torchrun = _of_slurm(environment), _of_torchrun(environment)
    if torchrun is None:
        return slurm
    return JobSize(
        hosts=torchrun.hosts or slurm.hosts,
        gpus_per_host=torchrun.gpus_per_host or slurm.gpus_per_host,
        gpu_type=slurm.gpu_type,
        source="torchrun and SLURM" if slurm.source else "torchrun",
    )


def _of_torchrun(environment: Mapping[str, str]) -> JobSize | None:
    world = _count_of_variable(environment, "WORLD_SIZE")
    if world is None:
        return None
    local = _count_of_variable(environment, "LOCAL_WORLD_SIZE")
    if local is None:
        return JobSize(source="torchrun")
    if world % local:
        raise InputError.rule(
            "WORLD_SIZE",
            f"be a multiple of LOCAL_WORLD_SIZE ({local}), the ranks of a host",
            world,
            "start as many ranks on every host, or give a cluster file",
        )
    return JobSize(hosts=world // local, gpus_per_host=local, source="torchrun")


def _of_slurm(environment: Mapping[str, str]) -> JobSize:
    if not {"SLURM_JOB_ID", "SLURM_JOBID"} & set(environment):
        return JobSize()
    hosts = _count_of_variable(environment, "SLURM_JOB_NUM_NODES") or _count_of_variable(
        environment, "SLURM_NNODES"
    )
    names = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if hosts is None and names:
        hosts = count_hosts(names)
    kind, per_host = "", _count_of_variable(environment, "SLURM_GPUS_ON_NODE")
    for variable, shared in (("SLURM_GPUS_PER_NODE", False), ("SLURM_GPUS", True)):
        text = environment.get(variable, "")
        # several types are written one after the other; devices of a cluster are alike
        found = _TYPED.fullmatch(text.strip()) if "," not in text else None
        if found is None:
            continue
        kind, count = kind or found[1] or "", int(found[2])
        if per_host is None and not shared:
            per_host = count
        if per_host is None and shared and hosts and count % hosts == 0:
            per_host = count // hosts
    return JobSize(hosts=hosts, gpus_per_host=per_host, gpu_type=kind, source="SLURM")


def _count_of_variable(environment: Mapping[str, str], variable: str) -> int | None:
    text = environment.get(variable)
    if text is None or not text.strip():
        return None
    # SLURM_GPUS_ON_NODE is a bitmap in some versions, which is no number of GPUs
    if not re.fullmatch(r"\s*[1-9]\d{0,8}\s*", text, re.ASCII):
        raise InputError.rule(
            f"{variable} of the environment",
            "be a whole number of at least 1",
            f"'{plain(text)}'",
            "correct it, or give a cluster",
        )
    return int(text)


def count_hosts(text: str) -> int:
    """Hosts of a list as SLURM writes it, such as `a[01-03,7],b2`. [items]

    Raises
    ------
    InputError
        When it is no such list.
    """
    total, depth, start, parts = 0, 0, 0, []
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    for part in parts:
        count = 1
        for inside in re.findall(r"\[([^\[\]]*)\]", part):
            count *= sum(_range(one, text) for one in inside.split(","))
        if depth or not part.strip():
            raise _unreadable(text)
        total += count
    if total > _MOST_HOSTS:
        raise _unreadable(text)
    return total


def _range(text: str, whole: str) -> int:
    if re.fullmatch(r"\d+", text, re.ASCII):
        return 1
    found = _RANGE.fullmatch(text)
    if found is None or int(found[2]) < int(found[1]):
        raise _unreadable(whole)
    return int(found[2]) - int(found[1]) + 1


def _unreadable(text: str) -> InputError:
    return InputError.rule(
        "SLURM_JOB_NODELIST of the environment",
        "list hosts like a[01-03,7],b2",
        f"'{plain(text)}'",
        "correct it, or give a cluster",
    )

"""Cases of studies, ONNX files, machines that a job describes, and plans that are run or exported.

Each function puts files and a command into a case, and returns the file that is changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import good_others
from fuzz_case import Case, File
from protobuf_changes import Message, change_message
from written_forms import Table

_FRAMEWORKS = ("torchtitan", "megatron", "deepspeed", "accelerate", "fsdp2", "jax")
_EXPORTED = (
    *("job.toml", "arguments.txt", "deepspeed.json", "accelerate.yaml", "sharded.py", "NOTES.md"),
)


def study_subject(case: Case, rng: random.Random, network: File) -> File:
    """A study of a network file."""
    file = File("study.toml", Table(good_others.study(), "toml"))
    case.command, case.files, case.words = "study", [file, network], [file]
    keep_study(case, rng)
    if network.name != "network.toml":
        file.content.tree["grid"][0]["model"] = network.name  # type: ignore[union-attr]
    return file


def keep_study(case: Case, rng: random.Random) -> None:
    """Where a study is kept, whatever becomes of it."""
    path = rng.choice(("sqlite:///work.db", "work.journal"))
    case.words += ["--storage", path]
    case.kept += ["work.db", "work.journal", "work.journal.lock"]


def onnx_subject(case: Case, rng: random.Random, network: File) -> File:
    """A network of ONNX."""
    import onnx

    model = onnx.load_from_string(good_others.onnx_bytes())
    file = File("network.onnx", Message(model))
    commands = ("optimize", "optimize", "evaluate", "simulate", "pareto", "scale", "throughput")
    case.command, case.files, case.words = rng.choice(commands), [file], [file]
    if rng.random() < 0.3:
        shapes = ("8,3,16,16", "x=4,3,16,16", "8,3,-1,16", "8,3", "8,3,99999999,16", "y=1", "x")
        case.words += ["--input", rng.choice(shapes)]
    return file


def changed_message(file: File) -> Callable[[Case, random.Random], str]:
    """A change of a field of a message."""

    def piece(case: Case, rng: random.Random) -> str:
        assert isinstance(file.content, Message)
        return f"{case.kind} {change_message(file.content.tree, rng)}"

    return piece


def machine_subject(case: Case, rng: random.Random, network: File) -> File:
    """A machine that is read from the environment, and from what nvidia-smi says."""
    case.command = rng.choice(("optimize", "evaluate", "simulate", "scale"))
    file = File("gpus.csv", good_others.GPUS.encode())
    case.files, case.words = [file, network], [network, "--cluster", "auto", "--gpus", "4"]
    case.environment = good_others.environment(rng)
    case.changes += [f"{name} = {value[:40]!a}" for name, value in case.environment.items()]
    if rng.random() < 0.5:
        # found before any that there may be
        case.files += [
            File("nvidia-smi", good_others.NVIDIA_SMI, runs=True),
            File("topology.txt", good_others.TOPOLOGY.encode()),
        ]
        case.environment["PATH"] = ".:/usr/bin:/bin"
        if rng.random() < 0.5:
            return case.files[-1]
    return file


def profile_subject(case: Case, rng: random.Random, network: File) -> File:
    """A profile to go on with."""
    file = File("profile.json", Table(good_others.profile(), "json"))
    case.command, case.files = "profile", [file, network]
    case.words = [network, "--gpus", "4", "--device", "cpu", "--threads", "1", "-o", file.name]
    case.words += ["--budget", "0.5 s"]
    case.outputs.append(file.name)
    return file


def plan_run(case: Case, rng: random.Random, file: File) -> None:
    """A command that runs a plan or writes it for others."""
    case.words = [file]
    if case.command == "export":
        case.words += ["--to", rng.choice(_FRAMEWORKS), "-o", "out"]
        case.outputs += ["out", *(f"out/{name}" for name in _EXPORTED)]
    elif case.command == "verify":
        case.words += ["--ranks", "1"]
    else:
        script = File("train.py", b"print('trained')\n")
        case.files.append(script)
        case.words += ["--nproc-per-node", "4", script]

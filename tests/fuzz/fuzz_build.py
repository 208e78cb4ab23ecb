"""Cases from a seed: which files, which changes, which command."""

from __future__ import annotations

import copy
import random
from collections.abc import Collection, Mapping
from typing import Any

import good_configs
import good_files
import good_others
from case_outputs import OUTPUTS, bad_output, good_output
from case_pieces import (
    NONSENSE,
    ODD_SUBJECTS,
    Piece,
    bad_cell,
    bad_field,
    bad_problem,
    changed,
    changed_bytes,
    completed,
    doubled,
    far_off,
    gpus,
    nonsensical,
    odd_words,
    option,
    renamed,
    some_options,
    stretched,
    unreadable,
)
from fuzz_case import Case, File
from hostile_modules import module_subject
from option_values import GPUS, OPTIONS
from other_subjects import (
    changed_message,
    machine_subject,
    onnx_subject,
    plan_run,
    profile_subject,
    study_subject,
)
from protobuf_changes import Message
from surroundings import surroundings
from tree_changes import brief
from written_forms import Table

Plans = Mapping[str, dict[str, Any]]

_KINDS = {
    "network": 24,
    "cluster": 14,
    "strategy": 14,
    "plan": 18,
    "config": 14,
    "runtime": 4,
    "import": 4,
    "table": 8,
    "problem": 9,
    "command": 28,
    "study": 4,
    "onnx": 10,
    "machine": 5,
    "profile": 1,
    "module": 1,
}


_OTHERS = {
    "study": study_subject,
    "onnx": onnx_subject,
    "machine": machine_subject,
    "profile": profile_subject,
    "module": module_subject,
}
# Commands that read a plan; running one takes long.
_OF_PLANS = ("report", "simulate", "evaluate", "export", "verify", "run")


def build(seed: int, number: int, plans: Plans, skip: Collection[int] = ()) -> Case:
    """A case.

    Parameters
    ----------
    seed, number
        Two equal pairs give equal cases.
    plans
        Good plan files, by the network that they are of.
    skip
        Pieces to leave out, by number, to find out which ones matter.
    """
    rng = random.Random(f"{seed} {number}")
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    case = Case(seed=seed, number=number, kind=kind)
    pieces = _start(case, rng, plans)
    case.num_pieces = len(pieces)
    for index, piece in enumerate(pieces):
        if index not in skip:
            case.changes.append(piece(case, random.Random(f"{seed} {number} {index}")))
    if rng.random() < 0.03:
        case.encoding = rng.choice(("ascii", "latin-1"))
    if rng.random() < 0.05:
        case.interrupt = rng.choice((0.3, 1.0, 3.0)) * rng.random()
        case.changes.append(f"interrupted after {case.interrupt:.3f} s")
    if rng.random() < 0.08:
        case.environment = {**surroundings(rng), **case.environment}
        case.changes.append(f"in {case.environment!a}"[:200])
    return case


def _start(case: Case, rng: random.Random, plans: Plans) -> list[Piece]:
    """Files and a command, and the changes to come."""
    form = "json" if rng.random() < 0.3 else "toml"
    network = File(f"network.{form}", good_files.network(rng.choice((0, 0, 1, 2, 3)), form))
    if case.kind == "command":
        return _command(case, rng, network, plans)
    file = _subject(case, rng, network, plans)
    if case.kind == "module":
        return some_options(case, rng)
    if case.kind == "problem" and rng.random() < 0.4:
        return [bad_problem(file)]
    if case.kind in ("import", "machine") and rng.random() < 0.7:
        return [bad_cell(file)] * rng.choice((1, 1, 3))
    if isinstance(file.content, Message) and rng.random() < 0.7:
        return [changed_message(file)] * rng.choice((1, 1, 2, 5))
    meant = rng.random()
    written = isinstance(file.content, bytes)
    nonsense = case.kind
    if case.kind == "table" and written and meant < 0.4:
        return [bad_field(file), *some_options(case, rng)]
    if case.kind == "table" and written and meant < 0.7:
        return [far_off(file), *some_options(case, rng)]
    if meant < 0.22 and case.kind in NONSENSE:
        # of networks it is known for the first one only
        if case.kind == "network":
            file.content = good_files.network(0, file.name[-4:])
            if rng.random() < 0.2:
                file.content = good_files.network(good_files.REPEATED, file.name[-4:])
                return [nonsensical(file, "blocks"), *some_options(case, rng)]
        if case.kind == "cluster":
            nonsense = rng.choice(("cluster", "cluster", "mixed"))
            whole = good_others.mixed_cluster if nonsense == "mixed" else good_files.cluster
            file.content = Table(whole(), "toml")
        if case.kind == "config":
            file.content = Table(good_configs.llama(), "json")
        if case.kind == "plan" and file.name == "staged.json":
            return [nonsensical(file, "staged"), *some_options(case, rng)]
        if case.kind == "plan" and rng.random() < 0.4:
            file.content = Table(copy.deepcopy(plans["network.toml"]), "json")
            return [nonsensical(file, "carried"), *some_options(case, rng)]
        return [nonsensical(file, nonsense), *some_options(case, rng)]
    if meant < 0.26 and case.kind not in ("machine", "profile"):
        return [unreadable(file), *some_options(case, rng)]
    named = [renamed(file)] if rng.random() < 0.12 else []
    if meant < 0.7 and case.kind in NONSENSE and case.kind != "study":
        stretches = [stretched(file)] * rng.choice((1, 1, 2, 3))
        return [*stretches, *named, *some_options(case, rng)]
    nested = isinstance(file.content, Table)
    if nested and case.kind != "problem" and rng.random() < 0.1:
        return [doubled(file), *some_options(case, rng)]
    pieces = [changed(file)] * rng.choice((1, 1, 1, 2, 3)) if nested and meant < 0.92 else []
    if not nested or meant >= 0.88:
        pieces = [*pieces, changed_bytes(file)]
    return [*pieces, *named, *some_options(case, rng)]


def _subject(case: Case, rng: random.Random, network: File, plans: Plans) -> File:
    """The file that is changed, and a command that reads it."""
    if case.kind == "network":
        case.command = rng.choice(("optimize", "evaluate", "simulate", "scale", "throughput"))
        case.files, case.words = [network], [network]
        _size(case, rng)
        return network
    if case.kind == "cluster":
        makes = (*good_files.CLUSTERS, good_others.mixed_cluster)
        file = File("cluster.toml", Table(rng.choice(makes)(), "toml"))
        case.command = rng.choice(("optimize", "evaluate", "simulate", "scale", "throughput"))
        option = "--host" if case.command == "throughput" else "--cluster"
        case.files, case.words = [file, network], [network, option, file]
        case.words += ["--gpus-per-host", "4"] if case.command == "throughput" else []
        _size(case, rng)
        return file
    if case.kind == "strategy":
        network = File("network.toml", good_files.network())
        file = File("strategy.toml", Table(good_files.strategy(), "toml"))
        case.command = "simulate"
        case.words = [file]
        if rng.random() < 0.3:
            case.words = [network, "--strategy", file, "--gpus", "4", "--cluster", "lassen"]
        case.files = [file, network]
        return file
    if case.kind == "plan":
        return _plan(case, rng, plans)
    if case.kind in ("config", "runtime", "import"):
        return _foreign(case, rng, network)
    if case.kind in _OTHERS:
        file = _OTHERS[case.kind](case, rng, network)
        if case.kind == "onnx":
            _size(case, rng)
        return file
    if case.kind == "table":
        file = File("table.csv", good_files.TABLE.encode())
        if rng.random() < 0.25:
            file = File("table.json", Table(good_configs.table(), "json"))
        case.command = rng.choice(("evaluate", "optimize", "throughput"))
        case.words, case.files = [network, "--table", file], [file, network]
        _size(case, rng)
        return file
    zipped = rng.random() < 0.4
    file = File(
        "problem.json.gz" if zipped else "problem.json",
        Table(good_files.problem(), "json"),
        zipped,
    )
    case.command, case.files, case.words = "solve", [file], [file, "--time-limit", "5"]
    return file


def _plan(case: Case, rng: random.Random, plans: Plans) -> File:
    """A plan of a network of one's own, of a built-in one, or with stages."""
    name = rng.choice(list(plans))
    staged = name == "config.json"
    file = File("staged.json" if staged else "plan.json", Table(copy.deepcopy(plans[name]), "json"))
    network = File("network.toml", good_files.network())
    if staged:
        network = File(name, Table(good_configs.llama(), "json"))
    case.command = rng.choices(_OF_PLANS, (10, 5, 5, 8, 1, 1))[0]
    case.words = [file]
    if case.command in _OF_PLANS[3:]:
        case.files = [file]
        plan_run(case, rng, file)
        return file
    if case.command == "evaluate":
        subject: str | File = network if name == network.name else name
        case.words = [subject, "--gpus", "4", "--strategy", file]
    case.files = [file, network]
    return file


def _foreign(case: Case, rng: random.Random, network: File) -> File:
    """What others made: a config of a transformer, figures of a runtime, measurements."""
    if case.kind == "import":
        form = rng.choice(list(good_configs.IMPORTS))
        name, text = good_configs.IMPORTS[form]
        file = File(name, text.encode())
        case.command, case.outputs = "tables", ["out.json"]
        case.words, case.files = ["import", form, file, "-o", "out.json"], [file]
        return file
    if case.kind == "runtime":
        file = File("runtime.toml", Table(good_configs.runtime(), "toml"))
        case.command, case.files = "simulate", [file, network]
        case.words = [network, "--runtime", file, "--gpus", "4"]
        return file
    file = File("config.json", Table(rng.choice(good_configs.CONFIGS)(), "json"))
    commands = ("optimize", "optimize", "pareto", "evaluate", "simulate", "scale", "throughput")
    case.command, case.files, case.words = rng.choice(commands), [file], [file]
    _size(case, rng)
    return file


def _size(case: Case, rng: random.Random) -> None:
    if case.command == "throughput":
        case.words += ["--workers", "1,2", "--steps", "20"]
    else:
        case.words += ["--gpus", rng.choice(("1,4" if case.command == "scale" else "4", "8", "2"))]


def _command(case: Case, rng: random.Random, network: File, plans: Plans) -> list[Piece]:
    """A command with options of all kinds."""
    case.command = rng.choice([name for name in OPTIONS for _ in range(3 if GPUS.get(name) else 1)])
    if case.command in GPUS and rng.random() < 0.25:
        network = File("config.json", Table(rng.choice(good_configs.CONFIGS)(), "json"))
    case.files = [network]
    pieces: list[Piece] = []
    if case.command == "solve":
        network.name, network.content = "problem.json", Table(good_files.problem(), "json")
    if case.command in ("report", *_OF_PLANS[3:]):
        network.name, network.content = (
            "plan.json",
            Table(copy.deepcopy(plans["network.toml"]), "json"),
        )
    if case.command in _OF_PLANS[3:]:
        plan_run(case, rng, network)
    if case.command == "study":
        study_subject(case, rng, File(network.name, network.content))
    if case.command == "profile":
        profile_subject(case, rng, network)
    if case.command in (*GPUS, "throughput", "solve", "report"):
        case.words = [network]
        if rng.random() < 0.06:
            case.words = [rng.choice(ODD_SUBJECTS)]
            case.refuse = f"{case.command} of {brief(case.words[0])}"
    if case.command in GPUS:
        pieces.append(gpus(rng.choices(("good", "odd", "refused"), (16, 1, 1))[0]))
    pieces += [option("good")] * rng.choice((0, 1, 2, 3, 5))
    pieces += [option("odd")] * rng.choice((0, 0, 1))
    if case.command in OUTPUTS:
        pieces += [good_output] * rng.choice((0, 0, 1, 2))
    last = rng.random()
    if last < 0.35:
        pieces.append(option("refused"))
    elif last < 0.55 and case.command in OUTPUTS:
        pieces.append(bad_output)
    elif last < 0.65 and case.command != "run":  # where they are the script's
        pieces.append(odd_words)
    elif last < 0.7:
        pieces.append(completed)
    return pieces

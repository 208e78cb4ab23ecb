"""The single changes and options that cases are made of."""

from __future__ import annotations

import copy
import os
import random
import re
import shlex
from collections.abc import Callable

import absurd
import good_files
import nonsense
import nonsense_more
from byte_changes import BYTES, UNREADABLE
from case_outputs import OUTPUTS, good_output
from fuzz_case import Case, File
from hostile_values import CONTROLS, MARKUP, NAMES
from option_values import GPUS, OPTIONS
from problem_files import BAD
from tree_changes import brief, change, get, paths, put, told
from written_forms import Raw, Table, json_text

Piece = Callable[[Case, random.Random], str]

NONSENSE = {
    "network": nonsense.NETWORK,
    "blocks": nonsense.BLOCKS,
    "cluster": nonsense.CLUSTER,
    "strategy": nonsense.STRATEGY,
    "plan": nonsense.PLAN,
    "carried": nonsense.CARRIED,
    "staged": nonsense_more.STAGED,
    "config": nonsense_more.CONFIG,
    "runtime": nonsense_more.RUNTIME,
    "study": nonsense_more.STUDY,
    "mixed": nonsense_more.MIXED,
}
ODD_SUBJECTS = ("", "-", ".", "/", "nowhere.toml", "telepathy", "/dev/null", "a\x1b]0;x\x07.toml")


def changed(file: File) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        assert isinstance(file.content, Table)
        return f"{case.kind} {change(file.content.tree, rng)}"

    return piece


def stretched(file: File) -> Piece:
    """A change after which the file is still readable, mostly."""

    def piece(case: Case, rng: random.Random) -> str:
        assert isinstance(file.content, Table)
        return f"{case.kind} {absurd.stretch(case.kind, file.content.tree, rng)}"

    return piece


def nonsensical(file: File, kind: str = "") -> Piece:
    """A change after which nobody can mean the file; of its kind, or of a kind of its own."""

    def piece(case: Case, rng: random.Random) -> str:
        path, value = rng.choice(NONSENSE[kind or case.kind])
        assert isinstance(file.content, Table)
        if value is None:
            get(file.content.tree, path[:-1]).pop(path[-1], None)
        else:
            put(file.content.tree, path, copy.deepcopy(value))
        told_of = f"{case.kind} {told(path)} = {'missing' if value is None else brief(value)}"
        # what the command line says instead of a strategy file need not be found
        unread = "--strategy" in case.words and path[0] in ("model", "cluster")
        if not (unread and value in ("telepathy", "nowhere.toml")):
            case.refuse = told_of
        return told_of

    return piece


def doubled(file: File) -> Piece:
    """A field that stands there twice, with the same value: which one is meant nobody knows."""

    def piece(case: Case, rng: random.Random) -> str:
        assert isinstance(file.content, Table)
        tree = file.content.tree
        places = [path for path in paths(tree) if isinstance(path[-1], str)]
        plain = [path for path in places if isinstance(get(tree, path), str | int | float)]
        path = rng.choice(plain)
        value, key = get(tree, path), json_text(path[-1])
        row = json_text(value)
        put(tree, path, Raw(f"{row}, {key}: {row}", f"{row}\n{key} = {row}"))
        case.refuse = f"{case.kind} with a field twice"
        return f"{told(path)} twice"

    return piece


def changed_bytes(file: File) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        name = rng.choice(list(BYTES))
        file.bytes_changes.append((name, rng.getrandbits(32)))
        return f"{case.kind} file {name}"

    return piece


def unreadable(file: File) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        file.instead = rng.choice(list(UNREADABLE))
        case.refuse = f"{case.kind} file is {file.instead}"
        return case.refuse

    return piece


def renamed(file: File) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        stem = rng.choice((*CONTROLS, *MARKUP, *NAMES, "bad\udcff", "x" * 240))
        data = os.fsencode(stem.replace("/", "").replace("\0", "").lstrip("-"))[:200]
        name = os.fsdecode(data) + file.name
        file.name = name
        return f"{case.kind} file named {brief(name)}"

    return piece


def bad_problem(file: File) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        name = rng.choice(list(BAD))
        file.content, file.zipped = BAD[name][0], False
        case.refuse = f"problem with {name}"
        return case.refuse

    return piece


def bad_field(file: File) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        column = rng.choice(list(nonsense.TABLE_FIELDS))
        value = rng.choice(nonsense.TABLE_FIELDS[column])
        lines = good_files.TABLE.split("\n")
        fields = lines[3].split(",")
        fields[column] = value
        lines[3] = ",".join(fields)
        file.content = "\n".join(lines).encode()
        case.refuse = f"table {lines[2].split(',')[column]} = {brief(value)}"
        return case.refuse

    return piece


def bad_cell(file: File) -> Piece:
    """Another figure in a table or log of a public form."""

    def piece(case: Case, rng: random.Random) -> str:
        assert isinstance(file.content, bytes)
        text = file.content.decode()
        hit = rng.choice(list(re.finditer(r"(?<![\w.])[\d.]+(?![\w.])", text)))
        value = rng.choice(nonsense_more.CELLS)
        file.content = f"{text[: hit.start()]}{value}{text[hit.end() :]}".encode()
        return f"{brief(hit[0])} is {brief(value)}"

    return piece


def far_off(file: File) -> Piece:
    """Many rows that can be read, and that contradict the model and each other."""

    def piece(case: Case, rng: random.Random) -> str:
        rows = []
        for _ in range(rng.choice((1, 3, 40))):
            operation = rng.choice(good_files.TABLE.split("\n")[3:-1]).split(",")
            operation[0] = rng.choice(
                (operation[0], "batch_norm", "activation", "pool", "attention")
            )
            operation[1] = rng.choice(("forward", "backward_data", "backward_weight"))
            operation[3] = str(rng.choice((1, 4, 32, 10**6)))
            operation[-1] = f"1e{rng.randint(-12, 5)}"
            rows.append(",".join(operation))
        file.content = (good_files.TABLE + "\n".join(rows) + "\n").encode()
        return f"{len(rows)} rows that are far off"

    return piece


def some_options(case: Case, rng: random.Random) -> list[Piece]:
    """Options that are fine, so that all that is printed and written is seen."""
    pieces: list[Piece] = []
    if case.command in OUTPUTS:
        pieces += [good_output] * rng.choice((0, 1, 1, 2))
    if OPTIONS[case.command] and rng.random() < 0.3:
        pieces.append(option("good"))
    return pieces


def option(pool: str) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        options = OPTIONS[case.command]
        # of one that is given twice the last value counts
        names = [n for n in options if pool == "refused" or n not in case.words]
        if pool != "good":
            names = [n for n in names if getattr(options[n], pool) or options[n].good]
        if not names:
            return "no option left"
        name = rng.choice(names)
        values = getattr(options[name], pool) or options[name].good
        if not values:
            if options[name].refused:
                return "no file at hand"
            case.words.append(name)
            return name
        value = rng.choice(values)
        case.words += [f"{name}={value}"] if rng.random() < 0.3 else [name, value]
        if pool == "refused" and options[name].refused:
            case.refuse = f"{case.command} {name} {brief(value)}"
        return f"{name} {brief(value)}"

    return piece


def gpus(pool: str) -> Piece:
    def piece(case: Case, rng: random.Random) -> str:
        value = rng.choice(getattr(GPUS[case.command], pool))
        case.words += ["--gpus", value]
        if pool == "refused":
            case.refuse = f"{case.command} --gpus {brief(value)}"
        return f"--gpus {brief(value)}"

    return piece


def completed(case: Case, rng: random.Random) -> str:
    """The words so far as those that a shell asks to complete, at one of them."""
    words = ["planner", *case.arguments()]
    case.environment = {
        "_PLANNER_COMPLETE": rng.choice(("bash_complete", "zsh_complete", "fish_complete")),
        "COMP_WORDS": rng.choice((shlex.join, " ".join))(words),
        "COMP_CWORD": str(rng.choice((*range(len(words) + 2), 99))),
    }
    if case.environment["_PLANNER_COMPLETE"] == "fish_complete":
        case.environment["COMP_CWORD"] = rng.choice(words)
    case.refuse, case.outputs, case.command = "", [], ""
    case.words.clear()
    return f"completed by {case.environment['_PLANNER_COMPLETE']}"


def odd_words(case: Case, rng: random.Random) -> str:
    """Words that do not belong there."""
    what = rng.choice(("unknown option", "one more", "no value", "repeated", "both", "command"))
    if what == "unknown option":
        case.words.append(rng.choice(("--gpu=4", "--telepathy", "-x", "--gpus-", "---", "--o=3")))
        case.refuse = f"{case.command} with an unknown option"
    elif what == "one more":
        case.words.append(rng.choice(ODD_SUBJECTS[3:]))
        case.refuse = f"{case.command} with one more argument"
    elif what == "no value" and any(values.good for values in OPTIONS[case.command].values()):
        name = next(n for n, values in OPTIONS[case.command].items() if values.good)
        case.words.append(name)
        case.refuse = f"{case.command} with an option without its value"
    elif what == "repeated" and case.words:
        case.words += case.words[-2:]
    elif what == "both" and "--quiet" in OPTIONS[case.command]:
        case.words += ["--quiet", "--json"]
        case.refuse = f"{case.command} with --quiet and --json"
    else:
        case.command = rng.choice(("optimise", "", "--version", "--help", "\x1b[2J", "x" * 5000))
        if case.command.startswith("--"):
            case.refuse = ""  # nothing else is looked at
    return what

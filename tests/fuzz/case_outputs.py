"""Options that write files, to good places and to bad ones."""

from __future__ import annotations

import random

from fuzz_case import Case, File
from hostile_values import CONTROLS, MARKUP

# Option, a good name, and whether "-" is no name for standard output.
OUTPUTS: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "optimize": (
        ("-o", "out.json", False),
        ("--report", "out.md", True),
        ("--report", "out.html", True),
        ("--dump-problem", "out.json.gz", True),
    ),
    "evaluate": (
        ("-o", "out.json", False),
        ("--report", "out.md", True),
        ("--report", "out.html", True),
    ),
    "simulate": (
        ("--trace", "trace.json", True),
        ("--dump-strategy", "out.toml", True),
        ("-o", "out.json", False),
    ),
    "report": (("-o", "out.md", True), ("-o", "out.html", True)),
    "scale": (("-o", "out.json", False),),
    "pareto": (("-o", "out.json", False), ("-o", "out.html", False)),
    "solve": (("-o", "out.json", False),),
    "throughput": (("-o", "out.json", False),),
    "study": (
        ("-o", "out.json", False),
        ("-o", "out.html", False),
        ("--csv", "out.csv", True),
    ),
    "models": (("-o", "out.toml", False), ("-o", "other.json", False)),
    "clusters": (("-o", "out.toml", False),),
}

# What is wrong with a path, the path before its ending, and whether it must be refused.
_PLACES: dict[str, tuple[str, bool]] = {
    "in a missing folder": ("no/such/out", True),
    "of a long name": ("x" * 300, True),
    "of a very long path": ("x/" * 5000, True),
    "in a file": ("blocked/out", True),
    "below a link to itself": ("loop/out", True),
    "in a folder without permission": ("locked/out", True),
    "in no text": ("bad\udcff", False),
    "above": ("./././out", False),
}


def good_output(case: Case, rng: random.Random) -> str:
    """One more file to write, as it is meant."""
    option, name, _ = rng.choice(OUTPUTS[case.command])
    if name in case.outputs:
        return "no other output"
    case.words += [option, name]
    case.outputs.append(name)
    return f"{option} {name}"


def bad_output(case: Case, rng: random.Random) -> str:
    """One more file to write, where it cannot or should not be."""
    option, name, strict = rng.choice(OUTPUTS[case.command])
    ending = name[name.index(".") :]
    inputs = [word for word in case.words if isinstance(word, File)]
    what = rng.choice(("input", "link", "twice", "dash", "ending", "device", "odd", *_PLACES))
    refuse = True
    if what in _PLACES:
        stem, refuse = _PLACES[what]
        path = stem + ending
    elif what == "input" and inputs:
        path = rng.choice(("", "./")) + rng.choice(inputs).name
    elif what == "link" and inputs:
        path = f"link{ending}"
        case.links[path] = rng.choice(inputs).name
    elif what == "twice" and case.command != "report":
        path, other = name, rng.choice(OUTPUTS[case.command])[0]
        case.words += [other, f"./{name}"]
        refuse = other != option
    elif what == "dash":
        path, refuse = "-", strict
    elif what == "ending":
        path = rng.choice(("out", "out.txt", "out.pdf", ""))
    elif what == "device":
        path = rng.choice(("/dev/full", "/", ".", "..", "/dev/full/x"))
    else:
        odd = rng.choice(CONTROLS + MARKUP).replace("/", "").replace("\0", "")
        path, refuse = f"{odd}{ending}", False
    case.words += [option, path]
    case.outputs.append(path)
    if refuse:
        case.refuse = f"{case.command} {option} {what}"
    return f"{option} {what}: {ascii(path)[:60]}"

"""Modules of PyTorch as a user may write them by mistake, none of which can be planned."""

from __future__ import annotations

import importlib.util
import random

from fuzz_case import Case, File

NAME = "its_module"
_BEGINNING = "import torch\n"
# What stands in the file; "it" is what is named, and every one must be refused.
_CODE = {
    "ends the program": "raise SystemExit(0)\n",
    "is no Python": "def it(:\n",
    "has NULs": "\0\0",
    "has no such name": "other = 3\n",
    "is no module": "it = {}\n",
    "makes no module": "def it():\n    return None\n",
    "raises": "def it():\n    raise OSError('\\x1b]0;x\\x07\\nsecond ' + 'x' * 5000)\n",
    "raises what is no Exception": "def it():\n    raise BaseException\n",
    "leaves": "def it():\n    raise SystemExit(0)\n",
    "calls itself": "def it():\n    return it()\n",
    "needs more": "def it(size):\n    return torch.nn.Linear(size, size)\n",
    "reads itself": "import its_module\nit = its_module.it\n",
    "leaves when it is read": "def __getattr__(name):\n    raise SystemExit(0)\n",
    "holds itself": (
        "class it(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.one, self.other = torch.nn.Linear(8, 8), self\n"
        "    def forward(self, x):\n"
        "        return self.one(x)\n"
    ),
}
_INPUTS = {
    "": "4,8",
    "of no extents": "",
    "of inputs that leave": f"{NAME}:leaves",
    "of inputs that hold themselves": f"{NAME}:holds",
    "of inputs that make themselves": f"{NAME}:makes",
    "of huge inputs": "999999999999999,8",
}
_FACTORIES = (
    "def leaves():\n    raise SystemExit(0)\n"
    "def holds():\n    rows = []\n    rows.append(rows)\n    return rows\n"
    "def makes():\n    return makes\n"
)
_GOOD = "it = torch.nn.Linear(8, 8)\n"


def module_subject(case: Case, rng: random.Random, network: File) -> File:
    """A module in a file beside, and its inputs, one of which cannot be."""
    what = rng.choice((*_CODE, *filter(None, _INPUTS)))
    code = _CODE.get(what, _GOOD)
    given = _INPUTS.get(what, _INPUTS[""])
    file = File(f"{NAME}.py", f"{_BEGINNING}{_FACTORIES}{code}".encode())
    cache = importlib.util.cache_from_source(file.name)
    case.command = rng.choice(("optimize", "evaluate", "simulate", "scale"))
    case.files, case.words = [file], [f"{NAME}:it", "--gpus", "2", "--input", given]
    case.kept += [cache, cache.rpartition("/")[0]]
    case.refuse = f"a module that {what}" if what in _CODE else f"a module {what}"
    return file

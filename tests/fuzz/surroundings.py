"""What a command is started in: variables that a careless or hostile world sets."""

from __future__ import annotations

import random

_SIZES = ("0", "1", "-5", "x", "٤", "1000000000", "9" * 30)
_VARIABLES: dict[str, tuple[str, ...]] = {
    "COLUMNS": _SIZES,
    "LINES": _SIZES,
    "HOME": ("", "/nonexistent", "/dev/full"),
    "TMPDIR": ("", "/nonexistent", "/dev/full"),
    "XDG_CACHE_HOME": ("/dev/full",),
    "MPLCONFIGDIR": ("/dev/full",),
    "TERM": ("", "dumb", "\x1b[2J"),
    "NO_COLOR": ("", "1"),
    "LANG": ("", "xx_YY.bad"),
    "OMP_NUM_THREADS": ("x", "-1", "9" * 30),
    "SOURCE_DATE_EPOCH": ("x", "9" * 30),
}


def surroundings(rng: random.Random) -> dict[str, str]:
    """Some variables and their values."""
    names = rng.sample(sorted(_VARIABLES), rng.choice((1, 1, 3)))
    return {name: rng.choice(_VARIABLES[name]) for name in names}

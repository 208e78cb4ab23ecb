"""Run code of the user's: naming a module asks for that, but not for what else the code does.

What it prints stays off standard output, where figures and plans are written, and whatever it
raises is said in one sentence: a module that ends the program has made no plan.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from costmodels.errors import InputError


@contextmanager
def own_code(doing: str) -> Iterator[None]:
    """Run code of the user's.

    Parameters
    ----------
    doing
        What is done with it, for messages: "importing 'package.module'".

    Raises
    ------
    InputError
        When that code raises anything, or would end the program.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(own_failure(doing, error)) from None


def own_failure(doing: str, error: BaseException) -> str:
    """What the user's own code raised, and where.

    Parameters
    ----------
    doing, error
        What was done with that code, and what it raised.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/planner/torch/" not in frame.filename and "importlib" not in frame.filename
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{doing} failed with {type(error).__name__}: {error}{where}; correct that code"

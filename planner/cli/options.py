"""Options of commands, generated from the descriptions in `planner.request.inputs`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from costmodels.errors import plain
from planner.cli.completion import COMPLETERS
from planner.request.inputs import COMMANDS, AnyInput

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.request.strategy_tables import StrategyFile

_SEVERAL = re.compile(r"\s*\d+\s*[-,].*", re.ASCII)


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # no such arguments before 8.3
    """One whole number; several are refused in a sentence of their own."""

    name = "integer"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number that text stands for.

        Parameters
        ----------
        value
            The text.
        param, ctx
            Where it was given.
        """
        try:
            return int(value)
        except ValueError:
            name = param.opts[0] if param is not None else "it"
        several = _SEVERAL.fullmatch(str(value)) is not None and name == "--gpus"
        hint = "'planner scale' takes several" if several else "correct it"
        message = f"{name} must be one whole number but is '{value}'; {hint}"
        raise click.UsageError(message, ctx)


_F = TypeVar("_F", bound=Callable[..., Any])
_TYPES: Mapping[str, Any] = {
    "text": str,
    "texts": str,
    "shapes": str,
    "counts": str,
    "object": str,
    "mixed": str,
    "whole": WholeNumber(),
    "count": WholeNumber(),
    "number": float,
}


def input_options(inputs: Sequence[AnyInput]) -> Callable[[_F], _F]:
    """The options of some inputs of a command, in their order.

    What is not given stays None, unless the help text shows the default, so that every other
    default is filled in, and said, in one place.
    """

    def decorate(command: _F) -> _F:
        for one in reversed(inputs):
            if one.option:
                command = _option(one)(command)
        return command

    return decorate


def _option(one: AnyInput) -> Callable[[_F], _F]:
    if one.kind == "switch":
        if "/" in one.option:
            return click.option(one.option, one.called, default=None, help=one.help)
        return click.option(
            one.option, one.called, flag_value=one.switched_to, default=None, help=one.help
        )
    more: dict[str, Any] = {}
    if one.bare:
        more |= {"is_flag": False, "flag_value": one.bare}
    if one.shown:
        # one that is given as None would count as an answer to what is required
        more |= {"default": one.default, "show_default": True}
    return click.option(
        one.option,
        *one.aliases,
        one.called,
        metavar=one.metavar,
        type=_TYPES[one.kind],
        multiple=one.kind in ("texts", "shapes"),
        required=one.required,
        help=one.help,
        shell_complete=COMPLETERS.get(one.name),
        **more,
    )


def inputs_of(subject: str, values: Mapping[str, object]) -> Iterator[object]:
    """All that a command may read: its subject, its options, and what strategy files name."""
    from planner.request.sources import named_in

    for value in (subject, *values.values()):
        yield from value if isinstance(value, tuple) else (value,)
    for path in (subject, values.get("strategy")):
        yield from named_in(path) if isinstance(path, str) else ()


def command_line(command: str, plan: Plan, model: str, values: Mapping[str, object]) -> str:
    """The command that makes a plan again: all that was given, and what defaults became.

    Where the result goes is left out, so that equal questions have equal plans.

    Parameters
    ----------
    command
        A key of `COMMANDS`.
    plan
        The plan that was made.
    model
        The network, as given.
    values
        The options, as given; those of None were not.
    """
    filled: dict[str, object] = {
        **values,
        "gpus": plan.gpus,
        "cluster": values.get("cluster") or plan.cluster,
        "global_batch_size": plan.global_batch_size,
        "precision": plan.training.precision,
        "optimizer": plan.training.optimizer,
    }
    recorded = [one for one in COMMANDS[command] if one.recorded]
    words = ["planner", command, model, *_all_words(recorded, filled)]
    return shlex.join(map(plain, words))


def unsaid_by(file: StrategyFile, path: str, network: str, values: Mapping[str, object]) -> str:
    """The command that simulates what a strategy file is of; empty where the file says it all.

    Parameters
    ----------
    file, path
        What it says, and where it lies.
    network
        The network, where the file does not name it.
    values
        The options that were given, and the runtime that went with them.
    """
    said = {"gpus", "global_batch_size", "precision", "strategy", "degree"}
    given = dict(values)
    if file.cluster is None:
        given["cluster"] = values.get("cluster") or "CLUSTER"
    else:
        said.add("cluster")
    rest = [
        one
        for one in COMMANDS["simulate"]
        if one.part != "degrees" and one.called not in said and given.get(one.called) != one.default
    ]
    words = [path] if file.model is not None else [network, "--strategy", path]
    options = _all_words(rest, given)
    if file.model is not None and not options:
        return ""
    return shlex.join(map(plain, ("planner", "simulate", *words, *options)))


def _all_words(inputs: Sequence[AnyInput], values: Mapping[str, object]) -> list[str]:
    """Options as they are given: first those with a value, then switches, then repeated ones."""
    words = []
    for kinds in (
        ("text", "object", "mixed", "counts", "whole", "count", "number"),
        ("switch",),
        ("texts", "shapes"),
    ):
        for one in inputs:
            if one.kind in kinds and one.option:
                words += _words(one, values.get(one.called))
    return words


def _words(one: AnyInput, value: object) -> list[str]:
    """An option as it is given on the command line."""
    if value is None:
        return []
    if one.kind == "switch":
        return [one.option] if value is one.switched_to else []
    values = value if isinstance(value, tuple) else (value,)
    return [
        word
        for each in values
        for word in (one.option, f"{each:g}" if isinstance(each, float) else str(each))
    ]

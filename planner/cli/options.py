"""Options that commands share, and how they become the keywords of `planner.api`.

Only what the user gave is passed on, so that every default is filled in, and said, in one place.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from planner.plan import Plan

_F = TypeVar("_F", bound=Callable[..., Any])

# Option, keyword of the API, metavar, type, help. The order is that of help and of commands.
_QUESTION = (
    ("--cluster", "cluster", "NAME|FILE", str, "Machine: built in or a TOML file."),
    ("--global-batch-size", "global_batch_size", "N", int, "Samples of a step on all GPUs."),
    ("--precision", "precision", "NAME", str, "fp32, tf32, fp16 or bf16."),
    ("--optimizer", "optimizer", "NAME", str, "sgd (with momentum) or adam."),
    ("--input-size", "input_size", "N", int, "Pixels or voxels a side, or tokens."),
    ("--memory", "memory", "SIZE", str, 'Memory of a GPU, such as "16 GiB".'),
    (
        "--all-reduce",
        "all_reduce",
        "NAME",
        str,
        "auto, ring, tree, hierarchical, in_network or halving_doubling.",
    ),
    ("--bucket-size", "bucket_bytes", "SIZE", str, 'Gradient buckets, such as "25 MiB".'),
    (
        "--launch-time",
        "launch_time",
        "TIME",
        str,
        'Host time of an operation, "25 us" by default; "0 s" for captured graphs.',
    ),
    ("--memory-model", "memory_model", "NAME", str, "liveness or paradl (conservative)."),
)
_FLAGS = (
    ("--no-halo-overlap", "halo_overlap", "Do not hide halos behind the interior."),
    ("--always-cut", "always_cut", "Cut every layer with a halo into interior and boundaries."),
    ("--no-gradient-overlap", "gradient_overlap", "Do not hide all-reduces behind backward."),
    ("--no-winograd", "winograd", "Assume that no convolution runs as Winograd's algorithm."),
)
_SEARCH = (
    ("--search", "search", "NAME", str, "Solver; auto by default."),
    ("--seed", "seed", "N", int, "Seed of solvers that need one; 0 by default."),
    ("--time-limit", "time_limit", "SECONDS", float, "Stop then with the best plan so far."),
    (
        "--cap",
        "cap",
        "N",
        int,
        "Candidates that a layer may keep; by default 12,000 over all layers, at least 64.",
    ),
    ("--num-best", "num_best", "N", int, "Best assignments to cost on the timeline."),
    ("--tune-trials", "tune_trials", "N", int, "Bucket sizes and all-reduces to try."),
)


def _add(command: _F, rows: tuple[tuple[str, str, str, Any, str], ...]) -> _F:
    for name, keyword, metavar, kind, text in reversed(rows):
        command = click.option(name, keyword, metavar=metavar, type=kind, help=text)(command)
    return command


def question_options(command: _F) -> _F:
    """Options of `planner.api.resolve`."""
    command = click.option(
        "--table",
        "tables",
        metavar="FILE",
        multiple=True,
        help="Table of measured layer times; may be repeated.",
    )(command)
    for name, keyword, text in reversed(_FLAGS):
        # the flags that start with "no" switch off what is usual
        value = not name.startswith("--no-")
        command = click.option(name, keyword, flag_value=value, default=None, help=text)(command)
    return _add(command, _QUESTION)


def search_options(command: _F) -> _F:
    """Options of `planner.api.optimize` beyond those of `resolve`."""
    command = click.option(
        "--full-space",
        is_flag=True,
        flag_value=True,
        default=None,
        help="Split levels across hosts over any number of dims.",
    )(command)
    return _add(command, _SEARCH)


def output_options(command: _F) -> _F:
    """What to write and to show."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Only the figures, as JSON."),
        click.option("-q", "--quiet", is_flag=True, help="One line instead of tables."),
        click.option("--report", metavar="FILE", help="Write a report: .html (one page) or .md."),
        click.option("-o", "--output", metavar="FILE", help="Write the plan as JSON."),
    ):
        command = decorate(command)
    return command


def keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `planner.api` for what was given on the command line.

    Raises
    ------
    InputError
        When the bucket size is no amount of memory, or a limit of the search is out of range.
    """
    from costmodels.errors import InputError
    from costmodels.units import parse_bytes, parse_seconds

    result = {key: value for key, value in given.items() if value is not None and value != ()}
    if "bucket_bytes" in result:
        result["bucket_bytes"] = parse_bytes(result["bucket_bytes"], what="the bucket size")
    if "launch_time" in result:
        given_time = result["launch_time"]
        result["launch_time"] = parse_seconds(given_time, what="the launch time", allow_zero=True)
    for key, what, least in (
        ("cap", "the cap on candidates of a layer (--cap)", 1),
        ("num_best", "the number of assignments to cost (--num-best)", 1),
        ("tune_trials", "the number of settings to try (--tune-trials)", 0),
        ("seed", "the seed (--seed)", 0),
    ):
        if result.get(key, least) < least:
            raise InputError(f"{what} must be at least {least} but is {result[key]}; raise it")
    limit = result.get("time_limit")
    if limit is not None and not 0.0 < limit < float("inf"):
        raise InputError(
            f"the time limit must be a number of seconds above 0 but is {limit:g}; raise it or "
            "leave it out"
        )
    return result


def command_line(verb: str, plan: Plan, model: str, given: Mapping[str, Any]) -> str:
    """The command that makes a plan again: all that was given, and what defaults became.

    Where the result goes is left out, so that equal questions have equal plans.
    """
    filled = {
        **given,
        "cluster": given.get("cluster") or plan.cluster,
        "global_batch_size": plan.global_batch_size,
        "precision": plan.training.precision,
        "optimizer": plan.training.optimizer,
    }
    words = ["planner", verb, model, "--gpus", str(plan.gpus)]
    for option, key in (("--strategy", "strategy"), ("--degree", "degree")):
        if filled.get(key) is not None:
            words += [option, str(filled[key])]
    for name, key, *_ in (*_QUESTION, *_SEARCH):
        if filled.get(key) is not None:
            value = filled[key]
            words += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    words += [name for name, key, _ in _FLAGS if filled.get(key) is (not name.startswith("--no-"))]
    words += ["--full-space"] if filled.get("full_space") else []
    for path in filled.get("tables", ()):
        words += ["--table", path]
    return shlex.join(words)

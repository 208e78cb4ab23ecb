"""How fast planning is, how near its plans are to the best, and what the heuristic loses.

    python -m benchmarks.planning [TABLE ...] [--smoke] [--repeats 3] [--json]
    python -m benchmarks.planning limits [--every] [--only NAME] [--json]
    python -m benchmarks.planning usual [--resume FILE] [--json]
    python -m benchmarks.planning joint published [--only NAME] [--resume FILE] [--json]
    python -m benchmarks.planning monotonic [--sample N] [--seed S] [--more KIND ...] [--most GPUS]
        [--resume FILE] [--json]
    python -m benchmarks.planning hunt [--sample N] [--seed S] [--json]

The tables, all but `joint`, `published`, `monotonic` and `hunt` unless some are named:

speed      `planner optimize MODEL --gpus N` cold, each time in a new process: medians of time.
gaps       networks of every family on 64 and 256 GPUs, some on 1024: time, memory and gap.
wide       ten networks that are too wide for elimination: time and gap on 64 GPUs.
limits     the same networks on 64 GPUs under limits on memory: plan, proof or neither; the
           exit status is 1 where more memory gives a slower plan. With --every of all built-in
           networks, at fewer limits, which takes hours.
usual      12 networks on 7 clusters: plans that are slower than a usual strategy that fits, told
           as found; a rerun goes on with the answers in the file that --resume names.
joint      plans for gpt3-175b beside what the exhaustive search of Calculon picks.
published  plans beside what Megatron-LM, Llama 3 and torchtitan published; of both tables --only
           names a part, a row is told as soon as it is known, --resume goes on with those of a
           file, and the exit status is 1 where a plan is slower than what is published and fits.
heuristic  the longest-path heuristic of Dryden et al. against the exact optimum.
monotonic  whether more GPUs, memory, bandwidth or candidates make a plan slower: all series of
           questions, which take days, or a sample of N of three each, few GPUs first. Faults are
           told as found; a rerun goes on with the answers in the file that --resume names.
hunt       random questions from N seeds, the first of them S: with more memory, bandwidth, GPUs and
           ways to train, beside usual and random ways to train; the exit status is 1 where a plan
           is slower with more, or beaten, or a bound is refuted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.planning.gaps import NETWORKS, gap_cases, gap_rows, wide_rows
from benchmarks.planning.heuristic import heuristic_rows
from benchmarks.planning.hunt import hunt_rows
from benchmarks.planning.joint import rows_beside, slower_than_published
from benchmarks.planning.memory_limits import (
    SHARES,
    SHARES_OF_ALL,
    limit_rows,
    worse_with_more,
)
from benchmarks.planning.monotonic import COUNTS, KINDS, monotonic_rows
from benchmarks.planning.published import CALCULON, PUBLISHED, Published
from benchmarks.planning.speed import TARGETS, planning_rows
from benchmarks.planning.usual import usual_questions, usual_rows
from benchmarks.planning.wide import WIDE
from planner.models import list_models

Rows = list[dict[str, object]]
TABLES = (
    "speed",
    "gaps",
    "wide",
    "limits",
    "usual",
    "joint",
    "published",
    "heuristic",
    "monotonic",
    "hunt",
)
# Random questions where no number of them is named. [items]
SEEDS = 20
# The tables that are only made when they are named.
ON_DEMAND = ("monotonic", "joint", "published", "hunt")


def tables(
    smoke: bool,
    repeats: int,
    monotonic: Callable[[], Rows],
    published: Callable[[Sequence[Published]], Rows],
    resume: Path | None,
    limited: Sequence[str] | None = None,
    seeds: Sequence[int] = (),
) -> dict[str, tuple[str, Callable[[], Rows]]]:
    """Title and maker of every table.

    Parameters
    ----------
    smoke
        One quick case of each.
    repeats
        Processes of each case of the table of speeds. [items]
    monotonic
        Maker of the last table.
    published
        Maker of the tables of published ways to train.
    resume
        File of the answers so far of the table of usual strategies.
    limited
        Networks of the table of limits, at those of all built-in ones; None for the usual table.
    seeds
        Of random questions.
    """
    cases = [("resnet50", 256)] if smoke else list(TARGETS)
    models = ["resnet18"] if smoke else list(NETWORKS)
    wide = ["long-skips"] if smoke else list(WIDE)
    gaps = [("resnet18", 64)] if smoke else gap_cases(models)
    return {
        "speed": (
            "planner optimize, cold, whole process",
            lambda: planning_rows(cases, 1 if smoke else repeats),
        ),
        "gaps": ("gaps over every distribution", lambda: gap_rows(gaps)),
        "wide": (
            "networks too wide for elimination",
            lambda: wide_rows(wide, 8 if smoke else 64),
        ),
        "limits": (
            "planner optimize --memory, as parts of the peak without a limit",
            lambda: (
                limit_rows(models, 64, SHARES[:1] if smoke else SHARES)
                if limited is None
                else limit_rows(limited, 64, SHARES_OF_ALL)
            ),
        ),
        "usual": (
            "plans beside the fastest usual strategy that fits, both as simulated",
            lambda: usual_rows(usual_questions(smoke), resume),
        ),
        "joint": (
            "plans beside what Calculon picks, both as simulated",
            lambda: published(CALCULON[: 1 if smoke else None]),
        ),
        "published": (
            "plans beside published ways to train, both as simulated",
            lambda: published(PUBLISHED[: 1 if smoke else None]),
        ),
        "heuristic": (
            "longest-path heuristic against the exact optimum",
            lambda: heuristic_rows(models, 64),
        ),
        "monotonic": ("where more of something makes a plan slower", monotonic),
        "hunt": ("random questions, and what is wrong with their plans", lambda: hunt_rows(seeds)),
    }


def print_rows(rows: Rows, title: str) -> None:
    """Print rows of figures as a table."""
    if not rows:
        print(f"{title}: no row")
        return
    table = Table(title=title)
    for key in rows[0]:
        words = key in ("model", "network", "cluster", "status", "answer", "more", "plan")
        table.add_column(key, justify="left" if words else "right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=150).print(table)


def main() -> None:
    """Make the tables that are asked for, and print them or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--smoke", action="store_true", help="one quick case of each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sample", type=int, help="series, or seeds, to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--more", nargs="+", choices=KINDS, default=KINDS, help="of what")
    parser.add_argument("--most", type=int, default=COUNTS[-1], help="GPUs of 'monotonic'")
    parser.add_argument("--only", default="", metavar="NAME", help="a part of a table")
    parser.add_argument("--every", action="store_true", help="all built-in networks of 'limits'")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="of answers so far")
    options = parser.parse_args()
    monotonic = partial(
        monotonic_rows,
        1 if options.smoke else options.sample,
        options.seed,
        kinds=options.more,
        most=options.most,
        resume=options.resume,
    )
    published = partial(rows_beside, only=options.only, resume=options.resume)
    limited = [n for n in list_models() if options.only in n] if options.every else None
    seeds = range(options.seed, options.seed + (1 if options.smoke else options.sample or SEEDS))
    known = tables(
        options.smoke, options.repeats, monotonic, published, options.resume, limited, seeds
    )
    unknown = [name for name in options.tables if name not in known]
    if unknown:
        parser.error(f"there is no table {unknown[0]!r}; choose from {', '.join(known)}")
    # a new process counts the memory of the one it was forked from: whole processes come first
    named = options.tables or [name for name in known if name not in ON_DEMAND]
    wanted = [name for name in known if name in named]
    rows = {name: known[name][1]() for name in wanted}
    head = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
    }
    if options.json:
        print(json.dumps({**head, **rows}, indent=1))
    else:
        print(f"{head['date']}, {head['machine']}")
        for name in wanted:
            print_rows(rows[name], known[name][0])
    if found := worse_with_more(rows.get("limits", [])):
        raise SystemExit("more memory is worse: " + "; ".join(found))
    if found := [str(row["faults"]) for row in rows.get("hunt", []) if row["faults"]]:
        raise SystemExit("wrong: " + "; ".join(found))
    beside = [row for name in ("joint", "published") for row in rows.get(name, [])]
    if found := slower_than_published(beside):
        raise SystemExit("slower than what is published: " + "; ".join(found))


if __name__ == "__main__":
    main()

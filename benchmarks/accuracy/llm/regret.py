"""What choosing among measured strategies by their predictions costs, workload by workload.

Chosen is the strategy that is predicted to be the fastest of those that a search takes, which are
predicted to fit, of all that were tried, whether or not they ran out of memory. Rows of one
strategy count once, with their mean time; rows in doubt do not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from benchmarks.accuracy.llm.measurement import Configuration
from benchmarks.accuracy.llm.summary import LlmCell, counted_anyway
from benchmarks.accuracy.row_report import print_grid

# Of fewer strategies choosing is no art. [items]
FEWEST = 4
# What is aimed at: mean and worst regret, and chosen strategies that ran out of memory.
MEAN, WORST = 0.03, 0.12
_HEADER = (
    *("source", "workload", "ran", "out of memory", "chosen", "measured [s]", "best [s]", "regret"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRegret:
    """One workload.

    Parameters
    ----------
    source, workload
        Which one.
    ran, out_of_memory
        Strategies that were measured, and that ran out of memory. [items]
    chosen
        The one that is chosen, empty where none is predicted to fit.
    chosen_seconds
        Its measured time, None where it has none. [s]
    best_seconds
        The least measured time. [s]
    chosen_ran_out
        Whether the chosen one ran out of memory.
    """

    source: str
    workload: str
    ran: int
    out_of_memory: int
    chosen: str
    chosen_seconds: float | None
    best_seconds: float
    chosen_ran_out: bool

    @property
    def regret(self) -> float | None:
        """Measured time of the chosen one over the best, less one."""
        seconds = self.chosen_seconds
        return None if seconds is None else seconds / self.best_seconds - 1.0


def workload_regrets(cells: Iterable[LlmCell]) -> list[WorkloadRegret]:
    """The regret on every workload with enough measured strategies, in the order of the rows."""
    tried: dict[tuple[object, ...], dict[Configuration, list[LlmCell]]] = {}
    for cell in cells:
        of = cell.measurement
        if not of.doubt and (cell.measured_seconds is not None or of.fits is False):
            strategies = tried.setdefault((of.source, *of.workload), {})
            # what a job measured of its links is no choice
            strategy = replace(of.configuration, measured_links=None)
            strategies.setdefault(strategy, []).append(cell)
    rows = (_regret_of_workload(list(strategies.values())) for strategies in tried.values())
    return [row for row in rows if row is not None]


def doubted_regrets(cells: Iterable[LlmCell]) -> dict[str, list[WorkloadRegret]]:
    """The same among rows in doubt alone, by the doubt."""
    return {doubt: workload_regrets(rows) for doubt, rows in counted_anyway(cells).items()}


def _regret_of_workload(strategies: Sequence[Sequence[LlmCell]]) -> WorkloadRegret | None:
    """The regret on a workload, from the rows of each of its strategies."""
    measured = [_mean_seconds(rows) for rows in strategies]
    times = [seconds for seconds in measured if seconds is not None]
    if len(times) < FEWEST:
        return None
    predicted = [statistics.fmean(row.prediction.seconds for row in rows) for rows in strategies]
    fitting = [n for n, rows in enumerate(strategies) if all(row.may_be_chosen for row in rows)]
    place = min(fitting, key=lambda n: predicted[n], default=None)
    of = strategies[0][0].measurement
    sizes, configuration = of.configuration.sizes, of.configuration
    tokens = configuration.global_batch * sizes.sequence
    return WorkloadRegret(
        source=of.source,
        workload=f"{sizes.name}, {configuration.gpus} x {configuration.gpu}, {tokens:,} tokens",
        ran=len(times),
        out_of_memory=len(strategies) - len(times),
        chosen="" if place is None else strategies[place][0].measurement.configuration.label,
        chosen_seconds=None if place is None else measured[place],
        best_seconds=min(times),
        chosen_ran_out=place is not None and measured[place] is None,
    )


def _mean_seconds(rows: Sequence[LlmCell]) -> float | None:
    """The measured time of a strategy, None where it ran out of memory."""
    times = [seconds for row in rows if (seconds := row.measured_seconds) is not None]
    return statistics.fmean(times) if times else None


def regret_facts(rows: Sequence[WorkloadRegret]) -> dict[str, Any]:
    """All workloads and what they sum up to, as plain data."""
    regrets = [regret for row in rows if (regret := row.regret) is not None]
    return {
        "workloads": [{**asdict(row), "regret": row.regret} for row in rows],
        "mean": statistics.fmean(regrets) if regrets else None,
        "worst": max(regrets, default=None),
        "chosen_ran_out": sum(row.chosen_ran_out for row in rows),
        "none_chosen": sum(not row.chosen for row in rows),
    }


def print_regret(rows: Sequence[WorkloadRegret], console: Console, *, markdown: bool) -> None:
    """Print every workload, and what they sum up to.

    Parameters
    ----------
    rows
        The workloads.
    console
        Where tables that are not Markdown are printed.
    markdown
        Whether to print Markdown.
    """
    print_grid(console, _HEADER, [_regret_cells(row) for row in rows], markdown)
    facts = regret_facts(rows)
    if facts["mean"] is not None:
        print(
            f"{len(rows)} workloads: mean regret {facts['mean']:.1%} (aim at most {MEAN:.0%}), "
            f"worst {facts['worst']:.1%} (aim at most {WORST:.0%})"
        )
    print(
        f"chosen strategies that ran out of memory: {facts['chosen_ran_out']} (aim 0); workloads "
        f"without any that is predicted to fit: {facts['none_chosen']}"
    )


def print_doubted_regret(doubted: Mapping[str, Sequence[WorkloadRegret]]) -> None:
    """Print what the workloads of rows in doubt sum up to, a line a doubt."""
    for doubt, rows in doubted.items():
        facts = regret_facts(rows)
        if facts["mean"] is not None:
            print(
                f"not counted ({doubt}): {len(rows)} workloads, mean regret {facts['mean']:.1%}, "
                f"worst {facts['worst']:.1%}"
            )


def _regret_cells(row: WorkloadRegret) -> tuple[str, ...]:
    regret = "none fits" if not row.chosen else "out of memory"
    return (
        *(row.source, row.workload, str(row.ran), str(row.out_of_memory)),
        row.chosen.partition(": ")[2] or "-",
        "-" if row.chosen_seconds is None else f"{row.chosen_seconds:.4g}",
        f"{row.best_seconds:.4g}",
        regret if row.regret is None else f"{row.regret:.1%}",
    )

"""Black-box search over a few discrete parameters, for choices that no cost table holds.

Models: nothing about the objective. Every combination is tried where they are few enough; else a
tree-structured Parzen estimator (Bergstra et al. 2011, by Optuna) chooses which to try. The same
combination is never evaluated twice.
Assumes: the objective returns a float to minimise, +inf or NaN where a combination is impossible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from search.errors import ProblemError
from search.problem.deadline import Deadline

Value = TypeVar("Value")

# TPE proposes known combinations again and again near the end; this many in a row is enough.
MAX_REPEATS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Generic[Value]):
    """One combination that was tried.

    Parameters
    ----------
    number
        Its place in the order of trying.
    parameters
        The value of every parameter.
    value
        What the objective returned.
    """

    number: int
    parameters: dict[str, Value]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Generic[Value]):
    """What came of it.

    Parameters
    ----------
    trials
        All trials, in the order of trying.
    complete
        Whether every combination was tried, so that the best is the optimum.
    method
        "grid" or "tpe".
    stopped_by
        "time limit" or "interrupt" where the search was cut short, else empty.
    """

    trials: tuple[Trial[Value], ...]
    complete: bool
    method: str
    stopped_by: str = ""

    @property
    def best(self) -> Trial[Value] | None:
        """The first trial of least value, or None where no combination was possible."""
        possible = [t for t in self.trials if t.value < math.inf]
        return min(possible, key=lambda t: t.value, default=None)

    @property
    def ranked(self) -> tuple[Trial[Value], ...]:
        """The possible trials, best first."""
        possible = (t for t in self.trials if t.value < math.inf)
        return tuple(sorted(possible, key=lambda t: t.value))


def tune(
    objective: Callable[[dict[str, Value]], float],
    space: Mapping[str, Sequence[Value]],
    *,
    max_trials: int,
    seed: int = 0,
    time_limit: float | None = None,
) -> Tuning[Value]:
    """Minimise a function of a few discrete parameters.

    Parameters
    ----------
    objective
        What to minimise.
    space
        Per parameter the values it can take.
    max_trials
        The most combinations to try. [items]
    seed
        Seed of the sampler.
    time_limit
        Time after which no further combination is tried. [s]

    Raises
    ------
    ProblemError
        When a parameter has no values, or when there are fewer than one trial.
    """
    for name, values in space.items():
        if not len(values):
            raise ProblemError(
                f"a parameter must have at least one value but {name} has none; drop it or add one"
            )
    if max_trials < 1:
        raise ProblemError.rule("the number of trials", "be at least 1", max_trials, "allow more")
    count = math.prod(len(values) for values in space.values())
    grid = count <= max_trials
    source = _grid(space) if grid else _Sampler(space, seed)
    deadline = Deadline(time_limit)
    trials: list[Trial[Value]] = []
    stopped_by = ""
    try:
        for parameters in source:
            if deadline.passed and trials:
                stopped_by = "time limit"
                break
            value = float(objective(dict(parameters)))
            trials.append(Trial(number=len(trials), parameters=parameters, value=value))
            if isinstance(source, _Sampler):
                source.tell(value)
            if len(trials) == max_trials:
                break
    except KeyboardInterrupt:
        stopped_by = "interrupt"
    return Tuning(
        trials=tuple(trials),
        complete=len(trials) == count,
        method="grid" if grid else "tpe",
        stopped_by=stopped_by,
    )


def _grid(space: Mapping[str, Sequence[Value]]) -> Iterator[dict[str, Value]]:
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


class _Sampler(Generic[Value]):
    """Combinations that TPE proposes, each once."""

    def __init__(self, space: Mapping[str, Sequence[Value]], seed: int) -> None:
        import optuna

        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        finally:
            optuna.logging.set_verbosity(verbosity)
        self._space = space
        # Values may be anything; Optuna is shown their positions.
        self._positions: dict[str, Any] = {
            name: optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            for name, values in space.items()
        }
        self._known: dict[tuple[int, ...], float] = {}
        self._asked: tuple[Any, tuple[int, ...]] | None = None

    def __iter__(self) -> Iterator[dict[str, Value]]:
        repeats = 0
        while repeats < MAX_REPEATS:
            trial = self._study.ask(self._positions)
            key = tuple(trial.params[name] for name in self._space)
            if key in self._known:
                self._study.tell(trial, self._known[key])
                repeats += 1
                continue
            repeats = 0
            self._asked = (trial, key)
            yield {n: self._space[n][i] for n, i in zip(self._space, key, strict=True)}

    def tell(self, value: float) -> None:
        """Report the value of the combination that came out last."""
        assert self._asked is not None
        trial, key = self._asked
        # Optuna takes no NaN; impossible combinations are as bad as it gets.
        self._known[key] = math.inf if math.isnan(value) else value
        self._study.tell(trial, self._known[key])

"""Of plans that are hardly slower the simplest is chosen, and more memory never makes it slower."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.planning.decision.choice import undominated
from planner.planning.decision.decide import simpler_notes
from planner.planning.decision.simulator import SimulatedChoices

# step in tenths of a percent of the fastest there can be, memory, and changes of split
POOLS = st.lists(
    st.tuples(st.integers(1000, 1030), st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=9
)


def trials(pool: list[tuple[int, int, int]]) -> dict[SimulatedChoices, int]:
    """Trials, and how often each changes its split."""
    return {
        SimulatedChoices(
            choices=(number,),
            bucket_bytes=1.0,
            seconds=step / 1000,
            peak_memory=memory,
            received=0.0,
        ): changes
        for number, (step, memory, changes) in enumerate(pool)
    }


def chosen(pool: dict[SimulatedChoices, int], memory: int) -> SimulatedChoices | None:
    """The simplest of the undominated within 1 % of the fastest that fits."""
    fitting = [trial for trial in pool if trial.peak_memory <= memory]
    if not fitting:
        return None
    fastest = min(trial.seconds for trial in fitting)
    near = undominated([trial for trial in fitting if trial.seconds <= 1.01 * fastest])
    return min(near, key=lambda trial: (pool[trial], trial.seconds))


@given(POOLS)
def test_among_the_same_plans_more_memory_never_makes_the_choice_slower(pool):
    known = trials(pool)
    steps = [one.seconds for memory in range(1, 7) if (one := chosen(known, memory)) is not None]
    for number, less in enumerate(steps):
        assert all(more <= less * 1.001001 for more in steps[number:])


def test_a_simpler_plan_is_chosen_where_it_saves_memory_or_nothing_is_faster():
    pool = trials([(1000, 4, 5), (1008, 3, 0), (1008, 4, 1)])
    fast, frugal, simple = pool
    assert undominated(list(pool)) == [fast, frugal]
    assert chosen(pool, 4) is frugal
    assert undominated([simple]) == [simple]


def test_times_that_count_as_equal_do_not_put_a_plan_out():
    fast, slow = trials([(1000, 4, 5), (1001, 4, 0)])
    assert undominated([fast, slow]) == [fast, slow]


def test_a_plan_that_is_no_simpler_is_not_called_so():
    assert simpler_notes(0.0004, 0, 0) == []
    assert [note.kind for note in simpler_notes(0.0004, 0, 1)] == ["simplest-chosen"]

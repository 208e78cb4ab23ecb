"""Messages that share links."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import (
    BUS,
    COMPUTE,
    FEATURE,
    GRADIENT,
    NIC,
    run,
    some_loads,
    task,
    times,
)

from costmodels.simulation.execution import Task
from costmodels.simulation.sharing import Sharing, fair_paces


def message(transfer: float, *links: Any, seconds: float = 0.0, **more: Any) -> Task:
    """A message on some links, each a link that it fills or a pair of link and part."""
    loads = tuple(link if isinstance(link[0], tuple) else (link, 1.0) for link in links)
    queue = more.pop("queue", FEATURE)
    after = more.pop("after", ())
    return task(queue, seconds, *after, transfer=transfer, loads=loads, **more)


def test_two_messages_on_one_link_take_twice_as_long():
    rows = [message(4.0, NIC), message(4.0, NIC, queue=GRADIENT)]
    assert times(run(rows)) == [(0, 8), (0, 8)]
    assert times(run(rows, sharing=False)) == [(0, 4), (0, 4)]


def test_two_messages_of_different_length():
    # both at half pace until the short one ends at 4, then the long one has 4 left
    rows = [message(6.0, NIC), message(2.0, NIC, role=1)]
    assert times(run(rows)) == [(0, 8), (0, 4)]


def test_messages_that_fill_a_link_in_parts():
    # 1 + 1/2 of the link: both at two thirds; 2 s take 3, of 4 s are then 2 left
    rows = [message(4.0, NIC), message(2.0, (NIC, 0.5), role=1)]
    assert times(run(rows)) == [(0, 5), (0, 3)]
    # together they fill no more than there is
    rows = [message(4.0, (NIC, 0.5)), message(2.0, (NIC, 0.5), role=1)]
    assert times(run(rows)) == [(0, 4), (0, 2)]


def test_a_message_held_up_elsewhere_leaves_the_rest_of_its_link():
    # three on the bus get a third each; the other one on the first one's NIC gets two thirds
    rows = [
        message(1.0, NIC, BUS),
        message(1.0, BUS, role=1),
        message(1.0, BUS, role=2),
        message(1.0, NIC, role=3),
    ]
    assert times(run(rows)) == [(0, 3), (0, 3), (0, 3), (0, 1.5)]


def test_links_are_shared_level_by_level():
    """A crosses both levels, B only the bus, C only the NIC, which it and A fill by 0.5 + 1.

    NIC: A and C at 2/3. Bus: A and B fill 1 + 0.4 of it, so 5/7 would do: A is held up by the NIC
    and uses 2/3 of the bus, of which B gets the last third: 5/6 of its pace.
    """
    rows = [
        message(2.0, (NIC, 0.5), (BUS, 1.0)),
        message(5 / 6, (BUS, 0.4), role=1),
        message(2.0, (NIC, 1.0), role=2),
    ]
    assert fair_paces({n: row.loads for n, row in enumerate(rows)}) == pytest.approx(
        {0: 2 / 3, 1: 5 / 6, 2: 2 / 3}
    )
    assert times(run(rows)) == [(0, 3), (0, 1), (0, 3)]


def test_directions_and_children_are_links_of_their_own():
    rows = [
        message(4.0, (1, 0, 0)),
        message(4.0, (1, 0, 1), role=1),
        message(4.0, (1, 1, 0), role=2),
        message(4.0, (0, 0, 0), role=3),
    ]
    assert times(run(rows)) == [(0, 4)] * 4


def test_only_bytes_share_a_link():
    # the first flows alone from 1 to 2, both from 2 to 4, the second alone until 5
    rows = [message(2.0, NIC, seconds=1.0), message(2.0, NIC, seconds=2.0, role=1)]
    assert times(run(rows)) == [(0, 4), (0, 5)]


def test_a_message_that_comes_and_goes_changes_the_pace_of_those_it_meets_only():
    # 0 alone until 3; both to 5; 0 has done 4 of 6 and is through at 7; the bus is of no concern
    rows = [
        message(6.0, NIC),
        task(COMPUTE, 3.0, role=1),
        message(1.0, NIC, role=1, after=(1,)),
        message(6.0, BUS, role=2),
    ]
    assert times(run(rows)) == [(0, 7), (0, 3), (3, 5), (0, 6)]


def test_overlap_and_sharing_multiply():
    # the gradient flows at a half of a half until the feature message ends at 4 s of half pace
    rows = [
        task(COMPUTE, 100.0),
        message(3.0, NIC, queue=GRADIENT),
        message(2.0, NIC),
    ]
    line = run(rows, 1.0)
    assert times(line)[2] == (0, 4)
    # 4 / 4 = 1 done, 2 left at a half
    assert times(line)[1] == (0, 8)
    # 8 s at half pace
    assert times(line)[0] == (0, 104)


def test_sharing_forgets_messages_that_have_ended():
    sharing = Sharing()
    assert sharing.add(1, ((NIC, 1.0),)) == {1: 1.0}
    assert sharing.add(2, ((NIC, 1.0),)) == {1: 0.5, 2: 0.5}
    assert sharing.remove(1) == {2: 1.0}
    assert sharing.remove(2) == {}
    assert sharing.add(3, ((NIC, 1.0),)) == {3: 1.0}


@given(loads=st.lists(some_loads, min_size=1, max_size=7))
@settings(max_examples=60)
def test_paces_are_max_min_fair(loads):
    paces = fair_paces(dict(enumerate(loads)))
    used: dict[Any, float] = {}
    for number, row in enumerate(loads):
        assert 0.0 < paces[number] <= 1.0
        for link, part in row:
            used[link] = used.get(link, 0.0) + part * paces[number]
    assert all(total <= 1.0 + 1e-6 for total in used.values())
    # who is slowed down crosses a full link on which nobody is faster
    for number, row in enumerate(loads):
        if paces[number] < 1.0:
            assert any(
                used[link] >= 1.0 - 1e-6
                and all(
                    paces[other] <= paces[number] + 1e-6
                    for other, others in enumerate(loads)
                    if link in dict(others)
                )
                for link, _ in row
            )

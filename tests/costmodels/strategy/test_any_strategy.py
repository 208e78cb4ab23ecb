"""Any description is a valid strategy, or is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_strategies import entry, residual

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.strategy import (
    Description,
    LayerEntry,
    build_strategy,
    describe_strategy,
    propagate,
)
from costmodels.strategy.strategy import Stage

NAMES = [layer.name for layer in residual().compute_layers]


PARTITIONS = st.dictionaries(
    st.sampled_from(["sample", "filter", "channel", "height", "head"]),
    st.one_of(st.sampled_from([1, 2, 3, 4, 8]), st.tuples(st.integers(1, 4), st.integers(1, 2))),
    max_size=3,
)


ENTRIES = st.builds(
    lambda name, partition: LayerEntry(name=name, partition=partition, label=name),
    st.sampled_from([*NAMES, "*", "block", "block.*", "f*"]),
    PARTITIONS,
)


@given(
    st.lists(ENTRIES, max_size=4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([2, 8]),
    st.sampled_from(["data", "replicated"]),
)
@settings(max_examples=300)
def test_any_description_is_valid_or_refused(entries, groups, chunks, batch, default):
    graph = residual(batch)
    description = Description(layers=tuple(entries), groups=groups, chunks=chunks, default=default)
    try:
        strategy, _ = build_strategy(description, graph, (4, 2))
    except InputError:
        return
    strategy.check(graph)
    assert list(strategy.distributions) == NAMES
    # what is written down of it makes the same strategy
    again, _ = build_strategy(describe_strategy(strategy, graph, (4, 2)), graph, (4, 2))
    assert again == strategy


def test_most_descriptions_of_the_test_above_are_accepted():
    accepted = 0
    for dim, ways in itertools.product(("sample", "filter"), (1, 2, 4, 8)):
        try:
            build_strategy(Description(layers=(entry("stem", **{dim: ways}),)), residual(), (4, 2))
            accepted += 1
        except InputError:
            pass
    assert accepted == 8


def test_propagation_refuses_what_a_layer_cannot_have():
    graph = residual()
    stage = Stage(layers=tuple(NAMES), first_device=0, shape=(16,))
    wanted = Distribution(degrees={"filter": (16,)}, shape=(16,))
    with pytest.raises(InputError, match="8 filter positions, fewer than the 16"):
        propagate(graph, (stage,), {"stem": wanted})

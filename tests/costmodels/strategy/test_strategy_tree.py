"""The strategy tree: patterns, and which of them is the more specific."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.errors import InputError
from costmodels.strategy.tree import compress, find_nodes, more_specific, strategy_tree


def test_tree_selects_layers_and_subgraphs(gpt):
    tree = strategy_tree([layer.name for layer in gpt.compute_layers])
    assert tree.layers == tuple(layer.name for layer in gpt.compute_layers)
    (attention,) = find_nodes(tree, "h.3.attn")
    assert attention.is_layer
    assert attention.own_layers == ("h.3.attn",)
    below = {"h.3.attn", "h.3.attn.c_attn", "h.3.attn.c_proj", "h.3.attn.dropout"}
    assert set(attention.layers) == below
    assert [n.path for n in find_nodes(tree, "h.2-4")] == ["h.2", "h.3", "h.4"]
    assert [n.path for n in find_nodes(tree, "h.1?.ln_*")] == [
        f"h.1{i}.ln_{j}" for i in "01" for j in "12"
    ]
    # a shell pattern stays within its segment
    assert find_nodes(tree, "h.*_attn") == ()
    assert find_nodes(tree, "") == (tree,)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("h.3", "h", True),
        ("h.3", "h.*", True),
        ("h.0-5", "h.*", True),
        ("h.3", "h.0-5", True),
        ("h.*", "h.*", False),
        ("h.*.attn", "h.3", True),
        ("*.3", "h.*", False),
        ("h.*", "*.3", False),
        ("h", "", True),
    ],
)
def test_more_specific(first, second, expected):
    assert more_specific(first, second) is expected
    assert not (more_specific(first, second) and more_specific(second, first))


@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9)))
def test_compressed_patterns_select_the_same(chosen, others):
    names = [f"a.{i}.conv" for i in sorted(chosen | others)] + ["a.norm.conv"]
    tree = strategy_tree(names)
    wanted = [f"a.{i}.conv" for i in sorted(chosen)]
    found = [node.path for pattern in compress(tree, wanted) for node in find_nodes(tree, pattern)]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("name", ["..", ".", "a..b", "a.", ".a", "a." * 2000 + "a"])
def test_names_that_are_no_paths_are_refused(name):
    with pytest.raises(InputError, match="must be paths"):
        strategy_tree(["fc", name])


def test_ranges_of_thousands_of_digits_fit_nothing():
    tree = strategy_tree(["h.0", f"h.{'9' * 5000}"])
    assert find_nodes(tree, f"h.0-{'9' * 5000}") == ()
    assert [node.path for node in find_nodes(tree, "h.0-9")] == ["h.0"]

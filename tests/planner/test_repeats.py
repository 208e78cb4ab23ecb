"""Repeated blocks of network files: what they stand for, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from planner.models import format_network, parse_network
from planner.models.repeats import MOST_LAYERS

HEAD = 'name = "mine"\n[input]\nsequence = 16\n'
EMBED = '[[layer]]\nname = "embed"\nkind = "embedding"\nrows = 100\nfilters = 32\n'
BLOCK = """[[layer]]
name = "h"
repeat = 3
[[layer.layer]]
name = "norm"
kind = "layer_norm"
[[layer.layer]]
name = "fc"
kind = "linear"
filters = 32
[[layer.layer]]
name = "join"
kind = "add"
inputs = ["fc", "input"]
"""
LOSS = '[[layer]]\nname = "loss"\nkind = "loss"\n'


def parsed(*parts: str) -> Network:
    return parse_network("\n".join(parts), suffix=".toml")


def reads(network: Network) -> dict[str, tuple[str, ...]]:
    return {spec.name: spec.inputs for spec in network.layers}


def test_a_block_stands_for_its_layers_one_time_after_the_other() -> None:
    network = parsed(HEAD, EMBED, BLOCK, LOSS)
    assert reads(network) == {
        "embed": ("input",),
        "h.0.norm": ("embed",),
        "h.0.fc": ("h.0.norm",),
        "h.0.join": ("h.0.fc", "embed"),
        "h.1.norm": ("h.0.join",),
        "h.1.fc": ("h.1.norm",),
        "h.1.join": ("h.1.fc", "h.0.join"),
        "h.2.norm": ("h.1.join",),
        "h.2.fc": ("h.2.norm",),
        "h.2.join": ("h.2.fc", "h.1.join"),
        "loss": ("h.2.join",),
    }
    assert len(build_graph(network, 4).compute_layers) == 11


def test_what_is_read_back_is_the_same_network_without_blocks() -> None:
    network = parsed(HEAD, EMBED, BLOCK, LOSS)
    for suffix in (".toml", ".json"):
        text = format_network(network, suffix=suffix)
        assert "repeat" not in text
        assert parse_network(text, suffix=suffix) == network


def test_blocks_in_json_are_those_in_toml() -> None:
    import tomllib

    document = tomllib.loads("\n".join((HEAD, EMBED, BLOCK, LOSS)))
    again = parse_network(json.dumps(document), suffix=".json")
    assert again == parsed(HEAD, EMBED, BLOCK, LOSS)


def test_a_block_can_read_and_be_read_from_elsewhere() -> None:
    other = '[[layer]]\nname = "other"\nkind = "layer_norm"\ninputs = ["embed"]\n'
    block = BLOCK.replace("repeat = 3", 'repeat = 2\ninputs = ["embed"]')
    join = '[[layer]]\nname = "both"\nkind = "add"\ninputs = ["h", "other"]\n'
    found = reads(parsed(HEAD, EMBED, other, block, join, LOSS))
    assert found["h.0.norm"] == ("embed",)
    assert found["both"] == ("h.1.join", "other")
    inside = block.replace('["fc", "input"]', '["fc", "other"]')
    found = reads(parsed(HEAD, EMBED, other, inside, LOSS))
    assert found["h.1.join"] == ("h.1.fc", "other")


def test_blocks_hold_blocks() -> None:
    inner = (
        '[[layer.layer]]\nname = "in"\nrepeat = 2\n'
        '[[layer.layer.layer]]\nname = "fc"\nkind = "linear"\nfilters = 32\n'
    )
    last = '[[layer.layer]]\nname = "out"\nkind = "add"\ninputs = ["in", "input"]\n'
    head = '[[layer]]\nname = "h"\nrepeat = 2\n'
    found = reads(parsed(HEAD, EMBED, head, inner, last, LOSS))
    assert list(found)[1:-1] == [
        *("h.0.in.0.fc", "h.0.in.1.fc", "h.0.out"),
        *("h.1.in.0.fc", "h.1.in.1.fc", "h.1.out"),
    ]
    assert found["h.1.in.0.fc"] == ("h.0.out",)
    assert found["h.1.out"] == ("h.1.in.1.fc", "h.0.out")


def test_a_weight_is_shared_inside_a_time_or_with_a_layer_outside() -> None:
    twice = BLOCK.replace(
        '[[layer.layer]]\nname = "join"',
        '[[layer.layer]]\nname = "again"\nkind = "linear"\nfilters = 32\nshare = "fc"\n'
        '[[layer.layer]]\nname = "join"',
    )
    network = parsed(HEAD, EMBED, twice, LOSS)
    shared = {s.name: s.options["share"] for s in network.layers if "share" in s.options}
    assert shared == {f"h.{n}.again": f"h.{n}.fc" for n in range(3)}
    first = '[[layer]]\nname = "first"\nkind = "linear"\nfilters = 32\n'
    tied = BLOCK.replace("filters = 32", 'filters = 32\nshare = "first"')
    graph = build_graph(parsed(HEAD, EMBED, first, tied, LOSS), 1)
    assert graph.sharers == {"first": ("h.0.fc", "h.1.fc", "h.2.fc")}


def test_a_deep_transformer_is_that_of_the_package() -> None:
    """The blocks of GPT-2, written once."""
    from planner.models import build

    gpt = build("gpt2")
    document: Any = json.loads(format_network(gpt, suffix=".json"))
    rows = document["layer"]
    first = [row for row in rows if row["name"].startswith("h.0.")]
    entry = first[0]["inputs"][0]
    block = []
    for row in first:
        names = ["input" if n == entry else n.removeprefix("h.0.") for n in row["inputs"]]
        block.append({**row, "name": row["name"].removeprefix("h.0."), "inputs": names})
    start = rows.index(first[0])
    outside = [row for row in rows if not row["name"].startswith("h.")]
    row = {"name": "h", "repeat": 12, "layer": block}
    document["layer"] = [*outside[:start], row, *outside[start:]]
    assert parse_network(json.dumps(document), suffix=".json") == gpt


REFUSED = {
    "repeat = 0": "block 'h': repeat must be from 1 to 65,536 but is 0",
    "repeat = -3": "repeat must be from 1 to 65,536 but is -3",
    "repeat = 1_000_000_000": "repeat must be from 1 to 65,536 but is 1000000000",
    "repeat = 60_000": f"at most {MOST_LAYERS:,} layers but has 180,002",
    "repeat = 1.5": "block 'h' has a value of the wrong type: expected 'int', got 'float'",
    "repeat = true": "expected 'int', got 'bool'",
    'repeat = 2\ninputs = ["embed", "input"]': "block 'h' must read one layer but reads 2",
    "repeat = 2\ninputs = []": "block 'h' must read one layer but reads 0",
    'repeat = 2\ninputs = ["h"]': "cycle",
    'repeat = 2\nkind = "conv"': "block 'h' has the unknown field 'kind'",
    "": "block 'h' lacks the field 'repeat'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_nonsense_is_refused_with_one_sentence(line: str) -> None:
    with pytest.raises(InputError) as error:
        parsed(HEAD, EMBED, BLOCK.replace("repeat = 3", line), LOSS)
    assert REFUSED[line] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"norm"', '"input"', "must be unique and not 'input' but 'input' is taken"),
        ('"norm"', '"fc"', "must be unique and not 'input' but 'fc' is taken"),
        ('name = "h"', 'name = "embed"', "but 'embed' is taken"),
        ('"norm"', '""', "the name of a layer must be text"),
        ('"norm"', "3", "expected 'str', got 'int' in 'name'"),
        ('["fc", "input"]', '["fc", "nothing"]', "reads 'nothing', which is no layer"),
        ('["fc", "input"]', "[1]", "expected 'str', got 'int'"),
        ('["fc", "input"]', '"fc"', "expected 'array', got 'str'"),
        ("filters = 32\n[[layer.layer]]", 'filters = "x"\n[[layer.layer]]', "layer 'h.0.fc'"),
    ],
)
def test_a_bad_layer_of_a_block_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parsed(HEAD, EMBED, BLOCK.replace(old, new, 1), LOSS)
    assert message in str(error.value)


@pytest.mark.parametrize("layer", ["[]", "[3]", '"fc"'])
def test_a_block_holds_tables(layer: str) -> None:
    with pytest.raises(InputError, match=r"block 'h' (must have layers|has a value)"):
        parsed('name = "mine"\nlayer = [{name = "h", repeat = 2, layer = ' + layer + "}]\n[input]")


def test_deep_nesting_does_not_get_out_of_hand() -> None:
    row: Any = {"name": "fc", "kind": "linear", "filters": 4}
    for _ in range(25):
        row = {"name": "b", "repeat": 65536, "layer": [row]}
    document = {"name": "mine", "input": {"sequence": 4, "hidden": 4}, "layer": [row]}
    with pytest.raises(InputError, match="at most 65,536 layers"):
        parse_network(json.dumps(document), suffix=".json")


def test_the_documented_blocks_are_read() -> None:
    docs = Path(__file__).parents[2] / "docs" / "network-files.md"
    blocks = re.findall(r"```toml\n(.*?)```", docs.read_text(encoding="utf-8"), re.S)
    (text,) = (block for block in blocks if "repeat" in block)
    assert len(parsed(text).layers) == 12 * 3 + 1

"""Strategy files say what the documentation says, and errors name the places that are wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import planner
from costmodels.cluster import Cluster, load_cluster
from costmodels.errors import InputError
from costmodels.graph import Graph, build_graph
from costmodels.strategy import MemoryConfig, hybrid
from costmodels.strategy.strategy import Schedule
from planner.models import load_network
from planner.notes import words
from planner.request.sources import read_source
from planner.request.strategy_files import strategy_of, strategy_text
from planner.request.strategy_tables import format_strategy, parse_strategy

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "strategy-files.md").read_text(encoding="utf-8")
CLUSTER = load_cluster("proteus-hc2")
HEAD = 'format = "planner-strategy"\n'


@pytest.fixture(scope="module")
def gpt() -> Graph:
    return build_graph(load_network("gpt2"), 16)


def write(folder: Path, text: str) -> Path:
    path = folder / "strategy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def load_strategy(path: Path, graph: Graph, cluster: Cluster, gpus: int):
    return strategy_of(read_source(path), path, graph, cluster, gpus)


def error_of(folder: Path, text: str, graph: Graph, gpus: int = 16) -> str:
    path = write(folder, HEAD + text)
    with pytest.raises(InputError) as caught:
        load_strategy(path, graph, CLUSTER, gpus)
    message = str(caught.value)
    assert re.match(rf"the (strategy )?file {re.escape(str(path))}", message)
    assert "\n" not in message
    return message


def test_documented_example_is_megatron(tmp_path):
    path = write(tmp_path, re.search(r"```toml\n(.*?)```", DOCS, re.S)[1])
    file = read_source(path)
    assert (file.model, file.cluster, file.gpus) == ("gpt2", "proteus-hc2", 16)
    assert (file.global_batch_size, file.precision) == (64, None)
    batch = file.global_batch_size // file.description.micro_batches
    graph = build_graph(load_network(file.model), batch)
    strategy, notes = load_strategy(path, graph, load_cluster(file.cluster), file.gpus)
    assert notes == ()
    expected = hybrid(graph, (8, 2), dp=4, tp=2, pp=2, micro_batches=4)
    assert strategy.distributions == expected.distributions
    assert strategy.schedule == Schedule(kind="1f1b", micro_batches=4)
    assert [stage.group for stage in strategy.stages] == [(0, 8), (8, 16)]
    assert strategy.stages[1].layers[0] == "h.9.ln_1"
    assert [len(stage.recompute) for stage in strategy.stages] == [9, 3]
    assert strategy.memory["h.4.mlp.c_fc"] == MemoryConfig(state=True)
    assert "head" not in strategy.memory


def test_documented_python_runs(tmp_path):
    program = re.search(r"```python\n(.*?)```", DOCS, re.S)[1]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_documented_fields_are_those_there_are():
    from planner.request import strategy_tables as tables

    for table in (
        tables._StrategyTables,
        tables._ScheduleTable,
        tables._StageTable,
        tables._LayerTable,
        tables._SubgraphTable,
    ):
        for name in table.__struct_fields__:
            assert f"`{name}" in DOCS or f"[{name}]" in DOCS, name


FULL = (
    HEAD
    + """
model = "gpt2"
default = "replicated"

[schedule]
kind = "interleaved"
micro_batches = 2
max_in_flight = 3

[[stage]]
layers = ["*embedding", "h.0-5"]
devices = "0-15"

[[stage]]
layers = ["h.6-11", "ln_f", "head", "loss"]
devices = "0-15"
recompute = [["h.6", "h.7.ln_1"]]

[[layer]]
name = "h.*.attn.c_attn"
partition = { sample = [2, 2], filter = [4, 1] }
devices = "0-15"

[[subgraph]]
zero = 2

[[subgraph]]
name = "h.3"
recompute = true
weights = "sharded"
state = "whole"
"""
)


def test_a_description_survives_its_text():
    file = parse_strategy(FULL)
    labels = re.compile(r", label='[^']*'")
    again = parse_strategy(format_strategy(file))
    assert labels.sub("", str(again)) == labels.sub("", str(file))
    first, second = file.description.subgraphs
    assert (first.state, first.gradients, first.weights) == (True, True, False)
    assert (second.state, second.gradients, second.weights) == (False, None, True)
    assert second.label == '[[subgraph]] 2 ("h.3", line 28)'


def test_a_full_file_is_understood(tmp_path, gpt):
    strategy, _ = load_strategy(write(tmp_path, FULL), gpt, CLUSTER, 16)
    assert strategy.distributions["h.0.attn"].degrees == {"sample": (2, 2), "head": (4, 1)}
    assert strategy.stages[1].recompute[0][-1] == "h.7.ln_1"
    assert strategy.memory["h.3.ln_1"] == MemoryConfig(gradients=True, weights=True)
    assert strategy.memory["head"] == MemoryConfig(gradients=True, state=True)


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("gpt2", {"dp": 4, "tp": 2, "pp": 2}),
        ("gpt2", {"dp": 4, "pp": 4}),
        ("gpt2", {"dp": 8, "pp": 2, "chunks": 2, "schedule_kind": "interleaved"}),
        ("gpt2", {"tp": 4, "dp": 4, "micro_batches": 2, "schedule_kind": "gpipe"}),
        ("resnet50", {"dp": 8, "tp": 2}),
        ("resnet50", {"dp": 4, "tp": 2, "pp": 2, "max_in_flight": 1}),
        ("inception_v3", {"dp": 2, "tp": 2, "pp": 4}),
        ("densenet121", {"dp": 4, "tp": 4}),
        ("unet", {"dp": 8, "tp": 1, "pp": 2}),
    ],
)
def test_strategies_survive_their_files(tmp_path, model, degrees):
    graph = build_graph(load_network(model), 16)
    strategy = hybrid(graph, (8, 2), **degrees)
    path = tmp_path / "exported.toml"
    text = strategy_text(strategy, graph, CLUSTER, 16, model=model, global_batch_size=64)
    path.write_text(text, encoding="utf-8")
    file = read_source(path)
    assert (file.model, file.gpus, file.cluster) == (model, 16, "proteus-hc2")
    again, _ = load_strategy(path, graph, CLUSTER, 16)
    assert again == strategy


def test_exported_text_is_short_and_names_what_is_recomputed(gpt, tmp_path):
    text = """
        [[subgraph]]
        name = "h.*"
        recompute = true
        [[subgraph]]
        name = "head"
        zero = 3
    """
    strategy, _ = load_strategy(write(tmp_path, HEAD + text), gpt, CLUSTER, 16)
    exported = strategy_text(strategy, gpt, CLUSTER, 16)
    assert 'name = "h.*"\nrecompute = true' in exported
    assert 'name = "head"\nzero = 3' in exported
    assert "[[stage]]" not in exported
    assert load_strategy(write(tmp_path, exported), gpt, CLUSTER, 16)[0] == strategy
    # segments that are no subgraphs are listed at their stage
    odd = HEAD + '[[stage]]\nlayers = ["*"]\nrecompute = [["h.0.ln_2", "h.0.mlp"], ["h.2-3"]]\n'
    strategy, _ = load_strategy(write(tmp_path, odd), gpt, CLUSTER, 16)
    exported = strategy_text(strategy, gpt, CLUSTER, 16)
    assert 'recompute = [["h.0.ln_2", "h.0.mlp"], ["h.2-3"]]' in exported
    assert load_strategy(write(tmp_path, exported), gpt, CLUSTER, 16)[0] == strategy


def test_contradictions_name_both_places(tmp_path, gpt):
    twice = """
[[layer]]
name = "h.*.attn.c_attn"
partition = { sample = 8 }

[[layer]]
name = "ln_f"
partition = { sample = 8 }

# [[layer]] in a comment is none
[[ layer ]]
name = "h.*.attn.c_attn"
partition = { filter = 8 }
"""
    message = error_of(tmp_path, twice, gpt)
    assert '[[layer]] 1 ("h.*.attn.c_attn", line 3)' in message
    assert '[[layer]] 3 ("h.*.attn.c_attn", line 12)' in message
    assert "partition of layer 'h.0.attn.c_attn'" in message
    stages = '[[stage]]\nlayers = ["*"]\n\n[[stage]]\nlayers = ["head"]\n'
    message = error_of(tmp_path, stages, gpt)
    assert "'head' must be in one stage" in message
    assert "[[stage]] 1 (line 2) and [[stage]] 2 (line 5)" in message
    settings = '[[subgraph]]\nname = "h.*"\nzero = 1\n[[subgraph]]\nname = "h.*"\nzero = 2\n'
    message = error_of(tmp_path, settings, gpt)
    assert '[[subgraph]] 1 ("h.*", line 2) and [[subgraph]] 2 ("h.*", line 5)' in message
    assert "gradients of layer 'h.0.ln_1'" in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[[layer]]\nname = 'head'", ["[[layer]] 1", "lacks the field 'partition'"]),
        ("[[layer]]\nname = 'head'\npartition = { sample = '2' }", ["[[layer]] 1", "wrong type"]),
        ("[[layer]]\nnames = 'head'", ["[[layer]] 1 (line 2)", "unknown field 'names'", "name"]),
        ("[[layer]]\nname = 'hed'\npartition = {}", ["'hed' fits none", "'head'"]),
        (
            "[[layer]]\nname = 'head'\npartition = { sample = 8, filter = 4 }",
            ['[[layer]] 1 ("head", line 2)', "devices, 16", "8 x 4 = 32 ways"],
        ),
        ("[schedule]\nkind = 'pipe'", ["one of gpipe, 1f1b", "'pipe'"]),
        ("[schedule]\nmicro_batches = 0", ["micro_batches is 0"]),
        ("[schedule]\nmicro_batch = 1", ["[schedule] has the unknown field 'micro_batch'"]),
        ("[schedule]\nstages = 3", ["3 groups do not"]),
        ("[schedule]\nstages = 2\n[[stage]]\nlayers = ['*']", ["[[stage]] 1 (line 4)", "both"]),
        ("[schedule]\nstages = 2\nchunks = 2\nkind = 'gpipe'", ["'interleaved'", "'gpipe'"]),
        ("[[subgraph]]\nzero = 4", ["from 0 to 3 but has 4"]),
        ("[[subgraph]]\nzero = 1\nstate = 'whole'", ["'zero' and 'state'"]),
        ("[[subgraph]]\nstate = 'cut'", ["unknown state 'cut'", "sharded, whole"]),
        ("[[stage]]\ndevices = '0,1'", ["[[stage]] 1 (line 2)", '"0,1"']),
        ("[[stage]]\ndevices = '7-0'", ['"7-0"']),
        ("[[stage]]\ndevices = '0-16'", ["0 to 15", "0-16"]),
        ("default = 'none'", ["one of data, replicated", "'none'"]),
        ("gpus = 0", ["'gpus' must be at least 1 but is 0"]),
        ("layers = 1", ["unknown field 'layers'"]),
        ("layer = [{ name = 'head', partition = { head = 2 } }]", ['[[layer]] 1 ("head") must']),
        ("[[layer]", ["valid TOML"]),
    ],
)
def test_errors_name_the_place(tmp_path, gpt, text, parts):
    message = error_of(tmp_path, text, gpt)
    for part in parts:
        assert part in message


def test_other_files_are_refused(tmp_path, gpt):
    with pytest.raises(InputError, match="must be readable but is not"):
        load_strategy(tmp_path / "none.toml", gpt, CLUSTER, 16)
    with pytest.raises(InputError, match="'format' must be 'planner-strategy' but is 'planner-p"):
        parse_strategy('format = "planner-plan"')
    with pytest.raises(InputError, match="lacks the field 'format'"):
        parse_strategy("")


def test_stages_without_layers_and_devices_are_cut_evenly(tmp_path, gpt):
    by_number = write(tmp_path, HEAD + "[schedule]\nstages = 2\nmicro_batches = 4\n")
    strategy, _ = load_strategy(by_number, gpt, CLUSTER, 16)
    assert strategy == hybrid(gpt, (8, 2), dp=8, pp=2, micro_batches=4)
    one_by_one = HEAD + "[schedule]\nmicro_batches = 4\n[[stage]]\n[[stage]]\n"
    assert load_strategy(write(tmp_path, one_by_one), gpt, CLUSTER, 16)[0] == strategy


def test_unused_devices_are_noted(tmp_path, gpt):
    text = HEAD + '[[stage]]\ndevices = "0-7"\n'
    _, notes = load_strategy(write(tmp_path, text), gpt, CLUSTER, 16)
    assert [words(note) for note in notes] == ["8 of 16 devices are in no stage and do nothing"]


def test_an_entry_must_name_layers() -> None:
    text = 'format = "planner-strategy"\n[[layer]]\nname = ""\npartition = { filter = 2 }\n'
    with pytest.raises(InputError, match=r"\[\[layer\]\] 1.*must name layers"):
        parse_strategy(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[schedule]\nkind = ""', "must have a kind that is named"),
        (f'[[stage]]\nlayers = ["*"]\ndevices = "0-{"9" * 5000}"', "neighbouring devices"),
        ("a = " + "[" * 100_000, "valid TOML"),
        ("gpus = " + "9" * 5000, "valid TOML"),
    ],
)
def test_what_nobody_can_mean_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_strategy(f'format = "planner-strategy"\n{text}')


def test_an_entry_says_how_its_layers_are_split(tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    path.write_text('format = "planner-strategy"\n[[layer]]\nname = "*"\npartition = {}\n')
    with pytest.raises(InputError, match="must say how its layers are split"):
        planner.simulate("alexnet", strategy=path, gpus=2)

"""Every missing and every unknown field of a file is reported at once, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli.command import planner_command

CLUSTER = """name = "mine"
hosts_level = "host"
[device]
name = "gpu"
memroy = "16 GiB"
[[levels]]
name = "host"
size = 2
latency = "5 us"
bandwidth = "12 GB/s"
[[levels]]
name = "network"
sise = 4
"""
NETWORK = """nam = "mine"
[input]
channel = 3
height = 8
[[layer]]
name = "a"
kind = "conv"
kernal = 3
[[layer]]
kind = "activation"
name = "b"
[[layer]]
name = "c"
[[layer]]
name = "d"
repeat = 3
[[layer.layer]]
kind = "linear"
"""
RUNTIME = '[mine]\nbuckt = "8 MiB"\nsahrd = []\n'
STRATEGY = """format = "planner-strategy"
gpu = 4
[schedule]
micro_batch = 2
[[layer]]
name = "head"
[[layer]]
partition = {}
degre = 2
"""
QUESTION = ("--gpus", "4")


@pytest.mark.parametrize(
    ("text", "words", "parts"),
    [
        (
            CLUSTER,
            ("evaluate", "alexnet", *QUESTION, "--cluster", "{}"),
            [
                "the file lacks the fields 'host_level' and 'default_precision' and has the "
                "unknown field 'hosts_level'",
                "device lacks the fields 'memory', 'reserved_memory', 'peak_flops', "
                "'memory_bandwidth', 'num_sms' and 'kernel_latency' and has the unknown field "
                "'memroy'",
                "levels[1] lacks the field 'size' and has the unknown field 'sise'",
            ],
        ),
        (
            NETWORK,
            ("evaluate", "{}", *QUESTION),
            [
                "the file lacks the field 'name' and has the unknown field 'nam'",
                "layer 'a' of kind 'conv' lacks the fields 'filters' and 'kernel' and has the "
                "unknown field 'kernal'",
                "layer 'c' lacks the field 'kind'",
                "layer number 1 of kind 'linear' lacks the fields 'name' and 'filters'",
            ],
        ),
        (
            RUNTIME,
            ("simulate", "alexnet", *QUESTION, "--runtime", "{}"),
            ["unknown fields 'buckt' and 'sahrd'", "use one of bucket"],
        ),
        (
            STRATEGY,
            ("simulate", "alexnet", *QUESTION, "--strategy", "{}"),
            [
                "the file has the unknown field 'gpu'",
                "[schedule] has the unknown field 'micro_batch'",
                "line 5) lacks the field 'partition'",
                "line 7) lacks the field 'name' and has the unknown field 'degre'",
            ],
        ),
    ],
    ids=["cluster", "network", "runtime", "strategy"],
)
def test_all_faults_of_a_file_are_one_sentence(
    text: str, words: tuple[str, ...], parts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    result = CliRunner().invoke(planner_command, [word.format(path) for word in words])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr

"""Runtimes as data: the built-in ones, and those of a user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.errors import InputError
from costmodels.simulation.runtime_files import built_in_runtimes, load_runtime
from costmodels.simulation.runtimes import GRADIENTS


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_built_in_runtimes_say_what_they_are_and_where_they_are_from() -> None:
    for name, runtime in built_in_runtimes().items():
        assert runtime.name == name
        assert runtime.title
        assert runtime.source
        assert runtime.gradient in GRADIENTS


def test_a_file_of_ones_own_is_a_runtime(tmp_path: Path) -> None:
    text = '[mine]\ntitle = "Mine"\nbucket = "8 MiB"\nshard = ["state"]\nprefetch = 2\n'
    runtime = load_runtime(written(tmp_path, text))
    assert (runtime.name, runtime.title, runtime.bucket) == ("mine", "Mine", 8 * 2**20)
    assert runtime.memory.state
    assert not runtime.memory.weights
    assert load_runtime(written(tmp_path, text), servers=3).servers == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mine", "must be valid TOML but is not"),
        ("", "must hold one runtime but holds 0"),
        ("[a]\n[b]\n", "must hold one runtime but holds 2"),
        ("bucket = 3\n", "must hold tables, one a runtime"),
        ('[mine]\nbuckt = "8 MiB"\n', "unknown field 'buckt'; use one of bucket, "),
        ("[mine]\nbucket = 8\n", "mine.bucket must be text, a quantity with its unit"),
        ('[mine]\nbucket = "8"\n', "mine.bucket must have a unit"),
        ("[mine]\noverlap = 1\n", "expected 'bool', got 'int' in 'overlap'"),
        ('[mine]\ngradient = "gossip"\n', "gradient must be one of all_reduce"),
    ],
)
def test_files_that_are_no_runtime_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_runtime(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"runtime file gone\.toml must be readable"):
        load_runtime("gone.toml")


@pytest.mark.parametrize(
    "figure",
    [
        'bucket = "1e300 B"',
        "servers = -1",
        "servers = 9223372036854775807",
        "devices_per_cpu_link = 0",
        'server_rate = "1e-300 B/s"',
        'cycle = "1e300 s"',
        'negotiation_base = "1e300 s"',
    ],
)
def test_figures_that_no_runtime_has_are_refused(figure, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f'[mine]\ngradient = "push_pull"\n{figure}\n')
    with pytest.raises(InputError, match="must be from"):
        load_runtime(str(path))

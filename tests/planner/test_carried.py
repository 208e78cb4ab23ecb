"""Plans of networks, clusters and tables of one's own: used wherever their files are not."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import planner
from costmodels.cluster import Cluster, load_cluster
from costmodels.compute.table import COLUMNS
from costmodels.errors import InputError
from costmodels.graph import LayerSpec, Network
from planner.cli.command import planner_command
from planner.models import build, format_network
from planner.plan import Carried, Plan
from planner.request.plans import differs_from, strategy_setting
from planner.request.request import Request
from planner.request.setting import find_network, resolve

ROW = "conv,forward,fp32,8,3,64,160x160,80x80,7x7,2x2,1,0.0001"


def run(*words: object) -> Result:
    return CliRunner().invoke(planner_command, [str(word) for word in words])


def own_network() -> Network:
    """ResNet-18 with another last layer, under a name of its own."""
    network = build("resnet18", 160)
    layers = [
        replace(spec, options={**spec.options, "filters": 10}) if spec.name == "fc" else spec
        for spec in network.layers
    ]
    return replace(network, name="mine", layers=tuple(layers))


def own_cluster() -> Cluster:
    """ABCI with two GPUs a host, under its old name."""
    cluster = load_cluster("abci")
    host, *outer = cluster.levels
    return replace(cluster, levels=(replace(host, size=2), *outer))


def own_table(folder: Path) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(["# device = v100 \x1b[31m", ",".join(COLUMNS), ROW]) + "\n")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return own_table(tmp_path)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a plan of all three, which are gone."""
    from costmodels.cluster import dump_cluster

    folder = tmp_path_factory.mktemp("inputs")
    net, my, path = (folder / name for name in ("net.toml", "my.toml", "p.json"))
    table = own_table(folder)
    net.write_text(format_network(own_network()))
    my.write_text(dump_cluster(own_cluster()))
    words = (net, "--gpus", 4, "--cluster", my, "--table", table, "--global-batch-size", 32)
    result = run("optimize", *words, "-o", path, "-q")
    assert result.exit_code == 0, result.stderr
    for file in (net, my, table):
        file.unlink()
    return path.read_text()


@pytest.fixture
def made(tmp_path: Path, planned: str) -> tuple[Plan, Path]:
    """The plan, and a file of it."""
    path = tmp_path / "p.json"
    path.write_text(planned)
    return Plan.load(path), path


@pytest.mark.slow
def test_a_plan_is_simulated_and_reported_without_the_files_it_was_made_of(
    made: tuple[Plan, Path], tmp_path: Path
) -> None:
    plan, path = made
    assert plan.compute_sources_s["table"] > 0
    result = run("simulate", path, "--variation", 0, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["step_time_s"] == pytest.approx(plan.step_time_s, rel=0.05)
    assert not [note for note in found["notes"] if "other inputs" in note]
    assert run("report", path, "-o", tmp_path / "p.md").exit_code == 0


def test_a_plan_can_be_sent_to_another_process(made: tuple[Plan, Path]) -> None:
    """Ranks that verify it are such processes."""
    plan, _ = made
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_plan_is_evaluated_as_it_was_made(made: tuple[Plan, Path], tmp_path: Path) -> None:
    plan, path = made
    net = tmp_path / "again.json"
    net.write_text(format_network(own_network(), suffix=".json"))
    result = run("evaluate", net, "--gpus", 4, "--strategy", path, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["step_time_s"] == pytest.approx(plan.step_time, rel=1e-9)
    assert not [note for note in found["fallbacks"] if "other inputs" in note]


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "gpt2", "input_size": 512, "vocab_padding": 128},
        {"model": "qwen2-57b-a14b", "input_size": 256, "expert_capacity": 1.25},
        {"model": "resnet18", "input_size": 160},
        {"model": own_network(), "input_size": 96},
    ],
    ids=lambda asked: str(asked["model"])[:12],
)
def test_a_strategy_has_the_sizes_of_its_plan(asked: dict[str, Any]) -> None:
    plan = planner.evaluate(gpus=4, cluster="dgx-a100", **asked)
    source, size = asked["model"], asked["input_size"]
    options = {name: value for name, value in asked.items() if name != "model"}
    setting, notes = strategy_setting(plan, Request(source=source, gpus=4, cluster="dgx-a100"))
    assert not notes
    assert not differs_from(plan, setting)
    # what is given holds, the rest is as the plan was made
    other = Request(source=source, gpus=4, cluster="dgx-a100", input_size=2 * size)
    larger, (note,) = strategy_setting(plan, other)
    assert str(2 * size) in str(dict(note.facts)["inputs"])
    assert larger.model == find_network(
        Request(source=source, **{**options, "input_size": 2 * size})
    )


def test_sizes_that_are_given_are_those_of_the_file(tmp_path: Path) -> None:
    """They were taken of what the plan had padded, and so of no network that anyone asked for."""
    path = tmp_path / "net.toml"
    path.write_text(format_network(build("gpt2", 256)))
    asked: dict[str, Any] = {"source": str(path), "gpus": 4, "cluster": "dgx-a100"}
    plan = planner.evaluate(str(path), gpus=4, cluster="dgx-a100", vocab_padding=4096)
    setting, _ = strategy_setting(plan, Request(**asked, vocab_padding=64))
    assert setting.model == find_network(Request(**asked, vocab_padding=64, input_size=256))


def test_a_plan_of_short_sequences_is_evaluated_with_them() -> None:
    asked: dict[str, Any] = {"gpus": 4, "cluster": "dgx-a100"}
    plan = planner.evaluate("gpt2", input_size=512, vocab_padding=128, **asked)
    again = planner.evaluate("gpt2", strategy=plan, **asked)
    assert (again.step_time, again.peak_memory) == (plan.step_time, plan.peak_memory)
    assert planner.simulate("gpt2", strategy=plan).step_time == planner.simulate(plan).step_time


@pytest.mark.slow
def test_objects_of_python_are_carried_too(tmp_path: Path) -> None:
    host, *outer = own_cluster().levels
    # whole numbers where files have fractions, and texts that would move a cursor
    cluster = replace(own_cluster(), levels=(replace(host, peer_links=1, source="\x1b[2J"), *outer))
    rate = LayerSpec(name="drop", kind="dropout", inputs=("avgpool",), options={"rate": 0})
    layers = [replace(s, inputs=("drop",)) if s.name == "fc" else s for s in own_network().layers]
    shape = {"width": 160, "height": 160, "channel": 3}
    network = replace(
        own_network(), layers=(*layers, rate), input_shape=shape, notes="\x1b]0;x\x07"
    )
    first, *rest = network.layers
    first = replace(first, inputs=["input"], options={**first.options, "filters": np.int64(64)})  # type: ignore[arg-type]
    network = replace(network, layers=[first, *rest])  # type: ignore[arg-type]
    plan = planner.optimize(network, gpus=4, cluster=cluster, global_batch_size=32)
    path = tmp_path / "p.json"
    plan.save(path)
    assert Plan.load(path) == plan
    assert Plan.load(path).to_json() == plan.to_json()
    result = run("simulate", path, "-q")
    assert result.exit_code == 0, result.stderr
    assert planner.simulate(plan).step_time == planner.simulate(Plan.load(path)).step_time


def test_what_is_built_in_is_not_carried() -> None:
    for question in (
        {"model": "resnet18", "input_size": 160},
        {"model": "gpt2", "memory": "12 GiB"},
        {"model": "cosmoflow-128", "precision": "fp32"},
    ):
        plan = planner.evaluate(gpus=4, cluster="lassen", **question)  # type: ignore[arg-type]
        assert plan.carried == Carried()
        assert planner.simulate(plan).step_time > 0


EDITS: dict[str, Callable[[Any], object]] = {
    "network": lambda c: c["network"]["layers"][0]["options"].update(filters=32),
    "network ": lambda c: c["network"].update(name=""),
    "network  ": lambda c: c.update(network={"name": "x"}),
    "cluster": lambda c: c["cluster"]["device"].update(memory=1e12),
    "cluster ": lambda c: c["cluster"]["levels"][0].update(bandwidth=-1.0),
    "tables": lambda c: c["tables"][0].update(text="a,b\n"),
    "tables ": lambda c: c["tables"].append({"name": "b.csv", "text": ""}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_carried_must_be_what_the_plan_was_made_of(
    edit: str, made: tuple[Plan, Path]
) -> None:
    document = json.loads(made[1].read_text())
    EDITS[edit](document["carried"])
    with pytest.raises(InputError, match=r"^p\.json is no valid plan") as error:
        Plan.from_json(json.dumps(document), where="p.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("what", "option"),
    [("network", "--strategy"), ("cluster", "--cluster"), ("tables", "--table")],
)
def test_what_is_neither_carried_nor_built_in_must_be_given(
    what: str, option: str, made: tuple[Plan, Path]
) -> None:
    plan, _ = made
    lacking = dataclasses.replace(
        plan, carried=replace(plan.carried, **{what: () if what == "tables" else None})
    )
    with pytest.raises(InputError, match=f"the plan was made .* {option}"):
        planner.simulate(lacking)


@pytest.mark.slow
def test_a_difference_is_found_and_said_wherever_a_plan_is_used(
    made: tuple[Plan, Path], table: Path, tmp_path: Path
) -> None:
    plan, path = made
    other = {"cluster": "abci", "gpus": 4, "precision": "fp16", "global_batch_size": 64}
    setting = resolve(Request(source=own_network(), memory="12 GiB", **other))  # type: ignore[arg-type]
    found = [one.what for one in differs_from(plan, setting) if one.what != "bucket bytes"]
    assert found == ["global batch", "cluster", "tables", "precision"]
    net = tmp_path / "net.toml"
    net.write_text(format_network(own_network()))
    words = ("--cluster", "proteus-hc2", "--precision", "fp16")
    # a plan for hosts of two GPUs cannot be used for hosts of eight
    assert run("simulate", path, *words).exit_code == 2
    fast = replace(own_cluster(), name="fast", default_precision="fp16")
    for made_again in (
        planner.simulate(plan, cluster=fast, precision="fp16"),
        planner.simulate(own_network(), strategy=plan, cluster=fast, precision="fp16"),
    ):
        (note,) = [text for text in made_again.notes if "other inputs" in text]
        assert "cluster abci, here fast" in note
        assert "precision fp32, here fp16" in note
    again = planner.evaluate(own_network(), gpus=4, strategy=plan, memory="12 GiB")
    (note,) = [text for text in again.fallbacks if "other inputs" in text]
    assert note.endswith("memory 15.8 GiB, here 12 GiB")
    table.write_text("\n".join([",".join(COLUMNS), ROW.replace("0.0001", "0.0002")]) + "\n")
    measured = planner.evaluate(own_network(), gpus=4, strategy=plan, tables=[table])
    (note,) = [text for text in measured.fallbacks if "other inputs" in text]
    assert note.endswith("tables mine.csv, here another of that name")
    (tmp_path / "other").mkdir()
    tables = [table, own_table(tmp_path / "other")]
    of_two = planner.evaluate(own_network(), gpus=4, tables=tables)
    for changed, said in (
        (tables[::-1], "in another order"),
        ([table] * 2, "others of those names"),
    ):
        again = planner.evaluate(own_network(), gpus=4, strategy=of_two, tables=changed)
        (note,) = [text for text in again.fallbacks if "other inputs" in text]
        assert note.endswith(f"tables mine.csv, mine.csv, here {said}")
    batch = planner.simulate(plan, global_batch_size=64)
    (note,) = [text for text in batch.notes if "other inputs" in text]
    assert note.endswith("global batch 32, here 64")

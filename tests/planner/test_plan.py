"""Plans as files, and the package as others import it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from questions import SPLITS_ALONE

import planner
from costmodels.errors import InputError
from planner.cli.command import planner_command
from planner.models import build
from planner.plan import FORMAT, VERSION, LayerPlan, Plan
from planner.plan.edited import check_unedited

ROOT = Path(planner.__file__).resolve().parent.parent
QUESTION = {
    "gpus": 8,
    "cluster": "lassen",
    "input_size": 64,
    "global_batch_size": 32,
    "cap": 16,
    # splits alone: with these samples pipelines are faster
    "forbid": SPLITS_ALONE,
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.optimize("resnet18", **QUESTION)


def test_what_is_written_is_what_is_read(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    again = Plan.load(path)
    assert again == plan
    assert list(again.layers) == list(plan.layers)
    assert again.to_json() == plan.to_json() == path.read_text(encoding="utf-8")
    assert all(isinstance(layer, LayerPlan) for layer in again.layers.values())


def test_the_same_question_gives_the_same_bytes(plan):
    program = (
        f"import planner; print(planner.optimize('resnet18', **{QUESTION!r}).to_json(), end='')"
    )
    # another process with another seed of hashes
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == plan.to_json()


def test_the_document_names_its_format_and_carries_no_infinity(plan):
    document = json.loads(plan.to_json(), parse_constant=lambda word: pytest.fail(word))
    assert document["format"] == FORMAT
    assert document["version"] == VERSION
    assert [layer["name"] for layer in document["layers"]] == list(plan.layers)


def test_causes_add_up(plan):
    causes = plan.breakdown_s
    assert sum(causes.values()) == pytest.approx(plan.step_time_s, rel=1e-9)
    by_layer = sum(layer.time for layer in plan.layers.values())
    of_no_layer = causes["slowdown"] + causes["gradient"] + causes["waiting"]
    assert by_layer == pytest.approx(plan.step_time_s - of_no_layer)
    assert plan.peak_memory == pytest.approx(sum(plan.memory_bytes.values()))
    assert plan.throughput == pytest.approx(32 / plan.step_time_s)
    compute = causes["compute"] + causes["update"]
    assert sum(plan.compute_sources_s.values()) == pytest.approx(compute)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(plan, tmp_path, part):
    path = tmp_path / "plan.json"
    text = plan.to_json()
    path.write_text(text[: int(part * (len(text) - 2))], encoding="utf-8")
    with pytest.raises(InputError, match="valid JSON") as error:
        Plan.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: [d], "is no plan"),
        (lambda d: "plan", "is no plan"),
        (lambda d: {"hello": 1}, "is no plan"),
        (lambda d: {**d, "format": "other"}, "is no plan"),
        (lambda d: {**d, "version": 0}, "version 0, but this planner reads versions 1 to 4"),
        (lambda d: {**d, "version": 5}, "version 5, but this planner reads versions 1 to 4"),
        (lambda d: {k: v for k, v in d.items() if k != "gpus"}, "gpus"),
        (lambda d: {**d, "gpus": "eight"}, "gpus"),
        (lambda d: {**d, "layers": 3}, "no valid plan"),
        (lambda d: {**d, "layers": [3]}, "no valid plan"),
        (lambda d: {**d, "layers": [{"name": "fc"}]}, "no valid plan"),
        (lambda d: {**d, "training": {**d["training"], "precision": "fp7"}}, "precision"),
    ],
)
def test_foreign_and_other_versions_are_refused_with_a_sentence(plan, tmp_path, change, words):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(change(json.loads(plan.to_json()))), encoding="utf-8")
    with pytest.raises(InputError, match=words) as error:
        Plan.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="must be readable"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="valid JSON"):
        Plan.from_json(b"\xff\xfe\x00")


def test_evaluating_a_plan_gives_its_step_again(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    options = {"gpus": 8, "input_size": 64}
    for strategy in (plan, str(path)):
        again = planner.evaluate("resnet18", strategy=strategy, **options)
        assert again.step_time_s == pytest.approx(plan.step_time_s)
        assert again.peak_memory == pytest.approx(plan.peak_memory)
        assert again.search.status == "given"


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("resnet34", {"gpus": 8, "input_size": 64}, "whose layers are not those of resnet34"),
        ("resnet18", {"gpus": 16, "input_size": 64}, "the plan is for 8 GPUs as 4x2"),
    ],
)
def test_a_plan_for_something_else_is_refused(plan, model, options, words):
    with pytest.raises(InputError, match=words):
        planner.evaluate(model, strategy=plan, **options)


def test_an_edited_plan_is_checked(plan):
    def with_degrees(name: str, **degrees: tuple[int, ...]) -> Plan:
        edited = replace(plan.layers[name], degrees=degrees)
        return dataclasses.replace(plan, layers={**plan.layers, name: edited})

    cases = [
        (with_degrees("fc", sample=(3, 1)), "must divide level 0 of 4"),
        (with_degrees("fc", batch=(4, 2)), "'batch'"),
        (with_degrees("fc", sample=(4,)), "each of the 2 levels"),
        (with_degrees("fc", height=(4, 1)), "cannot be split by height"),
        (with_degrees("conv1", channel=(4, 1)), "3 channel positions"),
    ]
    for edited, words in cases:
        with pytest.raises(InputError, match=words) as error:
            planner.evaluate("resnet18", strategy=edited, gpus=8, input_size=64)
        assert "\n" not in str(error.value)
    # naming a dim that is not split changes nothing
    wordy = with_degrees("fc", height=(1, 1), **plan.layers["fc"].degrees)
    again = planner.evaluate("resnet18", strategy=wordy, gpus=8, input_size=64)
    assert again.step_time_s == pytest.approx(plan.step_time_s)


def test_options_and_inputs_change_the_hashes(plan):
    other = planner.evaluate(
        "resnet18", gpus=8, cluster="lassen", input_size=64, global_batch_size=64
    )
    assert other.hashes["network"] != plan.hashes["network"]
    assert other.hashes["cluster"] == plan.hashes["cluster"]
    adam = planner.evaluate(
        "resnet18", gpus=8, cluster="lassen", input_size=64, global_batch_size=32, optimizer="adam"
    )
    assert adam.hashes["network"] == plan.hashes["network"]
    assert adam.hashes["training"] != plan.hashes["training"]


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("what", ["degrees", "sharding", "micro-batches"])
def test_what_was_edited_is_costed_again_before_it_is_used(plan, tmp_path, what):
    path, new = tmp_path / "edited.json", tmp_path / "new.json"
    document = json.loads(plan.to_json())
    if what == "degrees":
        document["layers"][0]["degrees"] = {"filter": list(plan.shape)}
    elif what == "sharding":
        document["sharding"]["layers"]["fc"] = document["sharding"]["layers"]["conv1"]
    else:
        document["schedule"]["micro_batches"] = 2
    path.write_text(json.dumps(document))
    runner = CliRunner()
    for command in (["report"], ["export", "--to", "jax", "-o", str(tmp_path / "out")]):
        outcome = runner.invoke(planner_command, [command[0], str(path), *command[1:]])
        assert outcome.exit_code != 0
        assert "was edited" in outcome.output
    assert not (tmp_path / "out").exists()
    size = ["--input-size", "64", "--gpus", "8", "--cluster", "lassen", "--global-batch-size", "32"]
    asked = ["evaluate", "resnet18", *size, "--strategy", str(path), "-o", str(new), "-q"]
    assert runner.invoke(planner_command, asked).exit_code == 0
    assert check_unedited(Plan.load(new), "new") == Plan.load(new)
    assert runner.invoke(planner_command, ["report", str(new)]).exit_code == 0


@pytest.mark.slow
def test_a_network_object_is_as_good_as_a_name(plan):
    options = {k: v for k, v in QUESTION.items() if k != "input_size"}
    again = planner.optimize(build("resnet18", 64), **options)
    assert again.step_time_s == plan.step_time_s
    assert again.hashes == plan.hashes


def test_the_functions_stay_what_they_are():
    # importing a module of the same name would put the module in the function's place
    import planner.api
    import planner.planning.optimize

    for name in ("optimize", "evaluate", "scale"):
        assert getattr(planner, name) is getattr(planner.api, name)
    assert planner.Plan is Plan
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = planner.magic


@pytest.mark.parametrize("name", ["search", "costmodels"])
@pytest.mark.parametrize("kind", ["file", "package", "folder"])
def test_a_stranger_of_the_name_of_our_packages_is_refused_by_its_file(tmp_path, name, kind):
    program = "import planner"
    if kind == "file":
        stranger = tmp_path / f"{name}.py"
        stranger.write_text("")
    else:
        folder = tmp_path / name
        folder.mkdir()
        stranger = folder / "__init__.py"
        if kind == "package":
            stranger.write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd="/"
    )
    if kind == "folder":
        # a folder without __init__.py stands behind ours
        assert done.returncode == 0
        return
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert str(stranger) in last
    assert f"'{name}'" in last


def test_a_plan_keeps_the_memory_it_was_made_for(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made = planner.evaluate("alexnet", gpus=4, cluster="abci", memory="9 GiB")
    made.save(path)
    again = planner.evaluate("alexnet", gpus=4, strategy=str(path))
    assert again.memory_capacity_bytes == made.memory_capacity_bytes == 9 * 2**30
    # on another machine it is that machine's
    other = planner.evaluate("alexnet", gpus=4, strategy=str(path), cluster="lassen")
    assert other.memory_capacity_bytes > 9 * 2**30

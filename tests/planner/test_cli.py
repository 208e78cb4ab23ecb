"""Every command: what it prints, what it writes, how it fails."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from costmodels.cluster import list_clusters, list_devices, list_links, load_cluster
from costmodels.communication.collectives import ALL_REDUCE_ALGORITHMS
from planner.cli import scaling
from planner.cli.command import planner_command
from planner.errors import InfeasibleError
from planner.joint import requests
from planner.output import write_text
from planner.plan import Plan
from planner.request.usual_strategies import STRATEGIES
from search import SOLVERS

ROOT = Path(__file__).parents[2]
QUESTION = ["alexnet", "--gpus", "8", "--cluster", "lassen", "--global-batch-size", "256"]
PLAN = ["optimize", *QUESTION]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, list(arguments))


def program(*arguments: str, **options) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "planner", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **{"stderr": subprocess.PIPE, **options},
    )


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    result = run(*PLAN, "-o", str(path))
    assert result.exit_code == 0, result.output
    return path


def test_optimize_shows_every_section() -> None:
    # rows of zero are shown on demand
    result = run("optimize", "alexnet", "--gpus", "8", "-v")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for text in (
        "alexnet on 8 x a100-80gb of dgx-a100",
        "Step time",
        "images/s",
        "Peak memory",
        "What a step is made of",
        "gradient all-reduce, hidden",
        "Compared with the usual strategies",
        "Approximations and fallbacks",
        "cluster dgx-a100, since none was given",
        "precision bf16, the usual one on dgx-a100",
        "global batch of 256 samples (32 a GPU)",
        *STRATEGIES,
    ):
        assert text in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_is_the_summary_and_nothing_else(plan_file: Path) -> None:
    result = run(*PLAN, "--json")
    facts = json.loads(result.stdout)
    assert result.stderr == ""
    for key in (
        "step_time_s",
        "throughput_samples_per_s",
        "compute_s",
        "communication_s",
        "exposed_communication_s",
        "peak_memory_bytes",
        "memory_capacity_bytes",
        "lower_bound_s",
        "proven_optimal",
        "fallbacks",
        "baselines",
        "layers",
    ):
        assert key in facts
    plan = Plan.load(plan_file)
    assert facts["step_time_s"] == plan.step_time_s
    assert facts["lower_bound_s"] <= facts["step_time_s"]
    assert [layer["name"] for layer in facts["layers"]] == list(plan.layers)


def test_quiet_is_one_line() -> None:
    result = run(*PLAN, "-q")
    assert result.stdout.count("\n") == 1
    assert "images/s" in result.stdout


def test_equal_questions_have_equal_plan_files(tmp_path: Path, plan_file: Path) -> None:
    again = tmp_path / "elsewhere.json"
    assert run(*PLAN, "-q", "--report", str(tmp_path / "r.md"), "-o", str(again)).exit_code == 0
    assert again.read_bytes() == plan_file.read_bytes()


def test_the_recorded_command_makes_the_same_plan_without_defaults(plan_file: Path) -> None:
    plan = Plan.load(plan_file)
    assert plan.command.startswith("planner optimize alexnet --gpus 8 --cluster lassen")
    facts = json.loads(run(*plan.command.split()[1:], "--json").stdout)
    assert facts["step_time_s"] == plan.step_time_s
    assert facts["defaults"] == []


def test_the_recorded_command_repeats_what_was_given(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    extra = ["--no-halo-overlap", "--bucket-size", "10 MiB", "--seed", "3", "--cap", "20"]
    assert run(*PLAN, *extra, "-q", "-o", str(path)).exit_code == 0
    plan = Plan.load(path)
    assert plan.training.bucket_bytes == 10 * 2**20
    assert not plan.training.halo_overlap
    for part in ("--no-halo-overlap", "--bucket-size '10 MiB'", "--seed 3", "--cap 20"):
        assert part in plan.command


def test_optimize_writes_a_report_beside_the_plan(tmp_path: Path) -> None:
    page, plan = tmp_path / "report.html", tmp_path / "plan.json"
    result = run(*PLAN, "-o", str(plan), "--report", str(page))
    assert f"plan written to {plan}" in result.stdout
    assert f"report written to {page}" in result.stdout
    other = tmp_path / "again.html"
    assert run("report", str(plan), "-o", str(other)).exit_code == 0
    assert other.read_bytes() == page.read_bytes()


@pytest.mark.parametrize("name", ["data", "data+spatial", "data+filter"])
def test_evaluate_agrees_with_the_comparison_of_the_plan(name: str, plan_file: Path) -> None:
    # buckets are tuned for the plan, and the comparison uses the same ones
    bucket = Plan.load(plan_file).training.bucket_bytes
    result = run(
        "evaluate", *QUESTION, "--strategy", name, "--bucket-size", f"{bucket:.0f} B", "--json"
    )
    facts = json.loads(result.stdout)
    rows = {row["name"]: row["step_time_s"] for row in facts["baselines"]}
    assert facts["step_time_s"] == pytest.approx(rows[name])


def test_evaluate_costs_a_plan_file_as_it_was_planned(plan_file: Path) -> None:
    result = run("evaluate", *QUESTION, "--strategy", str(plan_file), "--json")
    assert json.loads(result.stdout)["step_time_s"] == Plan.load(plan_file).step_time_s


def test_evaluate_takes_the_degree_of_a_hybrid() -> None:
    result = run("evaluate", *QUESTION, "--strategy", "data+spatial", "--degree", "2", "--json")
    layers = json.loads(result.stdout)["layers"]
    assert layers[0]["distribution"] == {"sample": [2, 2], "height": [2, 1]}


def test_scale_prints_a_line_for_each_size() -> None:
    result = run("scale", "alexnet", "--gpus", "4,8,16", "--strong", "--cluster", "lassen")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    sizes = [row for row in rows if row and row[0] in ("4", "8", "16")]
    assert [row[0] for row in sizes] == ["4", "8", "16"]
    assert {row[1] for row in sizes} == {"128"}, "strong scaling keeps the batch"
    assert "100.0 %" in result.stdout


@pytest.mark.slow
def test_a_size_that_is_given_twice_is_planned_once() -> None:
    for sizes in ("4,4", "1-4,2,4,4"):
        result = run("scale", "alexnet", "--gpus", sizes, "--cluster", "lassen", "--json")
        found = [one["gpus"] for one in json.loads(result.stdout)["sizes"]]
        assert found == sorted(set(found))
        assert 4 in found


@pytest.mark.slow
def test_weak_scaling_keeps_the_samples_of_a_gpu() -> None:
    result = run("scale", "alexnet", "--gpus", "4,16", "--cluster", "lassen", "--json")
    facts = json.loads(result.stdout)
    small, large = facts["sizes"]
    assert [small["global_batch_size"], large["global_batch_size"]] == [128, 512]
    rates = [size["global_batch_size"] / size["step_time_s"] for size in (small, large)]
    ratio = rates[1] / rates[0]
    assert large["speed_up"] == pytest.approx(ratio)
    assert large["efficiency"] == pytest.approx(ratio / 4)


@pytest.mark.slow
def test_scale_shows_sizes_that_do_not_fit_and_goes_on() -> None:
    arguments = ["scale", "alexnet", "--gpus", "4,8", "--strong", "--global-batch-size", "4096"]
    result = run(*arguments, "--cluster", "lassen", "--memory", "850 MiB")
    assert "does not fit" in result.stdout
    assert result.exit_code in (0, 3)
    assert (result.exit_code == 3) == (result.stdout.count("does not fit") == 2)


def test_size_lines_of_infeasible_sizes_name_what_is_missing() -> None:
    error = InfeasibleError("too big", missing_bytes=3.0 * 2**30, layer="conv1")
    line = scaling.size_line(scaling.ScaledPlan(gpus=64, plan=error))
    assert "64" in line
    assert "3 GiB" in line
    assert "\n" not in line


def test_report_shows_a_plan_where_no_file_is_asked_for(plan_file: Path) -> None:
    assert run("report", str(plan_file)).stdout == run(*PLAN).stdout


@pytest.mark.slow
def test_models_and_clusters_are_listed_and_exported(tmp_path: Path) -> None:
    listed = run("models").stdout
    assert "resnet50" in listed
    assert "25.6 M" in listed
    assert "lassen" in run("clusters").stdout
    network, cluster = tmp_path / "mine.toml", tmp_path / "machine.toml"
    network.write_text(run("models", "--export", "alexnet").stdout)
    assert run("clusters", "--export", "lassen", "-o", str(cluster)).exit_code == 0
    question = ["optimize", str(network), *QUESTION[1:]]
    question[question.index("lassen")] = str(cluster)
    theirs, ours = (json.loads(run(*q, "--json").stdout) for q in (question, PLAN))
    assert theirs["step_time_s"] == ours["step_time_s"]


def test_what_a_cluster_file_may_name_is_listed() -> None:
    for command, names in (("devices", list_devices()), ("links", list_links())):
        result = run(command)
        assert result.exit_code == 0
        first = {line.split()[0] for line in result.stdout.splitlines()}
        assert set(names) <= first
    assert "22.2 GB/s" in run("links").stdout  # 25 GB/s of NVLink 2 at 89 %


@pytest.mark.parametrize("name", list_clusters())
def test_a_cluster_that_is_exported_still_names_its_device_and_links(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    assert run("clusters", "--export", name, "-o", str(path)).exit_code == 0
    written = tomllib.loads(path.read_text())
    assert written["device"] in list_devices()
    assert load_cluster(path) == load_cluster(name)
    again = run("clusters", "--export", str(path)).stdout
    assert again == path.read_text()
    if name == "lassen":
        assert [level["link"] for level in written["levels"]] == ["nvlink2", "infiniband-edr"]


def test_an_exported_file_loses_what_moves_a_cursor(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = run("clusters", "--export", "lassen").stdout
    path.write_text(f"# \x9b2J\u202e\n{text}")
    assert run("clusters", "--export", str(path), "-o", str(tmp_path / "b.toml")).exit_code == 0
    assert (tmp_path / "b.toml").read_text() == f"# 2J\n{text}"


def test_a_network_can_be_exported_as_json(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    assert run("models", "--export", "vgg16", "--input-size", "256", "-o", str(path)).exit_code == 0
    assert json.loads(path.read_text())["input"]["height"] == 256


def test_help_names_every_algorithm() -> None:
    text = " ".join(run("optimize", "--help").stdout.split())
    for name in ALL_REDUCE_ALGORITHMS:
        assert name in text


UNUSABLE = [
    [*PLAN, "--gpus", "0"],
    [*PLAN, "--gpus", "-8"],
    [*PLAN, "--gpus", "3"],
    [*PLAN, "--gpus", "1" + "0" * 30],
    [*PLAN, "--gpus", "many"],
    [*PLAN, "--gpus", "4.5"],
    [*PLAN, "--global-batch-size", "0"],
    [*PLAN, "--global-batch-size", "1" + "0" * 30],
    [*PLAN, "--cluster", "nowhere"],
    [*PLAN, "--cluster", "nowhere.toml"],
    [*PLAN, "--precision", "fp7"],
    [*PLAN, "--optimizer", "guess"],
    [*PLAN, "--input-size", "1"],
    [*PLAN, "--memory", "16"],
    [*PLAN, "--memory", "a lot"],
    [*PLAN, "--all-reduce", "star"],
    [*PLAN, "--bucket-size", "25"],
    [*PLAN, "--memory-model", "none"],
    [*PLAN, "--search", "luck"],
    [*PLAN, "--cap", "0"],
    [*PLAN, "--seed", "-1"],
    [*PLAN, "--num-best", "0"],
    [*PLAN, "--tune-trials", "-1"],
    [*PLAN, "--time-limit", "0"],
    [*PLAN, "--time-limit", "nan"],
    [*PLAN, "--table", "nowhere.csv"],
    [*PLAN, "--json", "-q"],
    [*PLAN, "--frobnicate"],
    [*PLAN, "-o", "no/such/folder/plan.json"],
    [*PLAN, "-o", "."],
    [*PLAN, "-o", ""],
    [*PLAN, "--report", "report.pdf"],
    [*PLAN, "--report", "no/such/folder/report.html"],
    ["optimize", "resnet9999", "--gpus", "4"],
    ["optimize", "nowhere.toml", "--gpus", "4"],
    ["optimize", "alexnet"],
    ["optimize"],
    ["optimise"],
    ["evaluate", *QUESTION, "--strategy", "hope"],
    ["evaluate", *QUESTION, "--strategy", "nowhere.json"],
    ["evaluate", *QUESTION, "--strategy", "channel", "--global-batch-size", "1", "--degree", "2"],
    ["evaluate", *QUESTION, "--strategy", "data", "--degree", "2"],
    ["evaluate", *QUESTION, "--strategy", "data+filter", "--degree", "0"],
    ["evaluate", *QUESTION, "--strategy", "data+filter", "--degree", "3"],
    ["scale", "alexnet", "--gpus", "4,x"],
    ["scale", "alexnet", "--gpus", "4,7"],
    ["report", "nowhere.json", "-o", "report.html"],
    ["models", "--export", "nothing"],
    ["models", "--export", "alexnet", "-o", "net.yaml"],
    ["models", "-o", "net.toml"],
    ["clusters", "--export", "nothing"],
]


@pytest.mark.parametrize("arguments", UNUSABLE, ids=" ".join)
def test_what_cannot_be_used_is_one_line_and_writes_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] in ("optimize", "evaluate") and "-o" not in arguments:
        arguments = [*arguments, "-o", "plan.json"]
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert "defect" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, plan_file: Path) -> None:
    for name, text in (
        ("cut.json", plan_file.read_text()[:500]),
        ("other.json", "{}"),
        ("old.json", plan_file.read_text().replace('"version": 4', '"version": 0')),
    ):
        path = tmp_path / name
        path.write_text(text)
        result = run("report", str(path), "-o", str(tmp_path / "report.html"))
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_no_plan_that_fits_is_status_3(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    arguments = ["optimize", "vgg16", "--gpus", "1", "--cluster", "lassen"]
    arguments += ["--global-batch-size", "4", "--memory", "1.1 GiB", "-o", str(path)]
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    told = run(*arguments, "--json")
    facts = json.loads(told.stdout)
    assert told.exit_code == 3
    assert told.stderr == result.stderr
    assert facts["status"] == "infeasible"
    assert facts["missing_bytes"] > 0
    assert facts["layer"] in facts["message"]
    assert not path.exists()


def test_an_unwritable_folder_is_found_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(
        requests, "optimize_request", lambda *_, **__: pytest.fail("searched in vain")
    )
    result = run(*PLAN, "-o", str(tmp_path / "plan.json"))
    assert result.exit_code == 2
    assert "may not be written" in result.stderr


def test_a_defect_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(requests, "optimize_request", fail)
    monkeypatch.delenv("PLANNER_DEBUG", raising=False)
    result = run(*PLAN)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "RuntimeError: first line second line" in result.stderr


def test_interrupt_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(requests, "optimize_request", interrupt)
    result = run(*PLAN)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_an_interrupted_search_shows_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "planner.planning.bounds.additive_search.SOLVERS", {**SOLVERS, "auto": interrupt}
    )
    result = run(*PLAN)
    assert result.exit_code == 0, result.output
    assert "stopped early by interrupt: the best plan so far" in result.stdout


def test_writing_keeps_links_and_permissions_and_cleans_up(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640
    with pytest.raises(UnicodeEncodeError):
        write_text(real, "\ud800")
    assert real.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2
    write_text(os.devnull, "gone")
    assert not Path(os.devnull).is_file()


def test_nobody_reading_is_no_error() -> None:
    process = program("models")
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import atexit, sys\n"
        "heavy = {'numpy', 'rich', 'jinja2', 'ortools', 'search'}\n"
        "atexit.register(lambda: print('heavy:', sorted(heavy & set(sys.modules))))\n"
        "sys.argv = ['planner', 'optimize', '--help']\n"
        "from planner.cli import main; main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "--global-batch-size" in done.stdout
    assert done.stdout.endswith("heavy: []\n")


def test_the_program_is_interrupted_in_one_line() -> None:
    # progress is shown on terminals only, and once it is shown the search goes on
    ours, theirs = pty.openpty()
    question = ["densenet161", "--gpus", "512", "--cluster", "dgx-h100", "--cap", "500"]
    process = program("optimize", *question, stderr=theirs)
    os.close(theirs)
    shown = os.read(ours, 1000)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    with contextlib.suppress(OSError):  # the end of what a closed terminal was told
        while more := os.read(ours, 1000):
            shown += more
    os.close(ours)
    assert b"planning densenet161 on 512 GPUs" in shown
    # either there was nothing yet, or the best plan so far is shown
    assert process.returncode in (0, 130)
    assert (b"interrupted\r\n" in shown) == (process.returncode == 130)
    assert ("best plan so far" in output) == (process.returncode == 0)
    assert b"Traceback" not in shown


def test_without_a_command_there_is_help() -> None:
    result = run()
    assert result.exit_code == 0
    assert "optimize" in result.stdout
    assert run("--version").stdout.startswith("planner, version ")

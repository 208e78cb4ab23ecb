"""`planner simulate`, `planner runtimes` and `planner loaders`: what they print, write, refuse."""

from __future__ import annotations

import json
import re
import tomllib
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measured_tables import measured_table
from rich.console import Console

import planner
from costmodels.input_pipeline import list_loaders, list_storages
from costmodels.simulation.runtime_files import built_in_runtimes
from costmodels.units import format_seconds
from planner import Degrees
from planner.cli.command import planner_command
from planner.plan import Plan
from planner.report.simulation import MAX_ROLES, show_simulation
from planner.report.simulation_figures import main_roles
from planner.request.request import Request

QUESTION = ["alexnet", "--gpus", "8", "--cluster", "lassen", "--global-batch-size", "256"]
PIPELINE = [
    *("gpt2", "--gpus", "8", "--cluster", "lassen", "--global-batch-size", "16"),
    *("--precision", "fp16", "--tp", "2", "--pp", "2", "--micro-batches", "4"),
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, list(arguments))


def simulate(*arguments: str) -> Result:
    return run("simulate", *arguments)


def facts(*arguments: str) -> dict:
    result = simulate(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    result = run("evaluate", *QUESTION, "--strategy", "data+filter", "-q", "-o", str(path))
    assert result.exit_code == 0, result.output
    return path


def test_the_schedule_of_one_stage_is_told_where_it_is_not_the_usual_one() -> None:
    """One that does all forward passes first holds twice as much, and nothing told it apart."""
    small = ("gpt2", "--gpus", "1", "--global-batch-size", "4", "--seq-len", "64")
    for options, words in (
        (("--micro-batches", "2", "--schedule", "gpipe"), ", 1 stage by gpipe, 2 micro-batches\n"),
        (("--micro-batches", "2"), "pp 1, 2 micro-batches\n"),
        (("--micro-batches", "1", "--schedule", "gpipe"), "pp 1\n"),
    ):
        assert words in simulate(*small, *options).output


def test_a_pipeline_shows_every_section() -> None:
    result = simulate(*PIPELINE)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for text in (
        "gpt2 on 8 x v100-16gb of lassen, simulated",
        "strategy dp 2 x tp 2 x pp 2, 2 stages by 1f1b, 4 micro-batches",
        "runtime ddp (PyTorch DistributedDataParallel), step model simulate",
        "Step time",
        "sequences/s",
        "Critical path",
        "Where the time of a step goes",
        "stage 0",
        "stage 1",
        "exposed",
        "Peak memory of a GPU",
        "held then by",
        "activation gradients",
        "largest then in",
        "Approximations and notes",
        "optimizer adam, the usual one of such networks",
    ):
        assert text in result.stdout
    assert "OUT OF MEMORY" not in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_and_output_are_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    result = simulate(*PIPELINE, "--json", "-o", str(path))
    assert path.read_text() == result.stdout
    found = json.loads(result.stdout)
    degrees = Degrees(tp=2, pp=2, micro_batches=4)
    direct = planner.simulate(
        "gpt2", gpus=8, cluster="lassen", global_batch_size=16, precision="fp16", degrees=degrees
    )
    assert found == json.loads(json.dumps(direct.summary()))
    assert found["stages"] == 2
    for role in found["roles"]:
        queues = role["busy_s"]
        assert queues["compute"] + role["exposed_communication_s"] + role[
            "idle_s"
        ] == pytest.approx(found["step_time_s"] - found["waiting_for_slowest_s"])


def test_quiet_is_one_line() -> None:
    result = simulate(*PIPELINE, "-q")
    assert result.stdout.count("\n") == 1
    assert "a step" in result.stdout
    assert "ddp, simulate" in result.stdout


def test_the_same_input_has_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        paths = [tmp_path / f"{name}.json", tmp_path / f"{name}.trace.json"]
        result = simulate(*PIPELINE, "-q", "-o", str(paths[0]), "--trace", str(paths[1]))
        written.append((result.stdout, *(path.read_bytes() for path in paths)))
    assert written[0] == written[1]


def test_a_trace_is_written_and_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    result = simulate(*QUESTION, "--trace", str(path))
    assert f"trace written to {path}" in result.stdout.replace("\n", "")
    assert json.loads(path.read_text())["otherData"]["model"] == "alexnet"


def test_a_plan_has_the_step_time_that_it_states(plan_file: Path) -> None:
    plan = Plan.load(plan_file)
    found = facts(str(plan_file))
    assert found["strategy"] == "plan"
    assert found["gpus"] == plan.gpus
    assert found["global_batch_size"] == plan.global_batch_size
    assert found["precision"] == plan.training.precision
    assert found["step_time_s"] == plan.step_time
    assert "Planned" not in simulate(str(plan_file)).stdout
    other = " ".join(simulate(str(plan_file), "--runtime", "ps-sync").stdout.split())
    assert f"Planned {format_seconds(plan.step_time)}, here " in other
    assert "(under other options than the plan's)" in other


def test_options_override_those_of_a_plan_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    options = ["--always-cut", "--launch-time", "0 s", "--no-gradient-overlap"]
    written = run(
        *("evaluate", *QUESTION, "--strategy", "data+spatial", *options, "-q", "-o", str(path))
    )
    assert written.exit_code == 0, written.output
    plan = facts(str(path))
    direct = facts(*QUESTION, "--strategy", "data+spatial", *options)
    for key in ("step_time_s", "peak_memory_bytes", "roles"):
        assert plan[key] == direct[key]
    slower = facts(str(path), "--launch-time", "1 ms")
    assert slower["step_time_s"] > 2 * plan["step_time_s"]
    assert "under other options" in simulate(str(path), "--launch-time", "1 ms").stdout.replace(
        "\n                 ", " "
    )


def test_a_plan_can_be_a_strategy(plan_file: Path) -> None:
    assert facts("alexnet", "--strategy", str(plan_file)) == facts(str(plan_file))


def test_a_strategy_file_is_a_subject(tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    path.write_text(
        'format = "planner-strategy"\nmodel = "gpt2"\ncluster = "proteus-hc2"\ngpus = 8\n'
        'global_batch_size = 16\n[schedule]\nkind = "1f1b"\nmicro_batches = 2\n'
        '[[layer]]\nname = "token_embedding"\npartition = { sample = 8 }\n'
        '[[layer]]\nname = "position_embedding"\npartition = { sample = 8 }\n'
    )
    found = facts(str(path))
    assert found["micro_batches"] == 2
    assert found["gpus"] == 8
    assert facts(str(path), "--runtime", "zero2")["runtime"] == "zero2"


@pytest.mark.parametrize("name", list(built_in_runtimes()))
def test_every_runtime_can_be_simulated(name: str) -> None:
    result = simulate(*QUESTION, "--runtime", name, "-q")
    assert result.exit_code == 0, result.output
    assert name in result.stdout


@pytest.mark.parametrize("model", ["plain", "flexflow-sim", "paradl", "paleo"])
def test_other_step_models_have_reports_of_their_own(model: str) -> None:
    result = simulate(*QUESTION, "--model", model)
    assert result.exit_code == 0, result.output
    assert f"step model {model}" in result.stdout
    closed = model in ("paradl", "paleo")
    assert ("by the closed form for" in result.stdout) == closed
    assert ("Peak memory" in result.stdout) != closed


def test_options_of_the_pipeline_reach_the_simulation() -> None:
    usual = facts(*PIPELINE)
    assert facts(*PIPELINE, "--schedule", "gpipe")["schedule"] == "gpipe"
    assert (
        facts(*PIPELINE, "--recompute")["roles"][0]["memory_bytes"]["activations"]
        < usual["roles"][0]["memory_bytes"]["activations"]
    )
    assert (
        facts(*PIPELINE, "--max-in-flight", "1")["roles"][0]["memory_bytes"]["activations"]
        < usual["roles"][0]["memory_bytes"]["activations"]
    )
    chunked = facts(*PIPELINE, "--schedule", "interleaved", "--chunks", "2")
    assert chunked["stages"] == 4
    assert facts(*PIPELINE, "--overlap-factor", "0")["step_time_s"] < usual["step_time_s"]


def test_out_of_memory_is_an_answer() -> None:
    result = simulate(*PIPELINE, "--memory", "1 GiB")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "OUT OF MEMORY: stage" in text
    assert "of 1 GiB a GPU" in text
    assert " short (2 of 2 roles), at " in text
    assert "; most is " in text
    assert "does not fit" in text
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert simulate(*PIPELINE, "--memory", "1 GiB", "-q").stdout.rstrip().endswith("OUT OF MEMORY")
    assert facts(*PIPELINE, "--memory", "1 GiB")["fits"] is False


def test_a_slow_loader_holds_the_step_up() -> None:
    loaded = facts(*QUESTION, "--loader", "native", "--loader-rate", "1000")
    # 128 samples a host at 1000 a second
    assert loaded["step_time_s"] == pytest.approx(0.128)
    assert loaded["step_time_without_input_s"] < 0.128
    assert loaded["input_bottleneck"] == "the measured rate of a host"
    text = simulate(*QUESTION, "--loader", "native", "--loader-rate", "1000").stdout
    assert "(input; " in text
    assert text.count("The input holds up the step") == 1
    assert "hosts' worth of loading instead of 2" in " ".join(text.split())
    few = facts(*QUESTION, "--loader", "native", "--storage", "memory", "--cores", "1")
    many = facts(*QUESTION, "--loader", "native", "--storage", "memory", "--cores", "48")
    assert few["input_s"] > many["input_s"]
    quiet = simulate(*QUESTION, "--loader", "native", "--loader-rate", "1000", "-q").stdout
    assert "held up by its input" in quiet


def test_many_stages_are_not_all_listed() -> None:
    found = planner.simulate(
        "resnet152",
        gpus=16,
        cluster="lassen",
        global_batch_size=16,
        degrees=Degrees(pp=16, micro_batches=4),
    )
    simulated = found.simulated
    assert simulated is not None
    roles = main_roles(simulated, MAX_ROLES)
    assert len(roles) <= 4
    assert {simulated.roles[0].name, simulated.roles[-1].name} <= {role.name for role in roles}
    assert simulated.peak in roles
    assert simulated.slowest in roles
    stream = StringIO()
    show_simulation(found, Console(file=stream, width=80, highlight=False, markup=False))
    text = stream.getvalue()
    assert f"{16 - len(roles)} roles are left out" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/nowhere/plan.json"], "plan"),
        (["alexnet"], "add --gpus"),
        (["nothing", "--gpus", "8"], "'nothing'"),
        ([*QUESTION, "--micro-batches", "7"], "must be a multiple of dp x micro-batches"),
        ([*QUESTION, "--micro-batches", "0"], "--micro-batches must be at least 1"),
        ([*QUESTION, "--dp", "4", "--tp", "4"], "dp x tp x pp must be the 8 devices"),
        ([*QUESTION, "--pp", "3"], "dp x tp x pp must be the 8 devices"),
        ([*QUESTION, "--strategy", "data", "--dp", "8"], "not both"),
        ([*QUESTION, "--strategy", "best"], "the strategy must be one of"),
        ([*QUESTION, "--schedule", "fast"], "the schedule must be one of"),
        ([*QUESTION, "--pp", "2", "--chunks", "2"], "interleaved"),
        ([*QUESTION, "--runtime", "mpi"], "the runtime must be one of"),
        ([*QUESTION, "--loader", "fast"], "the data loader must be a built-in one"),
        ([*QUESTION, "--loader", "native", "--storage", "tape"], "the storage must be"),
        ([*QUESTION, "--loader", "native", "--loader-rate", "0"], "greater than 0"),
        ([*QUESTION, "--loader", "native", "--cores", "0"], "at least 1 core"),
        ([*QUESTION, "--loader-rate", "800"], "need a --loader"),
        ([*QUESTION, "--loader", "synthetic", "--cores", "4"], "need a --loader"),
        ([*QUESTION, "--model", "oracle"], "the step model must be one of"),
        ([*QUESTION, "--model", "paradl", "--trace", "t.json"], "knows no --trace"),
        ([*QUESTION, "--model", "paleo", "--runtime", "ddp"], "knows no --runtime"),
        ([*QUESTION, "--model", "plain", "--overlap-factor", "0.1"], "knows no --overlap-factor"),
        ([*QUESTION, "--model", "paradl", "--pp", "2"], "has no form for 2 pipeline stages"),
        ([*QUESTION, "--overlap-factor", "-1"], "overlap factor must be from 0"),
        ([*QUESTION, "--trace", "/nowhere/t.json"], "does not exist"),
        ([*QUESTION, "--trace", "/"], "must end in .json"),
        ([*QUESTION, "-o", "/nowhere/f.json"], "does not exist"),
        ([*QUESTION, "--trace", "x.json", "-o", "x.json"], "different files"),
        ([*QUESTION, "-q", "--json"], "exclude each other"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str) -> None:
    result = simulate(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_paths_are_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("simulated all the same")

    monkeypatch.setattr("planner.simulation.run.simulate_request", never)
    for option in ("--trace", "-o"):
        result = simulate(*QUESTION, option, str(tmp_path / "missing" / "file.json"))
        assert result.exit_code == 2
    assert simulate(*QUESTION, "--model", "paradl", "--trace", "t.json").exit_code == 2


def test_a_plan_refuses_another_split(plan_file: Path) -> None:
    for options in (["--tp", "2"], ["--strategy", "data"], ["--recompute"]):
        result = simulate(str(plan_file), *options)
        assert result.exit_code == 2
        assert "a plan says how the network is split" in result.stderr


def test_runtimes_and_loaders_are_listed() -> None:
    shown = run("runtimes")
    assert shown.exit_code == 0, shown.output
    for name, runtime in built_in_runtimes().items():
        assert name in shown.stdout
        assert runtime.title in shown.stdout
    assert "Rajbhandari et al. 2020" in shown.stdout
    assert "All-reduces gradients in pieces of 25 MiB" in shown.stdout
    shown_loaders = run("loaders")
    assert shown_loaders.exit_code == 0, shown_loaders.output
    for name in (*list_loaders(), *list_storages()):
        assert f"\n{name} " in f"\n{shown_loaders.stdout}"
    assert "Aach et al. 2023" in shown_loaders.stdout
    for result in (shown, shown_loaders):
        assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_strategy_is_written_and_simulates_to_the_same(tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    text = f"simulate gpt2 --gpus 8 --tp 2 --pp 2 --micro-batches 4 --dump-strategy {path} -q"
    first = run(*text.split())
    again = run("simulate", str(path), "-q")
    assert first.stdout.split(", ")[1] == again.stdout.split(", ")[1]


@pytest.mark.parametrize(
    ("words", "says", "again"),
    [
        ("net.toml --cluster own.toml", ("net.toml", "own.toml"), ""),
        ("alexnet --input-size 448", ("alexnet", "dgx-a100"), "s.toml --input-size 448"),
        ("alexnet --fsdp --optimizer adam", None, "s.toml --runtime fsdp --optimizer adam"),
        ("net.toml --table t.csv", ("net.toml", "dgx-a100"), "s.toml --table t.csv"),
        ("plan.json", (None, None), "MODEL --strategy s.toml --cluster CLUSTER, with the options"),
    ],
)
def test_a_written_strategy_says_what_it_is_of_and_what_to_give_again(
    words: str,
    says: tuple[str | None, str | None] | None,
    again: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, of in (("models", "alexnet"), ("clusters", "lassen")):
        own = run(kind, "--export", of, "-o", "file.toml")
        assert own.exit_code == 0, own.output
        text = re.sub("^name = .*", 'name = "mine"', Path("file.toml").read_text(), count=1)
        Path("net.toml" if kind == "models" else "own.toml").write_text(text)
    request = Request(source="alexnet", gpus=4, global_batch_size=32)
    measured_table(Path("t.csv"), request, lambda number, work: 2.0)
    run("evaluate", "net.toml", "--cluster", "own.toml", "--gpus", "4", "-o", "plan.json")
    given = [*words.split(), *([] if words == "plan.json" else ["--gpus", "4"])]
    first = simulate(*given, "--dump-strategy", "s.toml")
    assert first.exit_code == 0, first.output
    text = Path("s.toml").read_text()
    found = tomllib.loads(text)
    assert says in (None, (found.get("model"), found.get("cluster")))
    assert text.startswith(f"# planner simulate {again}" if again else "format")
    last = first.stdout.rstrip().rpartition("\n")[2]
    assert last.startswith(f"  planner simulate {again}" if again else "strategy written to s.toml")
    if words != "plan.json":
        once = facts(*given)["step_time_s"]
        assert facts(*(again or "s.toml").split())["step_time_s"] == pytest.approx(once)


def test_servers_need_a_runtime_that_has_them() -> None:
    result = run("simulate", "alexnet", "--gpus", "4", "--servers", "2", "--runtime", "ddp")
    assert result.exit_code == 2
    assert "has no parameter servers" in result.stderr
    assert run("simulate", "alexnet", "--gpus", "4", "--servers", "2", "-q").exit_code == 0


def test_devices_that_vary_wait_for_the_slowest() -> None:
    times = [
        json.loads(run("simulate", "alexnet", "--gpus", "64", "--variation", v, "--json").stdout)
        for v in ("0", "0.05")
    ]
    assert times[0]["waiting_for_slowest_s"] == 0.0
    waits = times[1]["waiting_for_slowest_s"]
    assert times[1]["step_time_s"] == pytest.approx(times[0]["step_time_s"] + waits)
    assert waits > 0.0


def test_a_pipeline_of_single_gpus_has_a_closed_form() -> None:
    pipeline = ("simulate", "vgg16", "--gpus", "4", "--pp", "4", "--micro-batches", "4")
    result = run(*pipeline, "--cluster", "abci", "--model", "paradl", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["breakdown_s"]["stage"] > 0.0
    refused = run(*pipeline, "--model", "paleo")
    assert refused.exit_code == 2
    assert "no form for 4 pipeline stages" in refused.stderr


def test_samples_that_are_no_photographs_are_said_to_be_estimated() -> None:
    def notes(network: str) -> str:
        text = run("simulate", network, "--gpus", "4", "--loader", "native", "--json").stdout
        return " ".join(json.loads(text)["notes"])

    assert "no photographs" in notes("gpt2")
    assert "no photographs" not in notes("alexnet")


def test_a_plan_of_another_input_size_is_simulated_as_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    size = ("--input-size", "160", "-q", "-o", str(path))
    run("evaluate", "resnet18", "--gpus", "4", "--cluster", "abci", *size)
    plan = Plan.load(path)
    result = json.loads(run("simulate", str(path), "--variation", "0", "--json").stdout)
    assert result["step_time_s"] == pytest.approx(plan.step_time, rel=0.1)
    other = run("simulate", str(path), "--input-size", "224")
    assert other.exit_code == 2
    assert "made for another network" in other.stderr


def test_a_network_file_may_be_json(tmp_path: Path) -> None:
    path = str(tmp_path / "network.json")
    run("models", "--export", "alexnet", "-o", path)
    assert run("simulate", path, "--gpus", "4", "-q").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gone.toml", "the file gone.toml must be readable"),
        ("alexnet --gpus 4 --strategy gone.toml", "the file gone.toml must be readable"),
        ("alexnet --gpus 4 --model paradl --servers 2", "knows no --servers"),
        ("alexnet --gpus 4 --trace trace.toml", "must end in .json"),
        ("alexnet --gpus 4 --dump-strategy plan.json", "must end in .toml"),
        ("alexnet --gpus 4 --congestion 1e300", "from 1 to 1000"),
        (
            "gpt2 --gpus 8 --global-batch-size 1000000 --micro-batches 62500 --runtime ps-sync",
            "at most 2,000,000 operations",
        ),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(arguments: str, message: str) -> None:
    result = simulate(*arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_stages_that_do_not_take_turns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    stages = (
        ('"token_embedding", "position_embedding", "embedding", "h.0-3"', "0-7"),
        ('"h.4-7"', "8-15"),
        ('"h.8-11", "ln_f", "head", "loss"', "0-7"),
    )
    rows = [f'[[stage]]\nlayers = [{names}]\ndevices = "{where}"\n' for names, where in stages]
    head = 'format = "planner-strategy"\nmodel = "gpt2"\ngpus = 16\ncluster = "proteus-hc2"\n'
    path.write_text(f"{head}[schedule]\nmicro_batches = 4\n" + "".join(rows))
    result = simulate(str(path), "-q")
    assert result.exit_code == 2
    assert "take their stages in turn" in result.stderr

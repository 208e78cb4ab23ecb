"""What waits in the memory of the host: memory, time, and what must hold of both."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import planner
from costmodels.cluster import HostMemory, dump_cluster, load_cluster
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.measure import RoleUse
from planner.cli.command import planner_command
from planner.models.configs import transformer
from planner.simulation.result import Simulation

PARTS = ("activations", "weights", "optimizer")
SUBSETS = [part for n in range(4) for part in itertools.combinations(PARTS, n)]
LEFT_OUT = ("fragmentation", "reserved")
CONFIG = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_head": 8,
    "n_layer": 6,
    "n_positions": 128,
    "vocab_size": 2048,
}
NETWORK = transformer(CONFIG, "a test", name="test", source="a test").build("test")
HOST = HostMemory(memory=1e12, memory_bandwidth=4e11, link_bandwidth=2.4e10, devices_per_link=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clusters")


def simulate(folder: Path, host: HostMemory = HOST, **asked: object) -> Simulation:
    """A step of a small transformer on A100s whose host is given."""
    path = folder / f"{abs(hash(host))}.toml"
    path.write_text(dump_cluster(replace(load_cluster("dgx-a100"), host=host)), encoding="utf-8")
    degrees = {"tp": 2, "micro_batch_size": 2, **asked}
    usual = {"gpus": 4, "global_batch_size": 16, "precision": "bf16", "optimizer": "adam"}
    runtime = degrees.pop("runtime", "megatron")
    return planner.simulate(
        NETWORK,
        cluster=str(path),
        runtime=runtime,  # type: ignore[arg-type]
        degrees=planner.Degrees(**degrees),  # type: ignore[arg-type]
        **usual,  # type: ignore[arg-type]
    )


def role(simulation: Simulation, number: int = 0) -> RoleUse:
    assert simulation.simulated is not None
    return simulation.simulated.roles[number]


def tensors(use: RoleUse) -> float:
    return sum(size for name, size in use.memory.holders.items() if name not in LEFT_OUT)


def activations_at_turn(simulation: Simulation) -> float:
    """What activations hold when the first backward pass begins. [B]"""
    assert simulation.simulated is not None
    times = simulation.simulated.task_times
    tasks = enumerate(times.graph.tasks)
    turn = min(times.starts[n] for n, task in tasks if task.kind.startswith("backward"))
    held: dict[object, float] = {}
    for time, key, holder, size in times.ledger.log[0]:
        if time <= turn and holder == "activations":
            held[key] = size
    return sum(held.values())


FAST = replace(HOST, link_bandwidth=1e18, memory_bandwidth=1e18)


@pytest.mark.parametrize("parts", SUBSETS)
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("pp", [1, 2])
def test_a_link_without_limits_costs_nothing(folder, parts, zero, pp):
    free, offloaded = (
        simulate(folder, FAST, offload=what, zero=zero, pp=pp) for what in ((), parts)
    )
    update = free.simulated.task_times.graph.tasks
    # an update on the host takes no time there, but for that of its memory
    spared = max((t.seconds for t in update if t.kind == "update"), default=0.0)
    least = free.step_time - (spared if "optimizer" in parts else 0.0)
    # what travels beside computation may shift, and slow other parts of it down
    assert least * (1 - 2e-4) <= offloaded.step_time <= free.step_time * (1 + 2e-4)


def test_the_state_leaves_the_device_to_the_byte(folder):
    whole, away = (role(simulate(folder, offload=what)) for what in ((), ("optimizer",)))
    state = whole.memory.holders["optimizer state"]
    assert state > 0.0 == away.memory.holders["optimizer state"]
    assert tensors(away) == tensors(whole) - state
    # the host has the state, and the gradients that it updates by
    assert away.host_memory == state + whole.memory.holders["weight gradients"]


def test_weights_leave_the_device_but_for_two_units(folder):
    whole, away = (simulate(folder, offload=what) for what in ((), ("weights",)))
    assert role(away).host_memory == role(whole).memory.holders["weights"]
    made = {
        task.name: sum(size for _, holder, size in task.makes if holder == "weights")
        for task in away.simulated.task_times.graph.tasks
        if task.kind == "from host"
    }
    two = sum(sorted(made.values())[-2:])
    assert 0.0 < role(away).memory.holders["weights"] <= two < sum(made.values())


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_leave_the_device_to_the_byte(folder, recompute):
    once = {"micro_batch_size": 8, "recompute": recompute}
    whole, away = (simulate(folder, FAST, offload=what, **once) for what in ((), ("activations",)))
    gone = role(away).host_memory
    assert gone > 0.4 * activations_at_turn(whole)
    assert activations_at_turn(away) == pytest.approx(activations_at_turn(whole) - gone, abs=1.0)
    copied = {"to host": 0.0, "from host": 0.0}
    for task in away.simulated.task_times.graph.tasks:
        if task.kind in copied:
            copied[task.kind] += task.num_bytes
    assert copied == {"to host": gone, "from host": gone}


def test_every_stage_waits_for_its_own_copies(folder):
    away = simulate(folder, offload=("activations",), pp=2, micro_batch_size=1)
    first, last = (role(away, n) for n in range(2))
    # the first stage has two micro-batches under way
    assert first.host_memory > 1.9 * last.host_memory > 0.0


def test_units_wait_for_copies_of_passes_before(folder):
    # a stage has one block, so that no pass begins three units
    slow = replace(HOST, link_bandwidth=HOST.link_bandwidth / 50)
    stages = {"pp": 2, "chunks": 3, "schedule": "interleaved", "stage_blocks": "equal"}
    asked = {**stages, "micro_batch_size": 1, "offload": ("activations",)}
    times = simulate(folder, slow, **asked).simulated.task_times
    left: dict[object, float] = {}
    begun: dict[object, float] = {}
    for n, task in enumerate(times.graph.tasks):
        unit = task.micro, unit_of(task.name)
        if task.kind == "to host" and task.role == 0:
            left[unit] = times.ends[n]
        elif task.kind == "forward" and task.role == 0:
            begun[unit] = min(begun.get(unit, math.inf), times.starts[n])
    order = sorted(begun, key=lambda unit: begun[unit])
    pairs = zip(order, order[2:], strict=False)
    waited = [(left[one], begun[other]) for one, other in pairs if one in left]
    assert len(waited) > 8
    assert all(end <= begin for end, begin in waited)


T5 = {
    "model_type": "t5",
    "d_model": 256,
    "d_ff": 1024,
    "d_kv": 64,
    "num_heads": 4,
    "num_layers": 2,
    "vocab_size": 1000,
}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_no_unit_waits_for_what_later_units_have_gathered_to_leave(schedule, recompute):
    """The output of the encoder, which the decoder gathers block by block."""
    network = transformer(T5, "a test", name="t5", source="a test").build("t5")
    pp = 1 if schedule == "1f1b" else 2
    degrees = {"tp": 4, "pp": pp, "chunks": pp, "schedule": schedule, "micro_batch_size": 1}
    degrees |= {"sequence_parallel": True, "recompute": recompute, "offload": ("activations",)}
    found = planner.simulate(
        network,
        gpus=4 * pp,
        cluster="juwels-booster",
        global_batch_size=4,
        degrees=planner.Degrees(**degrees),  # type: ignore[arg-type]
    )
    assert role(found).busy["to_host"] > 0.0


def test_neighbours_share_a_link_and_a_host_its_memory(folder):
    def busy(**host: float) -> float:
        found = simulate(folder, replace(HOST, **host), offload=("activations",))
        return role(found).busy["to_host"]

    alone = busy(devices_per_link=1)
    assert busy(devices_per_link=2) == pytest.approx(2 * alone)
    assert busy(devices_per_link=4) == pytest.approx(4 * alone)
    # four devices copy through a memory that is slower than their links
    assert busy(devices_per_link=1, memory_bandwidth=HOST.link_bandwidth) >= 4 * alone * (1 - 1e-9)


def test_the_update_on_the_host_takes_the_time_of_its_memory(folder):
    found = simulate(folder, offload=("optimizer",), zero=1)
    parameters = sum(
        piece.parameters / 2
        for piece in compiled(found).view.pieces.values()  # state is cut over two replicas
    )
    alone = sum(task.transfer for task in updates(found))
    assert alone == pytest.approx(28 * parameters * 4 / HOST.memory_bandwidth)
    # weights that go back meanwhile read that memory, too
    assert role(found).busy["host"] > alone


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_the_update_waits_for_all_gradients_of_a_device(folder, schedule):
    # one norm of all stages of a device; those of the last one come first
    chunks = {"chunks": 3, "schedule": schedule} if schedule == "interleaved" else {}
    found = simulate(folder, offload=("optimizer",), pp=2, micro_batch_size=1, **chunks)
    times = found.simulated.task_times
    for number in range(2):
        rows = [n for n, task in enumerate(times.graph.tasks) if task.role == number]
        kinds = {n: times.graph.tasks[n].kind for n in rows}
        arrived = max(times.ends[n] for n in rows if kinds[n] == "to host")
        assert min(times.starts[n] for n in rows if kinds[n] == "update") >= arrived
    stages = [task.stage for task in times.graph.tasks if task.kind == "to host" and not task.role]
    assert stages == sorted(stages, reverse=True)


def updates(simulation: Simulation):
    tasks = simulation.simulated.task_times.graph.tasks
    return [task for task in tasks if task.kind == "update"]


def compiled(simulation: Simulation):
    from planner.simulation.compiled import compiler_of

    return compiler_of(simulation.subject, simulation.runtime)


strategies = st.fixed_dictionaries(
    {
        "pp": st.sampled_from([1, 2]),
        "zero": st.sampled_from([0, 3]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "micro_batch_size": st.sampled_from([1, 2, 4]),
        "runtime": st.sampled_from(["ddp", "megatron", "deepspeed", "torchtitan", "nanotron"]),
        "schedule": st.sampled_from(["gpipe", "1f1b", "zero-bubble"]),
    }
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(strategies, st.sampled_from(SUBSETS[1:]), st.floats(1e9, 1e12), st.floats(1.0, 50.0))
def test_laws(folder, asked, parts, bandwidth, faster):
    slow = replace(HOST, link_bandwidth=bandwidth)
    fast = replace(HOST, link_bandwidth=bandwidth * faster)
    free = simulate(folder, slow, **asked)
    away, sooner = (simulate(folder, host, offload=parts, **asked) for host in (slow, fast))
    assert sooner.step_time <= away.step_time * (1 + 1e-9)
    for number, use in enumerate(away.simulated.roles):
        assert away.step_time * (1 + 1e-9) >= max(use.busy.values())
        # what a recipe needs to update is on the device for two units at most
        assert tensors(use) <= tensors(role(free, number)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--offload disk", "activations, weights, optimizer"),
        ("--offload weights,weights", "each once"),
        ("--offload weights --zero 1", "--zero 3"),
        ("--offload optimizer --runtime ps-sync", "servers.*leave optimizer out"),
        ("--offload activations --cluster proteus-hc2", "proteus-hc2.*no .host. table"),
    ],
)
def test_what_cannot_wait_in_the_host_is_refused_in_one_sentence(words, said):
    result = CliRunner().invoke(planner_command, f"simulate gpt2 --gpus 8 {words}".split())
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert re.search(said, result.stderr), result.stderr


def test_what_a_host_has_no_room_for_is_refused(folder):
    with pytest.raises(planner.InputError, match=r"memory of a host.*must fit in its 1 MiB"):
        simulate(folder, replace(HOST, memory=2.0**20), offload=PARTS)


def test_a_strategy_file_says_what_waits_in_the_host(tmp_path):
    file = tmp_path / "strategy.toml"
    asked = ["simulate", "gpt2", "--gpus", "8", "--tp", "2", "--offload", "activations,optimizer"]
    runner = CliRunner()
    first = runner.invoke(planner_command, [*asked, "--json", "--dump-strategy", str(file)])
    assert first.exit_code == 0, first.stderr
    assert 'offload = ["activations", "optimizer"]' in file.read_text(encoding="utf-8")
    again = runner.invoke(planner_command, ["simulate", str(file), "--json"])
    times = [re.search(r'"step_time_s": ([\d.]+)', r.stdout)[1] for r in (first, again)]
    assert times[0] == times[1]
    assert math.isfinite(float(times[0]))


SCHEDULES = [{}, {"schedule": "zero-bubble"}, {"schedule": "interleaved", "chunks": 3}]


@pytest.mark.parametrize("runtime", ["megatron", "ddp", "nanotron"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full", 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_of_a_step_is_left_when_it_ends(folder, runtime, recompute, schedule):
    # what stages receive came back for what is computed again, and was received once more
    pipeline = {"pp": 2, "recompute": recompute, "runtime": runtime, **schedule}
    for parts in ((), ("activations",), PARTS):
        ledger = simulate(folder, offload=parts, **pipeline).simulated.task_times.ledger
        left = {key: holder for live in ledger.live for key, (holder, _) in live.items()}
        assert not [key for key, holder in left.items() if holder.startswith("activation")]

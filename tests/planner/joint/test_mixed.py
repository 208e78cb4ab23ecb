"""Plans on hosts of several kinds: laws of the simulation and of the search."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from msgspec.structs import replace

import planner
from costmodels.cluster import HostGroup, load_cluster
from costmodels.errors import InputError
from costmodels.simulation import load_runtime
from costmodels.strategy import BatchShare
from planner.errors import ContradictionError, InfeasibleError
from planner.joint.answer import joint_plan
from planner.joint.hosts import evenly, on_groups
from planner.joint.inside import Insides
from planner.joint.mixed import fastest_splits
from planner.joint.pipelines import GroupedPipelines
from planner.joint.replicas import Replicas
from planner.joint.runtimes import searched_runtime
from planner.joint.search import JointSearch
from planner.joint.ways_inside import insides
from planner.joint.wishes import NO_WISHES
from planner.joint.work import least_step, least_work
from planner.plan import Plan
from planner.planning.options import SearchOptions
from planner.planning.staged import simulate_stages, tried
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve
from planner.simulation.run import waiting_time
from search.problem.deadline import Deadline

RUNTIME = load_runtime("ddp")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 6,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
HEAD = """
name = "mixed"
host_level = "host"
default_precision = "{precision}"

[[levels]]
name = "host"
size = {size}
link = "nvlink3"
links = 12

[[levels]]
name = "network"
size = {hosts}
link = "infiniband-hdr"
links = 4
"""


def cluster_of(folder, *groups, size=2, precision="bf16"):
    """A cluster of hosts of `size` GPUs: pairs of a number of hosts and a device."""
    hosts = sum(hosts for hosts, _ in groups)
    text = HEAD.format(size=size, hosts=hosts, precision=precision)
    for number, (hosts, device) in enumerate(groups):
        text += f'[[groups]]\nname = "g{number}"\nhosts = {hosts}\ndevice = "{device}"\n'
    path = folder / "mixed.toml"
    path.write_text(text)
    return load_cluster(path)


def setting_of(folder, where, model=None, batch=24, **more):
    if model is None:
        path = folder / "config.json"
        path.write_text(json.dumps(CONFIG))
        model = str(path)
    question = {"gpus": where.num_devices, "global_batch_size": batch, **more}
    return resolve(make_request("optimize", {"model": model, "cluster": where, **question}))


def planned(setting):
    return joint_plan(setting, SearchOptions())


@pytest.fixture
def pair(tmp_path):
    """Two hosts of H100, two of A100."""
    return setting_of(tmp_path, cluster_of(tmp_path, (2, "a100-80gb"), (2, "h100")))


@pytest.fixture
def few(tmp_path):
    """A host of H100, one of A100."""
    return setting_of(tmp_path, cluster_of(tmp_path, (1, "a100-80gb"), (1, "h100")), batch=12)


def alike(setting, hosts):
    """The same question on a plain cluster, and with its hosts in two groups of one kind."""
    plain = evenly(setting)
    device = setting.cluster.groups[0].device
    cluster = replace(plain.cluster, device=device)
    compute = setting.machine.compute.under(setting.cluster.groups[:1])
    plain = replace(
        plain, cluster=cluster, machine=replace(plain.machine, compute=compute), request=None
    )
    total = cluster.levels[-1].size
    groups = tuple(
        HostGroup(name=name, hosts=count, device=device, levels=cluster.levels)
        for name, count in (("a", hosts), ("b", total - hosts))
    )
    return plain, replace(plain, cluster=replace(cluster, groups=groups)), groups


@pytest.mark.parametrize(
    "degrees",
    [
        Degrees(),
        Degrees(tp=2, pp=2, micro_batches=4, zero=1),
        Degrees(pp=4, micro_batches=4, recompute="selective"),
        Degrees(fsdp=True, micro_batch_size=1),
    ],
)
def test_groups_of_one_kind_step_as_a_plain_cluster(pair, degrees):
    plain, grouped, _ = alike(pair, 1)
    runtime = load_runtime("fsdp") if degrees.fsdp else RUNTIME
    first, _ = tried(plain, degrees, runtime)
    second, _ = tried(grouped, degrees, runtime)
    assert second.seconds == first.seconds
    assert second.peak_memory == first.peak_memory


@pytest.mark.parametrize(("zero", "samples"), [(0, 3), (1, 3), (3, 1)])
def test_equal_shares_step_as_plain_replicas(pair, zero, samples):
    plain, grouped, groups = alike(pair, 2)
    runtime = load_runtime("fsdp") if zero == 3 else RUNTIME
    degrees = Degrees(zero=zero or None, micro_batch_size=samples)
    whole, _ = tried(plain, degrees, runtime)
    count = 3 // samples
    shares = tuple(
        BatchShare(
            group=group.name,
            first_device=4 * place,
            num_devices=4,
            replicas=4,
            micro_batches=count,
            samples=samples,
        )
        for place, group in enumerate(groups)
    )
    placed = replace(
        whole.placed,
        setting=replace(whole.placed.setting, cluster=grouped.cluster),
        strategy=replace(whole.placed.strategy, shares=shares),
    )
    shared = simulate_stages(placed, runtime)
    assert shared.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert shared.peak_memory == pytest.approx(whole.peak_memory)
    assert len(shared.step.roles) == 2


def test_a_stage_takes_what_its_own_devices_take(pair):
    degrees = Degrees(tp=2, pp=4, micro_batches=6)
    step, _ = tried(pair, degrees, RUNTIME)
    computing = {role.name: role.busy["compute"] for role in step.step.roles}
    fast = [time for name, time in computing.items() if name.endswith("(g1)")]
    slow = [time for name, time in computing.items() if name.endswith("(g0)")]
    assert len(fast) == len(slow) == 2
    assert max(fast) < min(slow)
    slowest, _ = tried(evenly(pair), degrees, RUNTIME)
    assert step.seconds < slowest.seconds


def test_memory_is_that_of_the_devices_of_a_stage(tmp_path):
    setting = setting_of(tmp_path, cluster_of(tmp_path, (1, "a100-80gb"), (1, "a100-40gb")))
    step, _ = tried(setting, Degrees(tp=2, pp=2, micro_batches=4), RUNTIME)
    capacities = {role.name: role.capacity for role in step.step.roles}
    devices = {group.name: group.device for group in setting.cluster.groups}
    for name, capacity in capacities.items():
        assert capacity == next(d.memory for n, d in devices.items() if f"({n})" in name)
    tight = max(step.step.roles, key=lambda role: role.memory.total - role.capacity)
    assert step.step.peak is tight
    assert step.capacity == tight.capacity


@pytest.mark.slow
def test_the_plan_is_what_the_simulation_says(few, tmp_path):
    plan = planned(few)
    assert plan.search.lower_bound_s <= plan.step_time_s
    assert any("hosts of several kinds" in note for note in plan.fallbacks)
    for row in plan.baselines:
        assert not row.fits or row.step_time_s >= plan.step_time_s * (1 - 1e-9)
    path = tmp_path / "plan.json"
    plan.save(path)
    read = Plan.load(path)
    assert read == plan
    assert read.to_json() == plan.to_json()
    simulation = planner.simulate(path)
    assert simulation.step_time == pytest.approx(plan.step_time_s, rel=1e-9)
    assert planned(few).to_json() == plan.to_json()
    # half of the devices are half as fast: even shares waste a quarter of all
    even, _ = tried(few, Degrees(), RUNTIME)
    assert plan.step_time_s < 0.85 * even.seconds
    assert plan.shares or plan.stages
    if plan.shares:
        assert sum(share.batch for share in plan.shares) == plan.global_batch_size
    fast = planned(resolve(dataclasses.replace(few.request, gpus=2)))
    assert plan.step_time_s <= fast.step_time_s


def test_no_uneven_way_is_below_the_bound(pair):
    bound = least_step(pair)
    assert bound > least_work(pair)
    splits = [Degrees(), Degrees(tp=2), Degrees(recompute="full")]
    for ways in (Replicas(pair, RUNTIME, NO_WISHES), GroupedPipelines(pair, RUNTIME, NO_WISHES)):
        rows = ways.estimated(splits, Deadline(None), float("inf"))
        assert len(rows) > 10
        for expected, trial in rows[:: len(rows) // 4]:
            step = trial()
            assert step is not None
            assert step.seconds >= bound
            assert expected == pytest.approx(step.seconds, rel=0.35)


@pytest.mark.parametrize(
    ("rates", "least"),
    [
        ([1.0], 1.0),
        # alone, the fast device waits for none, and others would do little of its work
        ([1.0] + [1e-4] * 8, 1.0),
        ([1.0] * 9, (1.0 + waiting_time(1.0, 9)) / 9),
    ],
)
def test_no_step_is_shorter_than_its_work_and_the_wait(monkeypatch, pair, rates, least):
    monkeypatch.setattr("planner.joint.work._priced_work", lambda setting: (1.0, np.array(rates)))
    assert least_step(pair) == pytest.approx(least)


def test_splits_that_fit_are_shared_out_first(few):
    """What is fastest with even shares may fit nowhere, and many of it may be."""
    found = JointSearch(
        setting=evenly(few),
        runtime=searched_runtime(few),
        options=SearchOptions(),
        deadline=Deadline(None),
    ).look()
    fastest = dataclasses.replace(found.estimates[0].choice.inside, recompute="none")
    others = [dataclasses.replace(one.choice.inside, recompute="none") for one in found.estimates]
    other = next(split for split in reversed(others) if split != fastest)
    # as if nothing but that fitted
    rows = tuple(
        replace(one, memory=1.0 if split == other else 2.0)
        for one, split in zip(found.estimates, others, strict=True)
    )
    assert fastest_splits(replace(found, estimates=rows), 1.0, attends=True)[0] == other


@pytest.mark.slow
def test_a_faster_group_never_makes_the_plan_slower(tmp_path):
    times = []
    for device in ("v100-32gb", "a100-80gb"):
        where = cluster_of(tmp_path, (1, "a100-80gb"), (1, device), size=1, precision="fp16")
        times.append(planned(setting_of(tmp_path, where, batch=8)).step_time_s)
    assert times[1] <= times[0]


@pytest.mark.slow
def test_more_samples_go_to_faster_devices(tmp_path):
    where = cluster_of(tmp_path, (1, "a100-80gb"), (2, "v100-32gb"), size=1, precision="fp16")
    setting = setting_of(tmp_path, where, "resnet18", batch=768)
    plan = planned(setting)
    assert [share.group for share in plan.shares] == ["g0", "g1"]
    fast, slow = (share.micro_batches * share.samples for share in plan.shares)
    assert fast > 1.5 * slow
    assert planner.simulate(plan).step_time == pytest.approx(plan.step_time_s, rel=1e-9)
    # the time of 768 samples was told for 256
    with pytest.raises(
        InputError, match=r"768 samples .* global batch but that is 256; plan again"
    ):
        planner.simulate(plan, global_batch_size=256)


def test_slow_hosts_may_be_left_idle(tmp_path):
    where = cluster_of(tmp_path, (1, "h100"), (1, "k80"), size=1, precision="fp32")
    plan = planned(setting_of(tmp_path, where, "resnet18", batch=64))
    assert plan.gpus == 1
    assert plan.device == "h100"
    assert plan.idle_gpus > 0


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("names", [("g0",), ("g1",), ("g0", "g2")])
def test_a_plan_of_some_groups_is_evaluated_on_these(tmp_path, names):
    where = cluster_of(tmp_path, (2, "a100-80gb"), (2, "h100"), (2, "a100-40gb"), size=1)
    setting = setting_of(tmp_path, where, batch=12)
    plan = joint_plan(on_groups(setting, names), SearchOptions())
    plan = dataclasses.replace(plan, idle_gpus=6 - plan.gpus)
    plan.save(tmp_path / "plan.json")
    again = planner.evaluate(
        str(tmp_path / "config.json"),
        strategy=tmp_path / "plan.json",
        cluster=where,
        gpus=6,
        global_batch_size=12,
    )
    assert (again.gpus, again.device) == (plan.gpus, plan.device)
    assert again.step_time_s == pytest.approx(plan.step_time_s)


def test_an_interrupt_keeps_the_best_so_far(tmp_path, monkeypatch):
    where = cluster_of(tmp_path, (1, "h100"), (1, "a100-80gb"), size=1)
    setting = setting_of(tmp_path, where, batch=4)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupedPipelines, "estimated", interrupted)
    plan = planned(setting)
    assert plan.search.stopped_by == "interrupt"
    assert 0.0 < plan.search.lower_bound_s <= plan.step_time_s


def test_a_front_is_of_one_kind_of_hosts(tmp_path):
    where = cluster_of(tmp_path, (1, "h100"), (1, "k80"), size=1, precision="fp32")
    with pytest.raises(InputError, match="must be of hosts of one kind"):
        planner.pareto("resnet18", gpus=2, cluster=where)


def test_what_fits_nowhere_is_proven_not_to(tmp_path):
    where = cluster_of(tmp_path, (1, "h100"), (1, "a100-80gb"), size=1)
    with pytest.raises(InfeasibleError, match="all GPUs together have") as caught:
        planned(setting_of(tmp_path, where, batch=2, memory="2.5 GiB"))
    assert caught.value.proven


def test_tables_are_of_one_kind_of_device(tmp_path, pair):
    table = tmp_path / "table.csv"
    table.write_text(
        "operation,direction,precision,samples,channels,filters,in_extents,out_extents,kernel,"
        "stride,groups,seconds\nlinear,forward,bf16,8,64,64,,,,,1,1e-5\n"
    )
    with pytest.raises(InputError, match="one kind of device that a job uses"):
        resolve(dataclasses.replace(pair.request, tables=(str(table),)))


def test_replicas_lie_on_whole_hosts_or_on_parts_of_one(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    question = {"model": str(path), "gpus": 24, "cluster": "dgx-a100", "global_batch_size": 24}
    setting = resolve(make_request("optimize", question))
    found = list(insides(setting))
    assert {one.tp * one.cp for one in found} == {1, 2, 4, 8}
    costs = Insides(setting, RUNTIME)
    for one in found[::5]:
        assert costs.of(one, 1).forward.sum() > 0.0


@pytest.mark.slow
def test_what_one_group_cannot_have_is_looked_for_on_both(tmp_path):
    # five of a host of one kind have no pipeline of two stages, and refused what ten have
    where = cluster_of(tmp_path, (1, "a100-80gb"), (1, "h100"), size=5)
    model = tmp_path / "config.json"
    model.write_text(json.dumps(CONFIG))
    asked = {"gpus": 10, "cluster": where, "global_batch_size": 40}
    plan = planner.optimize(str(model), **asked, keep="pp=2")
    assert plan.num_groups == 2
    with pytest.raises(ContradictionError, match="on 10 GPUs with a batch of 40"):
        planner.optimize(str(model), **asked, keep="pp=3")

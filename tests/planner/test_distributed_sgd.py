"""`planner.throughput` and `planner throughput`: from a network and a GPU to predictions."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner, Result

import planner
from costmodels.errors import InputError
from planner.cli.command import planner_command
from planner.distributed_sgd.mix import find_device, parse_mix, parse_workers
from planner.distributed_sgd.profile import profile_worker

MODEL = "resnet18"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(planner_command, ["throughput", *arguments])


def test_a_worker_is_costed_as_a_plan_of_one_gpu() -> None:
    profile, *_ = profile_worker(planner.Request(source=MODEL, precision="fp32"), "v100-16gb")
    plan = planner.evaluate(
        MODEL, gpus=1, cluster="aws-p3.2xlarge", global_batch_size=32, precision="fp32"
    )
    assert profile.compute_time + profile.update_time == pytest.approx(plan.step_time_s)
    # torchvision's resnet18 has 11,689,512 parameters
    assert profile.model_bytes == 4 * 11_689_512


@pytest.mark.slow
def test_both_models_and_where_they_end() -> None:
    found = planner.throughput("resnet152", workers="1-8", mode="async", overlap=False)
    assert [row.workers for row in found.rows] == list(range(1, 9))
    assert found.transfer_s == pytest.approx(0.1926, rel=1e-3)
    rates = [row.coarse.throughput for row in found.rows if row.coarse]
    assert rates == sorted(rates)
    assert rates[-1] < 32 / found.transfer_s
    assert found.rows[0].coarse_efficiency == pytest.approx(1.0)
    assert found.rows[0].fine_efficiency == pytest.approx(1.0)
    assert {row.coarse.rule for row in found.rows if row.coarse} == {
        "processor-sharing",
        "first-come",
    }
    for row in found.rows:
        assert row.difference == pytest.approx(0.0, abs=0.1)
    # every later worker adds less than a tenth, the one before does not
    last = found.coarse_saturation
    assert last is not None
    gains = [(b - a) / rates[0] for a, b in itertools.pairwise(rates)]
    assert all(gain < 0.1 for gain in gains[last - 1 :])
    assert gains[last - 2] >= 0.1


def test_an_all_reduce_scales_on() -> None:
    found = planner.throughput(
        MODEL, workers=[1, 2, 4, 8, 16], architecture="all-reduce", flow_cap="1 Gbps"
    )
    assert found.coarse_saturation is None
    assert found.fine_saturation is None
    assert "does not bind" in found.notes[-1]
    assert found.transfer_s == pytest.approx(found.model_bytes / 1.25e9)


def test_hosts_of_several_gpus_exchange_inside_first() -> None:
    one = planner.throughput(MODEL, workers=[2], models="coarse", overlap=False)
    host = planner.throughput(MODEL, workers=[2], models="coarse", overlap=False, gpus_per_host=8)
    kind = host.kinds[0]
    assert kind.samples == 8 * 32
    assert 0.0 < kind.host_s < 0.1 * (kind.forward_s + kind.backward_s)
    assert host.rows[0].coarse is not None
    assert one.rows[0].coarse is not None
    longer = host.rows[0].coarse.step_time - one.rows[0].coarse.step_time
    assert longer == pytest.approx(kind.host_s)
    assert any("joined as those of" in text for text in host.defaults)
    inside = {
        cluster: planner.throughput(
            MODEL, workers=[1], models="coarse", gpus_per_host=4, host=cluster
        ).kinds[0]
        for cluster in ("titanxp-pcie", "lassen")
    }
    assert inside["titanxp-pcie"].host_s > 2 * inside["lassen"].host_s
    with pytest.raises(InputError, match="lower --gpus-per-host"):
        planner.throughput(MODEL, gpus_per_host=16, host="dgx1-v100")


def test_mixed_workers_keep_their_proportion() -> None:
    found = planner.throughput(MODEL, device="v100:4,t4:2", workers="1-9", models="coarse")
    assert [row.counts for row in found.rows] == [(2, 1), (4, 2), (6, 3)]
    assert planner.throughput(MODEL, device="v100:4,t4:2", models="coarse").rows[0].workers == 6
    v100, t4 = (kind.forward_s + kind.backward_s for kind in found.kinds)
    # Li et al. 2022, section 4.2.3: about twice as fast
    assert 1.7 < t4 / v100 < 3.2
    # the server does not change with the worker
    assert found.kinds[0].update_s == found.kinds[1].update_s


def test_an_update_takes_what_is_given() -> None:
    found = planner.throughput(MODEL, workers=[1], models="coarse", update_time=0.5, overlap=False)
    none = planner.throughput(MODEL, workers=[1], models="coarse", update_time=0.0, overlap=False)
    assert found.rows[0].coarse is not None
    assert none.rows[0].coarse is not None
    assert found.rows[0].coarse.step_time == pytest.approx(none.rows[0].coarse.step_time + 0.5)


def test_devices_by_the_beginning_of_their_names() -> None:
    assert find_device("t4") == ("t4", "")
    assert find_device("v100-32gb") == ("v100-32gb", "")
    name, note = find_device("V100")
    assert name == "v100-16gb"
    assert "memory only" in note
    with pytest.raises(InputError, match="a100-40gb, a100-80gb"):
        find_device("a100")
    with pytest.raises(InputError, match="v100-16gb"):
        find_device("v10x")


def test_numbers_of_workers() -> None:
    plain, mixed = parse_mix("v100"), parse_mix("v100:4, t4:2")
    assert parse_workers(None, plain) == tuple(range(1, 17))
    assert parse_workers("1,4-6, 4", plain) == (1, 4, 5, 6)
    assert parse_workers(None, mixed) == (6,)
    assert parse_workers("1-7", mixed) == (3, 6)
    with pytest.raises(InputError, match="multiple of 3"):
        parse_workers("4", mixed)
    with pytest.raises(InputError, match="multiple of 3"):
        parse_workers("1-2", mixed)


def test_the_table() -> None:
    result = run(MODEL, "--workers", "1-3", "--mode", "async", "--bandwidth", "10Gbps")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for text in (
        "resnet18, Async-SGD with a parameter server",
        "worker v100-16gb: 32 samples a step",
        "links of 10 Gb/s",
        "coarse /s",
        "fine /s",
        "apart",
        "link use",
        "exact",
        "Saturates: coarse",
        "v100-32gb differs in memory only",
    ):
        assert text in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("model", ["coarse", "fine"])
def test_one_model_alone_and_as_json(model) -> None:
    result = run(MODEL, "--workers", "2", "--model", model, "--json", "--no-overlap")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    row = facts["rows"][0]
    assert (row["coarse"] is None) == (model == "fine")
    assert (row["fine"] is None) == (model == "coarse")
    assert row["difference"] is None
    assert facts["overlap"] is False
    assert run(MODEL, "--workers", "2", "--model", model).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workers", "5-2"], "must rise"),
        (["--workers", "x"], "1-16 or 1,2,4,8"),
        (["--workers", "0"], "from 1 to 10,000"),
        (["--workers", "1-99999"], "end at 10,000"),
        (["--device", "abacus"], "use one of"),
        (["--device", "v100:4,t4"], "must come with its number"),
        (["--device", "v100:0"], "at least 1"),
        (["--device", "v100:1,v100-16gb:1"], "named twice"),
        (["--bandwidth", "0 Gbps"], "greater than zero"),
        (["--bandwidth", "10"], "must have a unit"),
        (["--architecture", "all-reduce", "--mode", "async"], "must be synchronous"),
        (["--architecture", "all-reduce", "--servers", "2"], "without parameter servers"),
        (["--architecture", "tree"], "ps, all-reduce"),
        (["--mode", "stale"], "sync, async"),
        (["--model", "medium"], "coarse, fine, both"),
        (["--rule", "lifo"], "auto, processor-sharing, first-come"),
        (["--utilisation-threshold", "1.5"], "from 0 to 1"),
        (["--servers", "0"], "at least 1 parameter server"),
        (["--gpus-per-host", "0"], "at least 1 GPU"),
        (["--batch", "0"], "at least 1 sample"),
        (["--steps", "0"], "from 1 to 100,000 steps"),
        (["--variation", "-1"], "from 0 to 1"),
        (["--seed", "-1"], "at least 0"),
        (["--update-time", "soon"], "time of an update"),
        (["--precision", "bf16"], "fp32, fp16"),
    ],
)
def test_what_cannot_be_used_is_one_line(arguments, text) -> None:
    result = run(MODEL, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert text in result.stderr

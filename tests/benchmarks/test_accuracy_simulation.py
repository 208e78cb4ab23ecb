"""Simulations beside what papers state: structure, and the orders that must not get lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

import planner
from benchmarks.accuracy import __main__ as accuracy
from benchmarks.accuracy.claims import Claim, Findings, pairs_in_order, ranks
from benchmarks.published import congestion as accuracy_congestion
from benchmarks.published import juwels as accuracy_juwels
from benchmarks.published import proteus as accuracy_proteus
from benchmarks.simulation import __main__ as simulation
from costmodels.errors import InputError
from planner.request.inputs.simulating import step_models
from planner.simulation.run import DEVICE_VARIATION

BEST = accuracy_proteus.VARIANTS[0]


def test_pairs_are_counted_where_the_truth_tells_them_apart() -> None:
    assert pairs_in_order([1, 2, 3], [0.1, 0.3, 0.2]) == (2, 3)
    assert pairs_in_order([1, 1, 2], [0.1, 0.3, 0.2]) == (1, 2)  # equal ranks tell nothing
    assert pairs_in_order([1, 2], [0.5, 0.5]) == (0, 1)  # a tie is not the right order
    assert ranks([0.3, 0.1, 0.2]) == [3, 1, 2]


def test_findings_count_what_holds() -> None:
    claims = [
        Claim(about="a", published="b", predicted="c", holds=holds)
        for holds in (True, True, False, None)
    ]
    found = Findings(name="n", source="s", rows=({"x": 1.0},), claims=tuple(claims))
    assert found.counts == (2, 1, 1)
    assert json.loads(json.dumps(found.as_dict()))["claims"][3]["holds"] is None


def test_table_v_is_complete() -> None:
    for config, gpus, count in (("HC1", 8, 6), ("HC2", 16, 7)):
        found = accuracy_proteus.entries(config)
        assert sorted(entry.true_rank for entry in found) == list(range(1, count + 1))
        assert {entry.dp * entry.tp * entry.pp for entry in found} == {gpus}


def test_order_of_strategies_across_hosts() -> None:
    found = accuracy_proteus.entries("HC2")
    times = [accuracy_proteus.strategy_step(entry, BEST) for entry in found]
    assert ranks(times) == [entry.true_rank for entry in found]
    assert accuracy_proteus.order("HC2", BEST) == (21, 21)


def test_order_of_strategies_across_sockets() -> None:
    assert accuracy_proteus.order("HC1", BEST) == (14, 15)
    # without what joins the sockets, a second pair is swapped
    flat = next(v for v in accuracy_proteus.VARIANTS if v.hc1 == "titanxp-pcie")
    assert accuracy_proteus.order("HC1", flat) == (13, 15)


def test_calibration_takes_the_published_hours_and_only_four_gpus() -> None:
    wanted = 13.0 * 3600.0 * 256 / (90 * 1_281_167)
    step = accuracy_juwels.waiting_step("resnet50", "ddp", "dali-cpu", 4)
    assert step == pytest.approx(wanted, rel=2e-3)


def test_efficiency_is_of_the_time_of_a_run() -> None:
    run = ("resnet50", "ddp", "dali-cpu")
    few, many = (accuracy_juwels.run_time(*run, gpus) for gpus in (4, 1024))
    assert accuracy_juwels.efficiency_on(*run, 1024) == pytest.approx(4 * few / (1024 * many))
    # 1,281,167 images fill 19.5 steps of 1024 GPUs: the last one is as long as the others
    step = accuracy_juwels.waiting_step(*run, 1024)
    assert many == pytest.approx(90 * (20 * step + accuracy_juwels.epoch_overhead()))
    falling = [accuracy_juwels.efficiency_on(*run, gpus) for gpus in (4, 64, 256, 1024)]
    assert falling == sorted(falling, reverse=True)


def test_the_efficiency_that_tells_the_time_of_an_epoch_enters_no_error() -> None:
    found = accuracy_juwels.run_time_efficiencies()
    (given,) = [cell for cell in found.cells if cell.calibrating]
    assert given.predicted == pytest.approx(given.measured, rel=2e-3)
    others = [cell for cell in found.cells if cell.counts]
    assert len(others) == 6
    # another network, whose step is longer by a third, has lost as much time
    (deeper,) = [cell for cell in others if cell.group.startswith("resnet152")]
    assert abs(deeper.error) < 0.03


def test_single_files_stop_scaling() -> None:
    few = accuracy_juwels.efficiency_on("resnet50", "ddp", "native", 128)
    many = accuracy_juwels.efficiency_on("resnet50", "ddp", "native", 512)
    assert many == pytest.approx(few / 4, rel=0.03)
    assert many < 0.24  # as published


def test_every_step_model_has_a_column() -> None:
    rows = simulation.side_by_side(smoke=True)
    assert list(rows[0])[1:] == [f"{model} [ms]" for model in step_models()]


def test_speed_names_what_it_took() -> None:
    row = simulation.speed(simulation.SMOKE[0], 1)
    assert row["Proteus [s]"] == pytest.approx(0.733)
    assert float(str(row["whole call [s]"])) > float(str(row["execute [s]"])) > 0.0


@pytest.mark.slow
def test_published_prints_what_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy_proteus, "ablation", lambda: accuracy_proteus.strategies())
    found = accuracy_proteus.proteus_findings()
    assert [len(item.rows) for item in found] == [13, 13]
    assert found[0].counts == (4, 1, 0)
    monkeypatch.setattr(accuracy_proteus, "proteus_findings", lambda: found)
    monkeypatch.setattr(accuracy_juwels, "juwels_findings", list)
    monkeypatch.setattr(accuracy_congestion, "congestion_findings", list)
    assert accuracy.stated() == found


def test_congestion_is_a_range_and_space_scales() -> None:
    congested, scaling = accuracy_congestion.congestion_findings()
    steps = [row["step [ms]"] for row in congested.rows]
    assert steps == sorted(steps)
    assert congested.counts == (1, 0, 0)
    assert scaling.counts == (1, 0, 0)


def test_a_step_waits_for_the_slowest_device() -> None:
    given: dict[str, Any] = {"gpus": 8, "cluster": "juwels-booster", "global_batch_size": 64}
    calm = planner.simulate("resnet18", variation=0.0, **given)
    shaky = planner.simulate("resnet18", **given)
    assert planner.simulate("resnet18", model="plain", **given).waiting == 0.0
    assert calm.waiting == 0.0
    # the slowest of eight stands 1.42 standard deviations above the mean
    assert calm.simulated is not None
    busy = calm.simulated.slowest.busy["compute"]
    assert shaky.waiting == pytest.approx(1.42 * DEVICE_VARIATION * busy, rel=0.02)
    assert shaky.step_time == pytest.approx(calm.step_time + shaky.waiting)
    assert shaky.summary()["waiting_for_slowest_s"] == shaky.waiting
    alone = planner.simulate("resnet18", gpus=1, global_batch_size=8, variation=0.1)
    assert alone.waiting == 0.0
    apart = planner.simulate("resnet18", runtime="ps-async", variation=0.1, **given)
    assert apart.waiting == 0.0  # workers that do not wait for each other
    with pytest.raises(InputError, match="variation between devices must be from 0 to 1"):
        planner.simulate("resnet18", variation=2.0, **given)


def test_a_ring_crosses_sockets_in_one_place() -> None:
    import numpy as np

    from costmodels.cluster import load_cluster
    from costmodels.communication.collectives import all_reduce_time
    from costmodels.communication.topology import Topology

    network = Topology.of(load_cluster("proteus-hc1"), (2, 2, 2))
    size = 400e6
    groups = np.array([[2, 2, 2], [1, 2, 2]])
    one, two = (float(all_reduce_time(network, g, size, algorithm="ring")) for g in groups)
    # 4.2 GB/s of the buffer, as the authors' simulator has it
    assert size / one == pytest.approx(4.2e9, rel=0.05)
    # two rings of four side by side: their switches' links are what they share
    assert size * 1.5 / two == pytest.approx(15.75e9 * 0.73 / 2, rel=0.05)

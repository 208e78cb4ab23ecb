"""Rows of transformers of sources, machines and models that nobody has seen."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.llm.compare import compare_llm_files
from benchmarks.accuracy.llm.halves import in_fitted_half, was_fitted_on
from benchmarks.accuracy.llm.machines import buffers, checks, llm_cluster
from benchmarks.accuracy.llm.measurement import Measurement
from benchmarks.accuracy.llm.networks import llm_network, parameters_of, stated_parameters
from benchmarks.accuracy.llm.predict import Predictions, predicted
from benchmarks.accuracy.llm.report import llm_aim_rows, tables_as_list
from benchmarks.accuracy.llm.rows import is_llm_file, read_llm_rows
from benchmarks.accuracy.llm.summary import LlmCell
from benchmarks.accuracy.llm.words import recomputation_of, sharding_of
from benchmarks.accuracy.words import Skip
from costmodels.cluster import load_device
from costmodels.communication.collectives import all_gather_time, all_reduce_time
from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.simulation import load_runtime

FIELDS = (
    *("source", "rows", "left_out", "mean_error", "median_error", "worst_error", "bias"),
    *("rank_correlation", "memory_mean_error", "oom_recognised", "oom_false_alarms"),
    *("regret_mean", "regret_worst"),
)
BY_METRIC = {
    "source": "A laboratory of ours 2025",
    "table": "1",
    "model": "Llama 0.4B",
    "hidden": "1024",
    "layers": "8",
    "heads": "16",
    "kv_heads": "4",
    "ffn": "4096",
    "vocab": "32000",
    "seq_len": "1024",
    "gpu": "H100 SXM",
    "gpus": "8",
    "gpus_per_node": "8",
    "tp": "1",
    "pp": "1",
    "dp": "8",
    "cp": "1",
    "vpp": "",
    "zero_or_fsdp": "none",
    "micro_batch": "1",
    "global_batch": "16",
    "recompute": "none",
    "precision": "bf16",
    "metric": "iteration_time",
    "value": "100",
    "unit": "ms",
    "notes": "",
}
BY_COLUMN = {
    "model": "llama-like 0.3B",
    "hidden": "1024",
    "layers": "8",
    "heads": "16",
    "kv_heads": "16",
    "ffn": "4096",
    "vocab": "32768",
    "tied_embeddings": "True",
    "seq_len": "1024",
    "gpu": "H100-80GB",
    "gpus": "16",
    "gpus_per_node": "8",
    "dp": "16",
    "tp": "1",
    "pp": "1",
    "zero": "1",
    "micro_batch": "1",
    "global_batch": "32",
    "status": "ok",
    "tokens_per_s_per_gpu": "20000",
    "memory_reserved_gib": "6",
    "after_pipeline_fix": "True",
    "notes": "",
}
BANDWIDTHS = {
    f"{name}{place}_gb_per_s": "200"
    for name in ("all_reduce", "all_gather", "reduce_scatter")
    for place in ("", "_in_host")
}


def written(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(tmp_path: Path, **values: str) -> Measurement:
    found = read_llm_rows([written(tmp_path / "rows.csv", [{**BY_METRIC, **values}])])
    assert not found.left_out
    return found.measurements[0]


def reason(tmp_path: Path, **values: str) -> str:
    found = read_llm_rows([written(tmp_path / "rows.csv", [{**BY_METRIC, **values}])])
    assert not found.measurements
    ((why, count),) = found.left_out["A laboratory of ours 2025"].items()
    assert count == 1
    return why


def test_files_are_told_by_their_columns(tmp_path):
    assert is_llm_file(written(tmp_path / "a.csv", [BY_METRIC]))
    assert is_llm_file(written(tmp_path / "b.csv", [BY_COLUMN]))
    assert not is_llm_file(written(tmp_path / "c.csv", [{"model": "ResNet-50", "value": "1"}]))


def test_a_file_of_both_kinds_goes_through_the_command(tmp_path, monkeypatch, capsys):
    rows = [BY_METRIC]
    rows += [{**BY_METRIC, "global_batch": "16", "tp": t, "dp": d} for t, d in (("2", "4"),)]
    rows.append({**BY_METRIC, "metric": "fits_memory", "value": "OOM", "micro_batch": "2000"})
    rows[-1]["global_batch"] = "16000"
    rows.append({**BY_METRIC, "heads": ""})
    first = written(tmp_path / "first.csv", rows)
    more = [BY_COLUMN, {**BY_COLUMN, "status": "failed otherwise", "tokens_per_s_per_gpu": ""}]
    more.append({**BY_COLUMN, "notes": "SUSPICIOUS: as its name says"})
    second = written(tmp_path / "ours.csv", more)
    command = ["accuracy", "--measured", str(first), str(second), "--json"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    found = json.loads(capsys.readouterr().out)
    assert [row["source"] for row in found] == ["A laboratory of ours 2025", "ours"]
    assert all(set(FIELDS) <= set(row) for row in found)
    ours, theirs = found
    assert (ours["rows"], ours["left_out"]) == (3, {"heads not stated": 1})
    assert ours["oom_recognised"] == 1.0
    assert ours["oom_false_alarms"] == 0.0
    assert ours["regret_mean"] is not None
    assert (theirs["rows"], theirs["unmeasured"]) == (1, 1)
    assert theirs["left_out"] == {"marked as suspicious or inconsistent": 1}
    assert theirs["memory_mean_error"] is not None


def test_a_missing_column_is_said_in_one_sentence(tmp_path):
    row = {name: value for name, value in BY_COLUMN.items() if name != "hidden"}
    path = written(tmp_path / "rows.csv", [row])
    with pytest.raises(InputError, match="lacks hidden; add what is missing"):
        read_llm_rows([path])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"metric": "layer_forward_time"}, "the time of one layer, not of a step"),
        ({"metric": "loss"}, "unknown metric loss"),
        ({"value": "fast"}, "column value is no number"),
        ({"value": "nan"}, "column value is no number"),
        ({"value": "-3"}, "the value is not above zero"),
        ({"unit": "parsecs"}, "time in the unknown unit parsecs"),
        ({"hidden": "many"}, "column hidden is no number"),
        ({"layers": "2.5"}, "column layers is no whole number"),
        ({"seq_len": ""}, "seq len not stated"),
        ({"dp": "3"}, "the degrees of parallelism are not the number of GPUs"),
        ({"recompute": "sometimes"}, "unknown recomputation: sometimes"),
        ({"precision": "int3"}, "unknown precision int3"),
        ({"zero_or_fsdp": "sharded somehow"}, "unknown way to cut weights: sharded somehow"),
        ({"metric": "peak_memory", "unit": "pages"}, "memory in the unknown unit pages"),
    ],
)
def test_incomplete_rows_are_left_out_with_the_reason(tmp_path, values, why):
    assert reason(tmp_path, **values) == why


def test_an_unknown_device_is_left_out(tmp_path):
    path = written(tmp_path / "rows.csv", [{**BY_METRIC, "gpu": "TPU v5"}])
    (table,) = compare_llm_files([path])
    assert table.summary.rows == 0
    assert table.summary.left_out == {"no built-in device TPU v5": 1}


def test_a_file_without_a_column_of_devices_is_read(tmp_path):
    row = {name: value for name, value in BY_METRIC.items() if name not in ("gpu", "notes", "pp")}
    (table,) = compare_llm_files([written(tmp_path / "rows.csv", [row])])
    assert table.summary.left_out == {"no built-in device (none stated)": 1}


def test_a_strategy_that_cannot_be_run_is_left_out(tmp_path):
    path = written(tmp_path / "rows.csv", [{**BY_METRIC, "micro_batch": "3"}])
    (table,) = compare_llm_files([path])
    ((why, count),) = table.summary.left_out.items()
    assert "no multiple" in why
    assert count == 1


@pytest.mark.parametrize(
    ("gpu", "device", "members"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", 8),
        ("H200 SXM", "h200", 8),
        ("B200", "b200", 8),
        ("GB200 NVL72", "b200-nvl72", 64),
        ("A100", "a100-80gb", 8),
        ("A100-40GB", "a100-40gb", 8),
        ("V100 (DGX-2)", "v100-32gb", 8),
        ("H100-96GB HBM2e 500W (Grand Teton)", "h100-500w", 8),
    ],
)
def test_machines_of_unknown_sources(gpu, device, members):
    cluster = llm_cluster(gpu, 64, 8, "", None)
    assert cluster.device.name == device
    assert cluster.levels[0].size == members
    assert sum(1 for n in cluster.shape(64) if n > 1) == (1 if members == 64 else 2)


def test_a_buffer_takes_as_long_over_the_links_of_a_row_as_it_measured(tmp_path):
    slow = {**BY_COLUMN, **BANDWIDTHS}
    plain = read_llm_rows([written(tmp_path / "a.csv", [BY_COLUMN])]).measurements[0]
    found = read_llm_rows([written(tmp_path / "b.csv", [slow])]).measurements[0]
    usual, measured = (
        llm_cluster(c.gpu, c.gpus, c.per_host, c.links, c.measured_links)
        for c in (plain.configuration, found.configuration)
    )
    topology, buffer = Topology.of(measured, measured.shape(8)), 2.0**30
    # lists of tensors are copied into one and out of it: the buffer is read and written again
    gathered = float(all_gather_time(topology, (8, 1), buffer / 8))
    copied = 2.0 * buffer / measured.device.memory_bandwidth
    assert 7 / 8 * buffer / (gathered + copied) == pytest.approx(200e9)
    # sums come back in place
    added = float(all_reduce_time(topology, (8, 1), buffer, "in_network"))
    assert 7 / 4 * buffer / added == pytest.approx(200e9)
    assert usual.levels[0].bandwidth > measured.levels[0].bandwidth


def test_links_are_no_faster_than_built_in_and_no_slower_where_processes_hold_a_job_up(tmp_path):
    rows = [{**BY_COLUMN, "gpus": "8", "dp": "8", **hindered(8, late, 0.0)} for late in (0.0, 2e-4)]
    found = read_llm_rows([written(tmp_path / "rows.csv", rows)]).measurements
    free, held = (
        llm_cluster(c.gpu, c.gpus, c.per_host, c.links, c.measured_links, c.fastest_links)
        for c in (row.configuration for row in found)
    )
    assert free == held
    perfect = {**BY_COLUMN, **dict.fromkeys(BANDWIDTHS, "900")}
    (row,) = read_llm_rows([written(tmp_path / "perfect.csv", [perfect])]).measurements
    c = row.configuration
    fast = llm_cluster(c.gpu, c.gpus, c.per_host, c.links, c.measured_links)
    assert fast == llm_cluster(c.gpu, c.gpus, c.per_host, c.links, None)


def test_devices_that_reach_less_than_pcie_use_no_switches_of_nvlink(tmp_path):
    rows = [{**BY_COLUMN, **dict.fromkeys(BANDWIDTHS, rate)} for rate in ("42", "70")]
    found = read_llm_rows([written(tmp_path / "rows.csv", rows)]).measurements
    without, with_switches = (
        llm_cluster(c.gpu, c.gpus, c.per_host, c.links, c.measured_links).levels[0]
        for c in (row.configuration for row in found)
    )
    assert without.in_network_bandwidth is None
    assert without.bandwidth * without.links == pytest.approx(42e9)
    assert with_switches.in_network_bandwidth is not None
    sizes = [buffers(row.configuration.measured_links) for row in found]
    assert set(sizes[0].values()) == {0.0}
    assert sizes[1] == buffers(None) == {}
    assert load_runtime("nanotron", **sizes[0]).communicator == 0.0
    outside = [Predictions().of(row).outside for row in found]
    # what the device itself reserves, that of one communicator included
    assert outside[0] == load_device("h100").reserved_memory < outside[1]


@pytest.mark.parametrize("mended", ["True", "False"])
def test_jobs_that_measured_their_links_hold_a_communicator_of_their_host(tmp_path, mended):
    row = {**BY_COLUMN, "tp": "2", "dp": "8", "after_pipeline_fix": mended}
    (found,) = read_llm_rows([written(tmp_path / "rows.csv", [row])]).measurements
    # all ranks twice, two that exchange features, eight that hold the same weights, and a host's;
    # buffers of switches for each device of a host in all but the two, and trees over two hosts
    larger, heads, trees = 4 * 688 - 392, 8 + 8 + 4 + 8, 3
    expected = (
        load_device("h100").reserved_memory / 2**20 + larger + 544 + heads * 192 + trees * 320
    )
    assert Predictions().of(found).outside / 2**20 == pytest.approx(expected)


def hindered(members, near, far):
    """Bus bandwidths of links that a gigabyte takes 4 ms over, under such checks."""
    buffer, late = 2.0**30, 8 * near / 5
    inside = {
        kind: passes * buffer * 7 / 8 / (4e-3 * passes + late) / 1e9
        for kind, passes in (("all_reduce", 2.0), ("all_gather", 1.0), ("reduce_scatter", 1.0))
    }
    world = 8 * near + (members - 8) * far
    found = {f"{kind}_in_host_gb_per_s": f"{rate:.3f}" for kind, rate in inside.items()}
    for kind, passes in (("all_reduce", 2.0), ("all_gather", 1.0), ("reduce_scatter", 1.0)):
        taken = 4e-3 * passes
        taken = max(taken, world) + min(taken, world) / 5
        rate = passes * buffer * (1 - 1 / members) / taken / 1e9
        found[f"{kind}_gb_per_s"] = f"{rate:.3f}"
    return found


@pytest.mark.parametrize("hosts", [1, 4, 16])
def test_checks_of_hosts_are_told_from_slow_links(tmp_path, hosts):
    job = {**BY_COLUMN, "gpus": str(8 * hosts), "dp": str(8 * hosts)}
    sane, late = (hindered(8 * hosts, near, 1.5 * near) for near in (0.0, 2e-4))
    slow = {name: f"{float(rate) / 5:.3f}" for name, rate in sane.items()}
    rows = [{**job, **measured} for measured in (sane, late, slow)]
    path = written(tmp_path / "nanotron.csv", rows)
    found = []
    for row in read_llm_rows([path]).measurements:
        c = row.configuration
        cluster = llm_cluster(c.gpu, c.gpus, c.per_host, c.links, c.measured_links)
        found.append(checks(cluster, c.measured_links, c.fastest_links, c.gpus))
    assert found[0] == found[2] == {}
    assert found[1]["check_near"] == pytest.approx(2e-4, rel=0.05)
    if hosts > 1:
        assert found[1]["check_far"] == pytest.approx(3e-4, rel=0.25)


def test_checks_are_told_without_a_job_that_has_none(tmp_path):
    job = {**BY_COLUMN, "gpus": "128", "dp": "128", **hindered(128, 2e-4, 3e-4)}
    (row,) = read_llm_rows([written(tmp_path / "nanotron.csv", [job])]).measurements
    c = row.configuration
    cluster = llm_cluster(c.gpu, c.gpus, c.per_host, c.links, c.measured_links)
    found = checks(cluster, c.measured_links, c.fastest_links, c.gpus)
    assert found["check_near"] == found["check_far"] == pytest.approx(3e-4, rel=0.1)


def test_the_name_decides_between_gated_and_plain(tmp_path):
    sizes = {"hidden": "2048", "layers": "16", "heads": "32", "kv_heads": "32", "ffn": "8192"}
    sizes |= {"vocab": "131072", "seq_len": "4096"}
    gated = read(tmp_path, **sizes, model="llama-like 1.6B").configuration
    plain = read(tmp_path, **sizes, model="llama-like 1.3B").configuration
    assert parameters_of(llm_network(gated)) > parameters_of(llm_network(plain))
    assert stated_parameters("GPT h2048 L20") is None
    assert stated_parameters("MPT 760m") == 760e6


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[("", (0, 0)), ("none", (0, 0)), ("ZeRO-1", (1, 0)), ("zero 3", (3, 0)), ("2", (2, 0))],
        *[("FSDP FULL_SHARD", (0, 8)), ("FSDP2 64", (0, 64)), ("ZeRO-0", (0, 0))],
        *[("FSDP2", (0, 8)), ("FSDP SHARD_GRAD_OP", (2, 0)), ("NO_SHARD", (0, 0)), ("n/a", (0, 0))],
        *[("distributed optimizer", (1, 0)), ("ZeRO-1 (distributed optimizer)", (1, 0))],
        *[("DeepSpeed ZeRO stage 3", (3, 0)), ("zero_2", (2, 0)), ("-", (0, 0))],
        *[("HSDP 4", (0, 4)), ("fully_shard", (0, 8)), ("dist-opt", (1, 0))],
    ],
)
def test_ways_to_cut_weights(text, found):
    assert sharding_of(text, 8) == found


def test_ways_to_recompute():
    assert recomputation_of("", {}) == "none"
    assert recomputation_of("", {"recompute": "full"}) == "full"
    assert recomputation_of("selective layer", {}) == "half"
    assert recomputation_of("selective op", {}) == "operations"
    assert recomputation_of("selective", {}) == "selective"
    assert recomputation_of("selective", {"selective": "operations"}) == "operations"
    assert recomputation_of("3", {}) == "3"
    assert recomputation_of("activation checkpointing", {}) == "full"
    assert recomputation_of("core_attn", {}) == "selective"
    assert (
        recomputation_of("Full recompute", {}) == recomputation_of("full (uniform)", {}) == "full"
    )
    assert recomputation_of("n/a", {"recompute": "full"}) == recomputation_of("-", {}) == "none"
    with pytest.raises(Skip):
        recomputation_of("now and then", {})


@pytest.mark.parametrize(
    ("metric", "seconds"),
    [
        # 16 sequences of 1,024 tokens a step, on 8 GPUs
        *[("Tokens/sec/GPU", 2.0), ("tok/s/gpu", 2.0), ("Tokens per second", 16.0)],
        *[("throughput (tokens/s)", 16.0), ("sequences/second", 1 / 64), ("Step time (s)", 1024.0)],
    ],
)
def test_metrics_are_told_however_they_are_spelled(tmp_path, metric, seconds):
    found = read(tmp_path, metric=metric, value="1024", unit="s")
    assert found.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("metric", "unit", "seconds"),
    [
        *[("throughput", "tokens/s/GPU", 2.0), ("throughput", "sequences/s", 1 / 64)],
        *[("iteration_time_s", "", 1024.0), ("step time (ms)", "", 1.024)],
    ],
)
def test_metric_and_unit_say_together_what_is_measured(tmp_path, metric, unit, seconds):
    found = read(tmp_path, metric=metric, value="1024", unit=unit)
    assert found.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("metric", ["Model TFLOP / sec / GPU", "achieved teraFLOP/s per GPU"])
def test_flops_are_told_however_they_are_spelled(tmp_path, metric):
    assert read(tmp_path, metric=metric, value="400", unit="").flop_rate == (400e12, False)


def test_dashes_and_counts_of_micro_batches_say_what_other_columns_do(tmp_path):
    plain = read(tmp_path).configuration
    assert read(tmp_path, cp="-", vpp="n/a").configuration == plain
    count = plain.global_batch // plain.micro_batch // plain.dp
    told = read(tmp_path, global_batch="", gradient_accumulation=str(count)).configuration
    assert told == plain
    assert read(tmp_path, model="").configuration.sizes.name == "unnamed"


@pytest.mark.parametrize(("status", "fits"), [("OOM", False), ("Success", True)])
def test_how_a_run_ended_is_told_in_other_words_too(tmp_path, status, fits):
    (row,) = read_llm_rows(
        [written(tmp_path / "a.csv", [{**BY_COLUMN, "status": status}])]
    ).measurements
    assert row.fits is fits


def test_rates_become_seconds(tmp_path):
    rate = read(tmp_path, metric="tokens_per_s_per_gpu", value="1024", unit="tokens/s/GPU")
    assert rate.seconds == pytest.approx(16 * 1024 / 1024 / 8)
    samples = read(tmp_path, metric="samples_per_s", value="4", unit="samples/s")
    assert samples.seconds == pytest.approx(4.0)
    memory = read(tmp_path, metric="peak_memory", value="10", unit="GiB")
    assert (memory.memory, memory.whole_device) == (10 * 2.0**30, False)


def test_flops_of_a_gpu_are_those_of_the_network(tmp_path):
    rows = [{**BY_METRIC, "metric": "model_tflops_per_gpu", "value": "100", "unit": "TFLOP/s/GPU"}]
    rows.append({**rows[0], "metric": "hardware_tflops_per_gpu", "recompute": "full"})
    (table,) = compare_llm_files([written(tmp_path / "rows.csv", rows)])
    model, hardware = (cell.measured_seconds for cell in table.cells)
    flops = table.cells[0].prediction.model_flops
    assert model == pytest.approx(flops / 1e14 / 8)
    assert hardware == pytest.approx(4 / 3 * model)


def test_what_a_slower_pipeline_measured_does_not_count(tmp_path):
    old = {**BY_COLUMN, "after_pipeline_fix": "False", "pp": "2", "dp": "8"}
    (table,) = compare_llm_files([written(tmp_path / "rows.csv", [old])])
    assert table.cells[0].error is None
    assert table.summary.mean_error is None
    assert table.summary.memory_mean_error is not None


def test_aims_are_those_of_the_source(tmp_path):
    path = written(tmp_path / "rows.csv", [{**BY_METRIC, "source": "Narayanan et al. (SC21)"}])
    (table,) = compare_llm_files([path])
    ((source, what, _, wanted, _),) = llm_aim_rows(table.summary)
    assert (source, what, wanted) == ("Narayanan et al.", "mean |error|", "at most 6.0%")
    assert tables_as_list([table])[0]["rows"] == 1


def test_errors_of_the_half_that_nothing_was_fitted_on_stand_apart(tmp_path):
    # job sizes fall in either half, whatever else a row says
    sizes = [2**n for n in range(3, 8)]
    rows = [
        {**BY_COLUMN, "gpus": str(n), "dp": str(n), "zero": zero, "global_batch": str(n)}
        | {"gradient_accumulation": "1"}
        for n in sizes
        for zero in ("0", "1")
    ]
    path = written(tmp_path / "nanotron.csv", rows)
    measured = read_llm_rows([path]).measurements
    halves = {(m.configuration.gpus, in_fitted_half(m)) for m in measured}
    assert len(halves) == len(sizes)
    assert {half for _, half in halves} == {True, False}
    summary = compare_llm_files([path])[0].summary
    assert summary.fit_rows == sum(was_fitted_on(m) for m in measured) > 0
    assert summary.reported_rows == sum(not in_fitted_half(m) for m in measured)
    assert summary.reported_mean_error != summary.mean_error
    # nothing is fitted on other sources
    other = compare_llm_files([written(tmp_path / "rows.csv", [BY_METRIC])])[0].summary
    assert (other.fit_rows, other.reported_rows) == (0, None)


def test_a_device_that_sustains_less_is_slower(tmp_path):
    of = read(tmp_path).configuration
    steps = [predicted(of, sustained=share).seconds for share in (1.0, 0.7)]
    assert steps[0] < steps[1] < steps[0] / 0.7


def test_the_process_that_logs_is_of_the_first_stage(tmp_path):
    row = {**BY_COLUMN, "pp": "2", "dp": "8", "vocab": "1048576", "global_batch": "8"}
    [measured] = read_llm_rows([written(tmp_path / "a.csv", [row])]).measurements
    assert measured.of_first
    found = Predictions().of(measured)
    assert found.of_first <= found.memory
    # as if a later stage held more
    cell = LlmCell(measurement=measured, prediction=replace(found, memory=2 * found.memory))
    assert cell.memory_error == pytest.approx((found.of_first - found.outside) / 6 / 2**30 - 1)
    other = replace(cell, measurement=replace(measured, of_first=False))
    assert other.memory_error > cell.memory_error + 1
    assert not read(tmp_path, metric="peak_memory", value="10", unit="GiB").of_first


def test_strategies_that_pad_a_vocabulary_differently_are_of_one_workload(tmp_path):
    told = {"source": "vTrain", "model": "GPT h1024 L8", "vocab": ""}
    ways = ({"tp": "1", "dp": "8"}, {"tp": "8", "dp": "1"})
    one, eight = (read(tmp_path, **told, **way) for way in ways)
    assert one.workload == eight.workload
    few, many = (parameters_of(llm_network(of.configuration)) for of in (one, eight))
    # 50,257 words, padded to a multiple of 128 and of 1,024
    assert many - few == (51200 - 50304) * 1024

"""`--cluster auto`: SLURM, torchrun and nvidia-smi become a cluster, and what lacks is said."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import nvidia_texts as texts
import pytest
from click.testing import CliRunner

import planner
from costmodels.cluster import load_cluster
from costmodels.cluster.load import link_level
from planner.cli.command import planner_command
from planner.errors import InputError
from planner.request.machine import Detected, detect_cluster
from planner.request.machine.detect import Probe
from planner.request.machine.environment import count_hosts, read_job
from planner.request.machine.nvidia import built_in_device, read_topology

A100 = texts.query("NVIDIA A100-SXM4-80GB", 8, 81920, 4)
SLURM = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_ON_NODE": "8"}


def detected(
    query: str = "",
    topology: str = "",
    rates: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Detected:
    def run(command: Sequence[str]) -> str:
        assert command[0] == "nvidia-smi"
        return topology if "topo" in command else query

    return detect_cluster(
        Probe(environment=environment or {}, run=run, port_rates=lambda: list(rates))
    )


class TestMachines:
    def test_a_dgx_a100_in_slurm_is_the_built_in_one(self) -> None:
        found = detected(A100, texts.DGX_A100, ["200 Gb/sec (4X HDR)"] * 8, SLURM)
        known = load_cluster("dgx-a100")
        cluster = found.cluster
        assert cluster.device == known.device
        assert [level.size for level in cluster.levels] == [8, 4]
        for mine, theirs in zip(cluster.levels, known.levels, strict=True):
            for name in ("latency", "bandwidth", "links", "ramp", "start_latency", "peer_links"):
                assert getattr(mine, name) == getattr(theirs, name), name
        assert cluster.default_precision == "bf16"
        (note,) = found.notes
        assert "4 hosts of 8 x a100-80gb" in note

    def test_eight_h100_behind_switches_that_add(self) -> None:
        query = texts.query("NVIDIA H100 80GB HBM3", 8, 81559, 5)
        cluster = detected(query, texts.even(8, "NV18")).cluster
        assert cluster.device.name == "h100"
        (level,) = cluster.levels
        assert level.in_network_bandwidth == link_level("nvlink4-sharp").in_network_bandwidth
        assert level.links == 18

    def test_a_hybrid_cube_mesh_is_said_to_be_evened_out(self) -> None:
        query = texts.query("Tesla V100-SXM2-32GB", 8, 32510, 3)
        found = detected(query, texts.DGX1_V100)
        (level,) = found.cluster.levels
        assert found.cluster.device.name == "v100-32gb"
        assert (level.links, level.peer_links) == (6, 1.5)
        assert any("spread evenly" in note for note in found.notes)

    def test_four_v100_that_are_wired_to_each_other(self) -> None:
        query = texts.query("Tesla V100-SXM2-16GB", 4, 16160, 3)
        (level,) = detected(query, texts.even(4, "NV2")).cluster.levels
        assert (level.links, level.peer_links) == (6, 2.0)

    def test_two_sockets_on_pcie(self) -> None:
        query = texts.query("NVIDIA GeForce RTX 2080 Ti", 4, 11264, 3)
        cluster = detected(query, texts.TWO_SOCKETS).cluster
        assert [(level.name, level.size) for level in cluster.levels] == [
            ("socket", 2),
            ("host", 2),
        ]
        assert cluster.levels[1].bandwidth == link_level("pcie3-sockets").bandwidth
        assert cluster.devices_per_host == 4

    def test_bridges_join_pairs(self) -> None:
        query = texts.query("NVIDIA RTX A6000", 4, 49140, 4)
        cluster = detected(query, texts.BRIDGED_PAIRS).cluster
        assert [(level.name, level.size) for level in cluster.levels] == [("pair", 2), ("host", 2)]
        assert cluster.levels[0].links == 4
        assert cluster.levels[1].bandwidth == 2 * link_level("pcie3").bandwidth

    def test_pcie_4_is_said_to_be_estimated(self) -> None:
        query = texts.query("NVIDIA L40S", 2, 46068, 4)
        found = detected(query, texts.even(2, "PHB"))
        assert any("PCIe 4.0" in note for note in found.notes)

    def test_one_gpu(self) -> None:
        found = detected(
            texts.query("Tesla T4", 1, 15360, 3), "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"
        )
        assert found.cluster.num_devices == 1
        assert found.cluster.device.name == "t4"

    @pytest.mark.parametrize(
        ("rate", "link", "factor"),
        [
            ("100 Gb/sec (4X EDR)", "infiniband-edr", 1.0),
            ("400 Gb/sec (4X NDR)", "infiniband-ndr", 1.0),
            ("25 Gb/sec (1X EDR)", "infiniband-edr", 0.25),
            ("800 Gb/sec (4X XDR)", "infiniband-ndr", 2.0),
        ],
    )
    def test_networks(self, rate: str, link: str, factor: float) -> None:
        found = detected(A100, texts.DGX_A100, [rate] * 10, SLURM)
        level = found.cluster.levels[1]
        assert level.bandwidth == pytest.approx(link_level(link).bandwidth * factor)
        assert level.links == 8, "no more adapters than GPUs"
        assert any("8 of 10 network adapters" in note for note in found.notes)


class TestWhatLacks:
    def test_nothing_at_all_is_one_sentence(self) -> None:
        with pytest.raises(InputError, match="give --cluster"):
            detected()

    def test_no_nvidia_smi_is_said(self) -> None:
        found = detected(environment=SLURM)
        assert [level.size for level in found.cluster.levels] == [8, 4]
        said = "\n".join(found.notes)
        assert "no nvidia-smi" in said
        assert "no matrix" in said
        assert "no adapters" in said

    def test_slurm_tells_the_type(self) -> None:
        environment = {**SLURM, "SLURM_GPUS_PER_NODE": "h100:4"}
        del environment["SLURM_GPUS_ON_NODE"]
        found = detected(environment=environment)
        assert found.cluster.device.name == "h100"
        assert [level.size for level in found.cluster.levels] == [4, 4]

    def test_an_unknown_gpu_is_named(self) -> None:
        with pytest.raises(InputError, match=r"AMD Instinct.*cluster file"):
            detected(texts.query("AMD Instinct MI300X", 8, 196592, 5))

    def test_gpus_that_differ_are_named(self) -> None:
        query = texts.query("Tesla T4", 1, 15360, 3) + texts.query("NVIDIA A10", 1, 23028, 4)
        with pytest.raises(InputError, match="1 x Tesla T4, 1 x NVIDIA A10"):
            detected(query)
        chosen = detected(query, environment={"CUDA_VISIBLE_DEVICES": "1"})
        assert chosen.cluster.device.name == "a10"

    def test_more_ranks_than_gpus(self) -> None:
        environment = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
        with pytest.raises(InputError, match="at most 2"):
            detected(texts.query("Tesla T4", 2, 15360, 3), environment=environment)

    @pytest.mark.parametrize(
        "text", ["", "Failed to initialize NVML: Driver/library mismatch", "a,b"]
    )
    def test_a_broken_nvidia_smi_is_no_machine(self, text: str) -> None:
        with pytest.raises(InputError, match="give --cluster"):
            detected(text, text)

    def test_a_broken_matrix_is_none(self) -> None:
        assert read_topology(texts.DGX_A100.replace("NV12", "NV?")).links == ()
        assert read_topology(texts.even(4, "NV2").rpartition("GPU3")[0]).links == ()


class TestEnvironment:
    @pytest.mark.parametrize(
        ("text", "count"),
        [("a1", 1), ("a[01-03,7],b2", 5), ("r[1-2]n[1-4]", 8), ("a-b[10-12],c", 4)],
    )
    def test_lists_of_hosts(self, text: str, count: int) -> None:
        assert count_hosts(text) == count

    @pytest.mark.parametrize(
        "text", ["a[1-", "a[3-1]", "a[x]", ",", "a[1-9999999999]", f"a[1-{'9' * 5000}]"]
    )
    def test_other_lists_are_refused(self, text: str) -> None:
        with pytest.raises(InputError, match="SLURM_JOB_NODELIST"):
            count_hosts(text)

    @pytest.mark.parametrize("text", ["", "8", "x", "0,x", "9" * 5000, "0,-1"])
    def test_other_lists_of_gpus_choose_none(self, text: str) -> None:
        found = detected(A100, environment={"CUDA_VISIBLE_DEVICES": text})
        assert found.cluster.num_devices == 8

    @pytest.mark.parametrize(
        ("environment", "hosts", "per_host"),
        [
            ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2, 8),
            ({**SLURM, "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 2, 4),
            ({**SLURM, "WORLD_SIZE": "32"}, 4, 8),
            (SLURM, 4, 8),
            ({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-3]"}, 3, None),
            ({"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_GPUS": "a100:8"}, 2, 4),
            ({"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_GPUS": "7"}, 2, None),
            ({}, None, None),
        ],
    )
    def test_sizes(
        self, environment: dict[str, str], hosts: int | None, per_host: int | None
    ) -> None:
        job = read_job(environment)
        assert (job.hosts, job.gpus_per_host) == (hosts, per_host)

    @pytest.mark.parametrize(
        ("environment", "said"),
        [
            ({"WORLD_SIZE": "10", "LOCAL_WORLD_SIZE": "4"}, "multiple of LOCAL_WORLD_SIZE"),
            ({"WORLD_SIZE": "many"}, "WORLD_SIZE of the environment"),
            ({**SLURM, "SLURM_JOB_NUM_NODES": "-1"}, "SLURM_JOB_NUM_NODES"),
        ],
    )
    def test_nonsense_is_one_sentence(self, environment: dict[str, str], said: str) -> None:
        with pytest.raises(InputError, match=said):
            read_job(environment)


@pytest.mark.parametrize(
    ("name", "memory", "device"),
    [
        ("NVIDIA A100-PCIE-40GB", 40.0, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 80.0, "a100-80gb"),
        ("NVIDIA H100 PCIe", 80.0, "h100-pcie"),
        ("NVIDIA H200", 140.0, "h200"),
        ("Tesla V100-SXM2-16GB", 16.0, "v100-16gb"),
        ("NVIDIA GeForce RTX 3080 Ti", 12.0, None),
        ("NVIDIA GeForce RTX 2080 Ti", 11.0, "2080ti"),
        ("NVIDIA L4", 22.5, "l4"),
        ("NVIDIA L40S", 45.0, "l40s"),
        ("NVIDIA A10G", 22.5, None),
        ("NVIDIA B200", 180.0, "b200"),
    ],
)
def test_names_of_devices(name: str, memory: float, device: str | None) -> None:
    assert built_in_device(name, memory) == device


@pytest.mark.slow
def test_the_plan_says_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a program called nvidia-smi, through the command and from Python."""
    script = tmp_path / "nvidia-smi"
    (tmp_path / "query").write_text(A100)
    (tmp_path / "topo").write_text(texts.DGX_A100)
    script.write_text(
        f'#!/bin/sh\ncase "$1" in topo) cat {tmp_path}/topo;; *) cat {tmp_path}/query;; esac\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    plan = planner.optimize("alexnet", gpus=8, cluster="auto", global_batch_size=64)
    assert plan.device == "a100-80gb"
    assert any("told by 8 GPUs in nvidia-smi" in said for said in plan.defaults)
    # it is carried, so that it can be used where the machine is another one
    path = tmp_path / "plan.json"
    plan.save(path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert planner.simulate(path).step_time == pytest.approx(plan.step_time, rel=1e-6)
    arguments = ["optimize", "alexnet", "--gpus", "8", "--cluster", "auto"]
    done = CliRunner().invoke(planner_command, arguments)
    assert done.exit_code == 2
    assert "give --cluster" in done.stderr

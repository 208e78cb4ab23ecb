"""Clusters: shapes of jobs, files, and messages that name the field at fault."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from costmodels.cluster import (
    Cluster,
    Device,
    Level,
    dump_cluster,
    list_clusters,
    list_devices,
    load_cluster,
    load_device,
)
from costmodels.errors import InputError

MINE = """
name = "mine"
device = "v100-16gb"
host_level = "host"
default_precision = "fp32"

[[levels]]
name = "host"
size = 4
link = "nvlink2"

[[levels]]
name = "network"
size = 8
latency = "5 us"
bandwidth = "12.5 GB/s"
links = 2
"""


def device(**changes: object) -> Device:
    fields: dict[str, object] = {
        "name": "test",
        "memory": 16e9,
        "reserved_memory": 1e9,
        "peak_flops": {"fp32": 1e12},
        "memory_bandwidth": 1e12,
        "num_sms": 80,
        "kernel_latency": 5e-6,
    }
    return Device(**(fields | changes))  # type: ignore[arg-type]


def cluster(sizes: tuple[int, ...], host: int = 0) -> Cluster:
    levels = tuple(
        Level(name=f"l{index}", size=size, latency=1e-6, bandwidth=1e9)
        for index, size in enumerate(sizes)
    )
    return Cluster(
        name="test",
        device=device(),
        levels=levels,
        host_level=f"l{host}",
        default_precision="fp32",
    )


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("sizes", "host", "num_gpus", "expected"),
    [
        ((4, 795), 0, 1, (1, 1)),
        ((4, 795), 0, 2, (2, 1)),
        ((4, 795), 0, 256, (4, 64)),
        ((4, 2, 8), 1, 4, (4, 1, 1)),
        ((4, 3, 8), 1, 6, (2, 3, 1)),
        ((4, 3, 8), 1, 24, (4, 3, 2)),
        ((4, 17, 64), 0, 68, (4, 17, 1)),
        ((4, 17, 64), 0, 256, (4, 16, 4)),
        ((4, 17, 64), 0, 1024, (4, 16, 16)),
        ((1, 64), 0, 8, (1, 8)),
    ],
)
def test_a_job_uses_levels_from_the_inside_out(
    sizes: tuple[int, ...], host: int, num_gpus: int, expected: tuple[int, ...]
) -> None:
    assert cluster(sizes, host).shape(num_gpus) == expected


@pytest.mark.parametrize(
    ("num_gpus", "says"),
    [
        (0, ["from 1 to 32", "is 0", "use 1"]),
        (-5, ["from 1 to 32", "is -5"]),
        (3, ["4 GPUs a host", "is 3", "use 2 or 4"]),
        (10, ["use 8 or 12"]),
        (33, ["from 1 to 32", "use 32"]),
        (10**15, ["use 32"]),
    ],
)
def test_a_number_that_does_not_fit_is_answered_with_those_that_do(
    num_gpus: int, says: list[str]
) -> None:
    machine = cluster((4, 8))
    with pytest.raises(InputError) as caught:
        machine.shape(num_gpus)
    for part in says:
        assert part in str(caught.value)


def test_every_shape_multiplies_to_the_number_of_gpus() -> None:
    machine = cluster((2, 4, 6, 5), host=1)
    fitting = 0
    for num_gpus in range(1, machine.num_devices + 1):
        try:
            shape = machine.shape(num_gpus)
        except InputError:
            continue
        fitting += 1
        used = 1
        for count, level in zip(shape, machine.levels, strict=True):
            assert 1 <= count <= level.size
            used *= count
        assert used == num_gpus
    # 1, 2, 4 within a host; then hosts as a product of up to 6 and up to 5.
    assert fitting == 3 + len({a * b for a in range(1, 7) for b in range(1, 6)})


@pytest.mark.parametrize("name", list_clusters())
def test_built_in_clusters_are_usable_and_say_their_sources(name: str) -> None:
    machine = load_cluster(name)
    assert machine.name == name
    assert all([machine.source, machine.device.source, machine.description])
    assert all(level.source for level in machine.levels)
    assert 0 < machine.device.usable_memory < machine.device.memory
    assert machine.shape(machine.devices_per_host)[machine.host_index + 1 :] == (1,) * (
        len(machine.levels) - machine.host_index - 1
    )


@pytest.mark.parametrize(
    ("name", "num_gpus"), [("lassen", 2048), ("abci", 1024), ("juwels-booster", 1024)]
)
def test_published_runs_fit_their_machines(name: str, num_gpus: int) -> None:
    machine = load_cluster(name)
    gpus = 1
    while gpus <= num_gpus:
        machine.shape(gpus)
        gpus *= 2


@pytest.mark.parametrize("name", [n for n in list_clusters() if n.startswith("dgx")])
def test_reference_machines_hold_4096_gpus(name: str) -> None:
    assert load_cluster(name).shape(4096) == (8, 512)


@pytest.mark.parametrize("name", list_clusters())
def test_an_exported_cluster_reads_back_as_the_same(name: str, tmp_path: Path) -> None:
    machine = load_cluster(name)
    assert load_cluster(write(tmp_path, dump_cluster(machine))) == machine


def test_export_escapes_text_and_keeps_odd_numbers(tmp_path: Path) -> None:
    level = Level(
        name='a "b"\\', size=3, latency=1 / 3e6, bandwidth=1e9 / 7, peer_links=4 / 3, source="a\tb"
    )
    machine = Cluster(
        name="ü\n",
        device=device(reserved_memory=0.0, kernel_latency=1e-30),
        levels=(level,),
        host_level=level.name,
        default_precision="fp32",
    )
    assert load_cluster(write(tmp_path, dump_cluster(machine))) == machine


def test_a_file_takes_from_its_link_what_it_leaves_open(tmp_path: Path) -> None:
    machine = load_cluster(write(tmp_path, MINE))
    host, network = machine.levels
    published = load_cluster("lassen").levels[0]
    assert (host.latency, host.bandwidth) == (published.latency, published.bandwidth)
    assert (network.latency, network.bandwidth, network.links) == (5e-6, 12.5e9, 2)
    slower = MINE.replace('link = "nvlink2"', 'link = "nvlink2"\nlatency = "1 ms"')
    assert load_cluster(write(tmp_path, slower)).levels[0].latency == 1e-3


def test_nominal_bandwidth_times_efficiency_is_what_can_be_achieved(tmp_path: Path) -> None:
    text = MINE.replace(
        'bandwidth = "12.5 GB/s"', 'nominal_bandwidth = "20 GB/s"\nefficiency = 0.5'
    )
    assert load_cluster(write(tmp_path, text)).levels[1].bandwidth == 10e9


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("12.5 GB/s", "12.5 Gigs", ["levels[1].bandwidth", "Gigs", "GB/s"]),
        ('"12.5 GB/s"', "12.5", ["levels[1].bandwidth", "text"]),
        ('"5 us"', '"-5 us"', ["levels[1].latency", "-5 us"]),
        ("size = 8", "size = 0", ["network", "size", "is 0"]),
        ("size = 8", 'size = "8"', ["levels[1].size"]),
        ("size = 8\n", "", ["levels[1]", "size"]),
        ("links = 2", "lnks = 2", ["levels[1]", "lnks"]),
        ("links = 2", "oversubscription = 0.5", ["network", "oversubscription", "0.5"]),
        ("links = 2", "ramp = nan", ["network", "ramp", "nan"]),
        ("links = 2", "efficiency = 0.5", ["levels[1]", "either"]),
        ("links = 2", 'in_network_latency = "1 us"', ["network", "in_network_bandwidth"]),
        ('bandwidth = "12.5 GB/s"', "", ["levels[1]", "bandwidth"]),
        ('latency = "5 us"', "", ["levels[1]", "latency"]),
        ('"nvlink2"', '"nvlink9"', ["levels[0].link", "nvlink9", "nvlink2"]),
        ('"v100-16gb"', '"v100"', ["device", "v100-16gb"]),
        ('host_level = "host"', 'host_level = "hots"', ["host_level", "hots", "host or network"]),
        ('"fp32"', '"bf16"', ["default_precision", "bf16", "fp32 or fp16"]),
        ('name = "network"', 'name = "host"', ["different names"]),
        ('name = "mine"', 'name = "mine', ["valid TOML"]),
        ('name = "mine"', 'nmae = "mine"', ["nmae"]),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_field(
    tmp_path: Path, old: str, new: str, says: list[str]
) -> None:
    assert old in MINE
    path = write(tmp_path, MINE.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    message = str(caught.value)
    assert message.startswith(f"cluster file {path}")
    assert "\n" not in message
    for part in says:
        assert part in message


def test_an_unknown_name_lists_the_known_ones_closest_first() -> None:
    with pytest.raises(InputError, match=r"'lasen'; use one of lassen, "):
        load_cluster("lasen")
    with pytest.raises(InputError, match="must be readable"):
        load_cluster("nowhere/machine.toml")
    with pytest.raises(InputError, match="a100-40gb"):
        load_device("a100")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_cluster(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"memory": 0.0}, "memory"),
        ({"memory": float("nan")}, "memory"),
        ({"reserved_memory": 16e9}, "less than memory"),
        ({"reserved_memory": -1.0}, "reserved_memory"),
        ({"peak_flops": {}}, "peak_flops"),
        ({"peak_flops": {"fp4": 1e12}}, "fp4"),
        ({"peak_flops": {"fp32": float("inf")}}, "fp32"),
        ({"num_sms": 0}, "num_sms"),
    ],
)
def test_a_device_checks_itself(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        device(**changes)


def test_nouns_cannot_change() -> None:
    rates = {"fp32": 1e12}
    made = device(peak_flops=rates)
    rates["fp32"] = 0.0
    assert made.peak_flops["fp32"] == 1e12
    with pytest.raises(TypeError):
        made.peak_flops["fp32"] = 0.0  # type: ignore[index]
    with pytest.raises(AttributeError):
        made.memory = 1.0  # type: ignore[misc]


def test_a_cluster_can_be_copied_and_sent_to_another_process() -> None:
    made = load_cluster("dgx-a100")
    assert pickle.loads(pickle.dumps(made)) == made
    again = copy.deepcopy(made)
    assert again == made
    with pytest.raises(TypeError):
        again.device.peak_flops["fp32"] = 0.0  # type: ignore[index]


@pytest.mark.parametrize("name", list_devices())
def test_devices_have_the_name_of_their_file(name: str) -> None:
    assert load_device(name).name == name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel_latency": 5.0}, "kernel_latency must be from 0 to 1 s but is 5 s"),
        ({"memory_bandwidth": 1e-21}, "memory_bandwidth must be from 1000 to"),
        ({"peak_flops": {"fp32": 1e-300}}, r"peak_flops\.fp32 must be from"),
        ({"memory": 1e290}, "memory must be from"),
        ({"num_sms": 2**31}, "num_sms must be from 1 to"),
        ({"name": ""}, "name of a device must be text"),
    ],
)
def test_devices_that_cannot_be_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        device(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 2**31}, "size must be from 1 to"),
        ({"latency": 1e308}, "latency must be from 0 to 1 s"),
        ({"start_latency": 5.0}, "start_latency must be from 0 to 1 s"),
        ({"bandwidth": 1e-21}, "bandwidth must be from 1000 to"),
        ({"send_recv_bandwidth": 1e300}, "send_recv_bandwidth must be from 1000 to"),
        ({"links": 2**31}, "links must be from"),
        ({"ramp": 1e9}, "ramp must be from"),
        ({"oversubscription": 1e300}, "oversubscription must be from"),
        ({"name": "a\x1b"}, "name of a level must be text"),
    ],
)
def test_levels_that_cannot_be_are_refused(changes: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"name": "host", "size": 4, "latency": 1e-6, "bandwidth": 1e9}
    with pytest.raises(InputError, match=words):
        Level(**(fields | changes))  # type: ignore[arg-type]


def test_a_cluster_has_a_number_of_devices_that_can_be() -> None:
    levels = tuple(
        Level(name=f"l{n}", size=2**12, latency=1e-6, bandwidth=1e9, links=1) for n in range(3)
    )
    with pytest.raises(InputError, match="num_devices must be from 1 to"):
        Cluster(name="c", device=device(), levels=levels, host_level="l0", default_precision="fp32")

"""Clusters of several kinds of hosts: what files may say, and what the whole is."""

import re

import pytest
from msgspec.structs import replace

from costmodels.cluster import dump_cluster, load_cluster, load_device
from costmodels.errors import InputError

TEXT = """
name = "mixed"
host_level = "host"
default_precision = "bf16"

[[levels]]
name = "host"
size = 8
link = "nvlink4-sharp"
links = 18

[[levels]]
name = "network"
size = 12
link = "infiniband-ndr"
links = 8

[[groups]]
name = "old"
hosts = 4
device = "a100-80gb"

[[groups.levels]]
name = "host"
link = "nvlink3"
links = 12

[[groups.levels]]
name = "network"
link = "infiniband-hdr"
links = 8

[[groups]]
name = "new"
hosts = 8
device = "h100"
"""


@pytest.fixture
def read(tmp_path):
    def of(text):
        path = tmp_path / "mixed.toml"
        path.write_text(text)
        return load_cluster(path)

    return of


def test_the_fastest_hosts_come_first(read):
    cluster = read(TEXT)
    assert [(group.name, group.hosts) for group in cluster.groups] == [("new", 8), ("old", 4)]
    assert cluster.num_devices == 96
    assert [one.name for one in cluster.groups_of(0, 64)] == ["new"]
    assert [one.name for one in cluster.groups_of(63, 2)] == ["new", "old"]
    assert [one.name for one in cluster.groups_of(64, 32)] == ["old"]


def test_the_whole_is_as_slow_as_the_slowest(read):
    cluster = read(TEXT)
    for rate in ("memory_bandwidth", "usable_memory", "num_sms"):
        rows = [getattr(group.device, rate) for group in cluster.groups]
        assert getattr(cluster.device, rate) == min(rows)
    old = next(group for group in cluster.groups if group.name == "old")
    assert cluster.device.peak_flops["bf16"] == old.device.peak_flops["bf16"]
    for mine, slow in zip(cluster.levels, old.levels, strict=True):
        assert mine.bandwidth * mine.links == slow.bandwidth * slow.links
        assert mine.latency == max(
            level.latency
            for group in cluster.groups
            for level in group.levels
            if level.name == mine.name
        )
    # only the newer hosts have switches that add up
    assert cluster.levels[0].in_network_latency is None
    assert cluster.groups[0].levels[0].in_network_latency is not None


def test_a_job_gets_the_fastest_hosts(read):
    cluster = read(TEXT)
    plain = cluster.used(64)
    assert not plain.groups
    assert plain.device == load_device("h100")
    assert plain.num_devices == 64
    assert [(group.name, group.hosts) for group in cluster.used(80).groups] == [
        ("new", 8),
        ("old", 2),
    ]
    assert cluster.used(4).device.name == "h100"
    with pytest.raises(InputError, match="use 88 or 96"):
        cluster.used(92)


def test_groups_of_one_kind_are_one(read):
    alike = TEXT.split("[[groups]]")[0]
    for name, hosts in (("a", 5), ("b", 7)):
        alike += f'[[groups]]\nname = "{name}"\nhosts = {hosts}\ndevice = "h100"\n'
    plain = TEXT.split("[[groups]]")[0].replace("[[levels]]", 'device = "h100"\n[[levels]]', 1)
    assert read(alike) == read(plain)


def test_what_is_written_reads_back(read):
    cluster = read(TEXT)
    assert read(dump_cluster(cluster)) == cluster
    assert read(dump_cluster(cluster.with_memory(2e10))) == cluster.with_memory(2e10)


def test_memory_is_that_of_all_devices(read):
    cluster = read(TEXT).with_memory(2e10)
    assert {group.device.memory for group in cluster.groups} == {2e10}
    assert cluster.device.memory == 2e10


def test_other_jobs_slow_every_link_between_hosts_down(read):
    cluster = read(TEXT)
    busy = cluster.congested(2.0)
    for before, now in zip(cluster.groups, busy.groups, strict=True):
        assert now.levels[-1].bandwidth == before.levels[-1].bandwidth / 2.0
        assert now.levels[0] == before.levels[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('device = "h100"', 'device = "h1000"', "groups\\[1\\].device must be a built-in one"),
        ('device = "h100"', "", "groups\\[1\\] must have a device but neither it nor the cluster"),
        ("hosts = 8", "hosts = 0", "group new: hosts must be"),
        ("hosts = 8", "hosts = 9", "be the hosts of all groups, 4 \\+ 9 = 13"),
        ('name = "new"', 'name = "old"', "groups must have different names"),
        ("hosts = 8", "host = 8", "unknown|misses|must have"),
        (
            'name = "host"\nlink',
            'name = "rack"\nlink',
            "levels must each be another one of the cluster's, host, network, but are rack",
        ),
        (
            'name = "host"\nlink = "nvlink3"',
            'name = "host"\nsize = 4\nlink = "nvlink3"',
            "hosts of all groups have as many GPUs",
        ),
        ('host_level = "host"', 'host_level = "network"', "joined by one level, the network"),
        ('default_precision = "bf16"', 'default_precision = "fp8"', "a100-80gb of group old has"),
    ],
)
def test_what_is_no_cluster_is_refused(read, old, new, message):
    assert old in TEXT
    with pytest.raises(InputError) as caught:
        read(TEXT.replace(old, new))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_groups_must_have_as_many_gpus_a_host(read):
    cluster = read(TEXT)
    new, old = cluster.groups
    host, network = old.levels
    odd = replace(old, levels=(replace(host, size=4), network))
    with pytest.raises(InputError, match="hosts of all groups must have as many GPUs"):
        type(cluster).mixed((new, odd), name="m", host_level="host", default_precision="bf16")

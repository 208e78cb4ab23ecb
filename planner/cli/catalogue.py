"""What is built in, to look at or to start a file from: models, clusters, runtimes, loaders."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from planner.cli.completion import complete_built_in_cluster, complete_built_in_model
from planner.cli.options import WholeNumber
from planner.cli.screen import show, write

if TYPE_CHECKING:
    from rich.console import Console

    from costmodels.simulation import Runtime


# On terminals at least this wide, descriptions stand beside what they describe. [characters]
WIDE = 120
# Buckets smaller than this are full after every gradient. [B]
SMALLEST_PIECE = 1024.0
# More than any network has. [B]
LARGEST_PIECE = 1e15


@click.command("models")
@click.option(
    "--export",
    "name",
    metavar="NAME",
    help="Write this network as a file.",
    shell_complete=complete_built_in_model,
)
@click.option(
    "--input-size", type=WholeNumber(), metavar="N", help="Input size of the exported network."
)
@click.option("-o", "--output", metavar="FILE", help="Where to: .toml or .json.")
def models_command(name: str | None, input_size: int | None, output: str | None) -> None:
    """List the built-in networks, or export one."""
    if name is None:
        if output is not None or input_size is not None:
            raise click.UsageError("-o and --input-size need --export NAME")
        show(_list_models)
        write("")
        show(_list_families)
        return
    from costmodels.errors import InputError
    from planner.models import load_network
    from planner.models.files import SUFFIXES, format_network

    suffix = ".toml" if output in (None, "-") else Path(str(output)).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"a network file must end in {' or '.join(SUFFIXES)} but the path is '{output}'; "
            "rename it"
        )
    text = format_network(load_network(name, input_size), suffix=suffix)
    _write_or_show(text, name, output, SUFFIXES)


@click.command("clusters")
@click.option(
    "--export",
    "name",
    metavar="NAME",
    help="Write this cluster as a TOML file.",
    shell_complete=complete_built_in_cluster,
)
@click.option("-o", "--output", metavar="FILE", help="Where to.")
def clusters_command(name: str | None, output: str | None) -> None:
    """List the built-in clusters, or export one."""
    if name is None:
        if output is not None:
            raise click.UsageError("-o needs --export NAME")
        show(_list_clusters)
        return
    from costmodels.cluster import cluster_text

    _write_or_show(cluster_text(name), name, output, (".toml",))


@click.command("devices")
def devices_command() -> None:
    """List the GPUs that a cluster file may name as its device."""
    show(_list_devices)


@click.command("links")
def links_command() -> None:
    """List the link technologies that a level of a cluster file may name."""
    show(_list_links)


@click.command("runtimes")
def runtimes_command() -> None:
    """List the runtimes of frameworks, for 'planner simulate --runtime'."""
    show(_list_runtimes)


@click.command("loaders")
def loaders_command() -> None:
    """List the data loaders, and the storages that they read from, for 'planner simulate'."""
    show(_list_loaders)
    write("")
    show(_list_storages)


def _write_or_show(text: str, name: str, output: str | None, suffixes: tuple[str, ...]) -> None:
    if output is None or output == "-":
        write(text.rstrip("\n"))
        return
    from planner.output import Output, check_outputs, write_text

    check_outputs([Output(option="-o", path=output, suffixes=suffixes)], [name])
    write_text(output, text)
    write(f"written to {output}")


def _print_table(
    console: Console, headings: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]
) -> None:
    """A plain table; columns whose headings start with ">" hold numbers.

    Each row comes with a description: beside it on a wide terminal, else below it.
    """
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in [*headings, "description"] if wide else headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        table.add_column(heading.removeprefix(">"), justify=justify, no_wrap=heading in headings)
    for cells, description in rows:
        table.add_row(*cells, *([description] if wide else []))
    if wide:
        console.print(table)
        return
    # the table lays out the columns; the descriptions are put between its lines
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().rstrip("\n").split("\n")
    console.print(Text.from_ansi(lines[0].rstrip()))
    for line, (_, description) in zip(lines[1:], rows, strict=True):
        console.print(Text.from_ansi(line.rstrip()))
        for part in textwrap.wrap(description, max(console.width - 4, 20)):
            console.print(Text(f"    {part}", style="dim"))


def _list_models(console: Console) -> None:
    from costmodels.graph import build_graph
    from planner.models import BUILT_IN, build

    rows = []
    for name, model in BUILT_IN.items():
        network = build(name)
        graph = build_graph(network, 1)
        cells = [
            name,
            " x ".join(str(extent) for extent in network.input_shape.values()),
            str(len(graph.compute_layers)),
            f"{graph.parameters / 1e6:.1f} M",
            f"{graph.macs / 1e9:.1f} G",
        ]
        rows.append((cells, model.description))
    headings = ["name", ">sample", ">layers", ">weights", ">multiply-adds"]
    _print_table(console, headings, rows)


def _list_families(console: Console) -> None:
    """Families of transformers whose config.json stands for a network, and what it may say."""
    from planner.models import families

    rows = []
    for name, family in families().items():
        needed = dict.fromkeys((*family.required.values(), "model_type"))
        optional = dict.fromkeys((family.size, *family.optional.values()))
        further = ", ".join(field for field in optional if field not in needed)
        text = f"{family.description}. Needs {', '.join(needed)}; may say {further}"
        rows.append(([name], text))
    _print_table(console, ["model_type of a config.json"], rows)


def _list_clusters(console: Console) -> None:
    from costmodels.cluster import list_clusters, load_cluster
    from costmodels.units import format_bytes

    rows = []
    for name in list_clusters():
        cluster = load_cluster(name)
        cells = [
            name,
            cluster.device.name,
            format_bytes(cluster.device.memory),
            f"{cluster.num_devices:,}",
            str(cluster.devices_per_host),
            cluster.default_precision,
        ]
        rows.append((cells, cluster.description))
    headings = ["name", "GPU", ">memory", ">GPUs", ">a host", "precision"]
    _print_table(console, headings, rows)


def _list_devices(console: Console) -> None:
    from costmodels.cluster import list_devices, load_device
    from costmodels.units import format_bandwidth, format_bytes

    rows = []
    for name in list_devices():
        device = load_device(name)
        rates = ", ".join(f"{p} {rate / 1e12:,.4g}" for p, rate in device.peak_flops.items())
        cells = [
            name,
            format_bytes(device.memory),
            format_bandwidth(device.memory_bandwidth),
            str(device.num_sms),
        ]
        rows.append((cells, f"Peak TFLOP/s: {rates}. {device.source}"))
    _print_table(console, ["name", ">memory", ">bandwidth", ">SMs"], rows)


def _list_links(console: Console) -> None:
    from costmodels.cluster import link_level, list_links
    from costmodels.units import format_bandwidth, format_seconds

    rows = []
    for name in list_links():
        level = link_level(name)
        cells = [
            name,
            format_bandwidth(level.bandwidth),
            format_seconds(level.latency),
            format_seconds(level.start_latency),
        ]
        rows.append((cells, level.source))
    _print_table(console, ["name", ">bandwidth", ">latency", ">a collective"], rows)


def _list_runtimes(console: Console) -> None:
    from costmodels.simulation.runtime_files import built_in_runtimes as known

    rows = [
        ([name, runtime.title], f"{_what_it_does(runtime)}. {runtime.source}")
        for name, runtime in known().items()
    ]
    _print_table(console, ["name", "framework"], rows)


def _what_it_does(runtime: Runtime) -> str:
    """How a runtime reduces gradients, in which pieces, and what it cuts."""
    from costmodels.units import format_bytes, format_seconds

    how = {
        "all_reduce": "All-reduces gradients",
        "reduce_scatter": (
            "Reduce-scatters gradients"
            if runtime.shard
            else "All-reduces gradients, or reduce-scatters those that are cut,"
        ),
        "push_pull": "Pushes gradients to parameter servers and pulls weights",
    }[runtime.gradient]
    if runtime.fusion is not None:
        cycle = format_seconds(runtime.cycle)
        pieces = f"of what is ready each {cycle}, up to {format_bytes(runtime.fusion)}"
    elif runtime.bucket is not None and runtime.bucket < SMALLEST_PIECE:
        pieces = "weight by weight"
    elif runtime.bucket is not None and runtime.bucket > LARGEST_PIECE:
        pieces = "all at once"
    elif runtime.bucket is not None:
        pieces = f"in pieces of {format_bytes(runtime.bucket)}"
    else:
        pieces = "block by block"
    when = " after every micro-batch" if runtime.each_micro_batch else ""
    parts = [f"{how} {pieces}{when}"]
    if not runtime.overlap:
        parts.append("after the backward pass")
    if runtime.shard:
        named = {"state": "optimizer state", "gradients": "gradients", "weights": "weights"}
        parts.append(f"cuts {' and '.join(named[part] for part in runtime.shard)} over ranks")
    if runtime.recipe is not None:
        parts.append(f"precision recipe {runtime.recipe}")
    if runtime.gathers_again:
        parts.append("gathers what it read again for the backward pass")
    if not runtime.synchronous:
        parts.append("workers do not wait for each other")
    return "; ".join(parts)


def _list_loaders(console: Console) -> None:
    from costmodels.input_pipeline import list_loaders, load_loader

    rows = []
    for name in list_loaders():
        loader = load_loader(name)
        rate = loader.rate_per_core
        cells = [
            name,
            loader.decodes_on,
            f"{rate:,.0f}/s" if math.isfinite(rate) else "-",
            str(loader.workers),
            loader.storage.name,
        ]
        rows.append((cells, f"{loader.description}. {loader.source}"))
    headings = ["loader", "decodes on", ">rate of a core", ">workers", "storage"]
    _print_table(console, headings, rows)


def _list_storages(console: Console) -> None:
    from costmodels.input_pipeline import list_storages, load_storage
    from costmodels.units import format_bandwidth

    rows = []
    for name in list_storages():
        storage = load_storage(name)
        limits = [
            *(format_bandwidth(b) for b in (storage.host_bandwidth, storage.total_bandwidth)),
            *(f"{files:,.0f}/s" for files in (storage.host_files, storage.total_files)),
        ]
        cells = [name, *("-" if text.startswith("inf") else text for text in limits)]
        rows.append((cells, storage.source))
    headings = ["storage", ">a host", ">all hosts", ">files a host", ">files of all"]
    _print_table(console, headings, rows)

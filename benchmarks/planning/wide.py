"""Networks whose layers are joined by so many paths, or weights, that few methods take them."""

from __future__ import annotations

import random
from collections.abc import Callable

from costmodels.graph import Network
from planner.models.builder import Builder, image_builder

SOURCE = "written for the benchmark"


def _finished(net: Builder, name: str, *outputs: str) -> Network:
    """Close a network of images with a classifier over its last layer, or over those given."""
    if len(outputs) > 1:
        net.add("joined", "concat", *outputs)
    net.add("pooled", "global_pool")
    net.add("classes", "linear", filters=1000)
    net.add("loss", "loss")
    return net.network(name, source=SOURCE)


def _same_conv(net: Builder, name: str, *inputs: str, filters: int, stride: int = 1) -> str:
    return net.add(name, "conv", *inputs, filters=filters, kernel=3, padding=1, stride=stride)


def dense_blocks(blocks: int = 2, width: int = 12, growth: int = 32, size: int = 64) -> Network:
    """A DenseNet whose layers each join all outputs of their block anew, so blocks are cliques."""
    net = image_builder(size)
    _same_conv(net, "stem", filters=2 * growth, stride=2)
    for block in range(blocks):
        before = [net.last]
        for layer in range(width):
            if len(before) > 1:
                net.add(f"b{block}.{layer}.join", "concat", *before)
            before.append(_same_conv(net, f"b{block}.{layer}.conv", filters=growth))
        net.add(f"b{block}.join", "concat", *before)
        net.add(f"b{block}.narrow", "conv", filters=4 * growth, kernel=1)
        net.add(f"b{block}.pool", "pool", kernel=2)
    return _finished(net, "dense-blocks")


def hrnet(branches: int = 4, stages: int = 3, filters: int = 16, size: int = 128) -> Network:
    """Branches of halved resolutions that all exchange what they found after every stage."""
    net = image_builder(size)
    _same_conv(net, "stem", filters=filters, stride=2)
    heads = [net.last]
    for branch in range(1, branches):
        heads.append(
            _same_conv(net, f"down{branch}", heads[-1], filters=filters * 2**branch, stride=2)
        )
    for stage in range(stages):
        tips = [
            _same_conv(net, f"s{stage}.b{b}", head, filters=filters * 2**b)
            for b, head in enumerate(heads)
        ]
        heads = []
        for target in range(branches):
            parts = [_moved(net, stage, s, target, tips[s], filters) for s in range(branches)]
            heads.append(net.add(f"s{stage}.sum{target}", "add", *parts))
    last = [_moved(net, stages, b, branches - 1, heads[b], filters) for b in range(branches)]
    return _finished(net, "hrnet", *last)


def _moved(net: Builder, stage: int, source: int, target: int, tip: str, filters: int) -> str:
    """The output of one branch at the resolution and with the filters of another."""
    name, wanted = f"s{stage}.from{source}to{target}", filters * 2**target
    if source == target:
        return tip
    if source > target:
        factor = 2 ** (source - target)
        up = {"kernel": factor, "stride": factor, "transposed": True}
        return net.add(name, "conv", tip, filters=wanted, **up)
    stride = 2 ** (target - source)
    return net.add(name, "conv", tip, filters=wanted, kernel=stride, stride=stride)


def unet_plus_plus(depth: int = 4, filters: int = 32, size: int = 128) -> Network:
    """Zhou et al. 2018: a U-Net whose skips are dense pyramids of convolutions; 56 layers."""
    net = image_builder(size)
    made: dict[tuple[int, int], str] = {}

    def convs(level: int, place: int) -> None:
        _same_conv(net, f"x{level}{place}.1", filters=filters * 2**level)
        made[level, place] = _same_conv(net, f"x{level}{place}.2", filters=filters * 2**level)

    for level in range(depth + 1):
        if level:
            net.add(f"pool{level}", "pool", made[level - 1, 0], kernel=2)
        convs(level, 0)
    up = {"kernel": 2, "stride": 2, "transposed": True}
    for place in range(1, depth + 1):
        for level in range(depth + 1 - place):
            name = f"up{level}{place}"
            net.add(name, "conv", made[level + 1, place - 1], filters=filters * 2**level, **up)
            beside = [made[level, before] for before in range(place)]
            net.add(f"join{level}{place}", "concat", *beside, name)
            convs(level, place)
    net.add("out", "conv", made[0, depth], filters=2, kernel=1)
    net.add("loss", "loss")
    return net.network("unet-plus-plus", source=SOURCE)


def searched_cells(count: int = 8, blocks: int = 5, filters: int = 32, seed: int = 0) -> Network:
    """Cells as a search of architectures finds them: each reads the two before it, in blocks."""
    rng = random.Random(seed)
    net = image_builder(64)
    before = [_same_conv(net, "stem", filters=filters, stride=2)]
    before.append(_same_conv(net, "stem2", filters=filters))
    for cell in range(count):
        known = [
            net.add(f"c{cell}.in{i}", "conv", tip, filters=filters, kernel=1)
            for i, tip in enumerate(before[-2:])
        ]
        for block in range(blocks):
            pair = rng.sample(known, 2)
            halves = [
                _same_conv(net, f"c{cell}.{block}.{i}", tip, filters=filters)
                for i, tip in enumerate(pair)
            ]
            known.append(net.add(f"c{cell}.{block}.sum", "add", *halves))
        before.append(net.add(f"c{cell}.join", "concat", *known[2:]))
    return _finished(net, "cells")


def long_skips(count: int = 20, filters: int = 32, size: int = 64) -> Network:
    """Convolutions that each add the outputs of several far before them."""
    net = image_builder(size)
    outputs = [_same_conv(net, "conv0", filters=filters)]
    for i in range(1, count):
        reads = sorted({i - 1, i // 2, i // 3, max(i - 7, 0)})
        if len(reads) > 1:
            net.add(f"sum{i}", "add", *(outputs[r] for r in reads))
        outputs.append(_same_conv(net, f"conv{i}", filters=filters))
    return _finished(net, "long-skips")


def random_dag(layers: int = 200, filters: int = 16, size: int = 32, seed: int = 0) -> Network:
    """A random graph of convolutions and sums of two to four of the layers before."""
    rng = random.Random(seed)
    net = image_builder(size)
    outputs = [_same_conv(net, "layer0", filters=filters)]
    loose = {outputs[0]}
    while len(outputs) < layers - 4:
        name = f"layer{len(outputs)}"
        if len(outputs) > 2 and rng.random() < 0.4:
            reads = rng.sample(outputs, min(rng.randint(2, 4), len(outputs)))
            net.add(name, "add", *reads)
        else:
            reads = [rng.choice(outputs[-12:])]
            _same_conv(net, name, *reads, filters=filters)
        loose -= set(reads)
        outputs.append(name)
        loose.add(name)
    return _finished(net, "random-dag", *sorted(loose))


def repeated_weights(blocks: int = 4, width: int = 6, filters: int = 16, size: int = 32) -> Network:
    """A block of convolutions, repeated with the same weights: each shares that of the first."""
    net = image_builder(size)
    _same_conv(net, "stem", filters=filters)
    for block in range(blocks):
        for i in range(width):
            share = {"share": f"b0.{i}"} if block else {}
            net.add(f"b{block}.{i}", "conv", filters=filters, kernel=3, padding=1, **share)
    return _finished(net, "repeated-weights")


WIDE: dict[str, Callable[[], Network]] = {
    "dense-12": dense_blocks,
    "dense-20": lambda: dense_blocks(1, 20),
    "hrnet": hrnet,
    "hrnet-5": lambda: hrnet(5, 4),
    "unet-plus-plus": unet_plus_plus,
    "cells": searched_cells,
    "cells-7": lambda: searched_cells(6, 7, seed=1),
    "long-skips": long_skips,
    "random-200": random_dag,
    "random-200-1": lambda: random_dag(seed=1),
    "repeated-weights": repeated_weights,
}

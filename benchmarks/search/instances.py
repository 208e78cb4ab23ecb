"""Problems that resemble those of the contest, made from a seed: the same on every machine.

    python -m benchmarks.search.instances FAMILY:SIZE:SEED FILE

Models: `transformer` (blocks of attention and MLP), `unet` (skips between levels), `gnn`
(irregular, with hubs), `weights` (few big ones, used often, whose splitting saves most memory) and
`leafy` (chains whose operations hold many tied leaves), made of what `network.py` beside it has.
Assumes: SIZE is the number of nodes at which a family stops growing; it may get a block more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.search.network import MeshNetwork, Operand, numbers

MAX_SIZE = 100_000


def _transformer(net: MeshNetwork, size: int) -> None:
    batch, sequence, width = 16 * net.random.choice((1, 2)), 128, 64 * net.random.randint(2, 4)
    heads = net.random.choice((4, 6, 8))
    x = net.map(net.add((batch, sequence, width)))
    while 3 * len(net) < size:
        normal = net.affine(x)
        query, key, value = (net.linear(normal, width) for _ in range(3))
        view = (0, 2, 4)  # of a space of samples, heads, rows, columns and width
        space = (batch, heads, sequence, sequence, width)
        scores = net.add(
            space,
            Operand(node=query, view=view),
            Operand(node=key, view=(0, 3, 4)),
            out=(0, 1, 2, 3),
        )
        soft = net.map(net.map(scores))
        mixed = net.add(
            space,
            Operand(node=soft, view=(0, 1, 2, 3)),
            Operand(node=value, view=(0, 3, 4)),
            out=view,
        )
        x = net.map(x, net.linear(mixed, width))
        hidden = net.linear(net.affine(x), 4 * width)
        x = net.map(x, net.linear(net.map(net.map(hidden)), width))


def _unet(net: MeshNetwork, size: int) -> None:
    batch, extent, channels = 16, 16, 64
    x = net.add((batch, extent * extent, channels))
    while 3 * len(net) < size:
        skips = []
        levels = net.random.randint(2, 4)
        x = net.linear(x, channels)
        for level in range(levels):
            x = net.affine(net.linear(net.map(x), channels << level))
            skips.append(x)
            x = _resized(net, x, (extent >> (level + 1)) ** 2, channels << (level + 1))
        for level in reversed(range(levels)):
            x = _resized(net, x, (extent >> level) ** 2, channels << level)
            x = net.map(net.linear(net.map(x, skips.pop()), channels << level))


def _resized(net: MeshNetwork, node: int, extent: int, width: int) -> int:
    """Another extent and width; the space holds both, of which one is summed over."""
    samples, old, depth = net.made(node)
    wide = net.add((width, depth))
    return net.add(
        (samples, extent, width, depth, old),
        Operand(node=node, view=(0, 4, 3)),
        Operand(node=wide, view=(2, 3)),
        out=(0, 1, 2),
    )


def _gnn(net: MeshNetwork, size: int) -> None:
    rows, widths = 256 * net.random.randint(1, 4), (64, 128, 192)
    hubs = [net.add((rows, width)) for width in widths]
    graphs = [net.add((rows, rows)) for _ in range(3)]
    features = list(hubs)
    while 3 * len(net) < size:
        # near ones mostly, but hubs of the start again and again
        near = net.random.choice(features[-12:])
        base = near if net.random.random() < 0.7 else net.random.choice(hubs)
        kind = net.random.random()
        alike = [v for v in features[-40:] if v != base and net.made(v) == net.made(base)]
        if kind < 0.4 and alike:
            made = net.map(base, *net.random.sample(alike, min(len(alike), 3)))
        elif kind < 0.6:
            made = net.affine(base)
        elif kind < 0.8:
            made = net.linear(base, net.random.choice(widths))
        else:  # messages between rows
            made = net.add(
                (rows, net.made(base)[1], rows),
                Operand(node=base, view=(2, 1)),
                Operand(node=net.random.choice(graphs), view=(0, 2)),
                out=(0, 1),
            )
        features.append(made)


def _weights(net: MeshNetwork, size: int) -> None:
    batch, width = 64, 128
    big = [net.add((256 * net.random.randint(4, 40), width)) for _ in range(6)]
    x = net.map(net.add((batch, width)))
    while 3 * len(net) < size:
        table = net.random.choice(big)
        found = net.linear(x, net.made(table)[0], weight=table)
        x = net.map(x, net.linear(net.map(found), width))
        for _ in range(net.random.randint(0, 3)):
            x = net.affine(x)


def _leafy(net: MeshNetwork, size: int) -> None:
    shapes = ((512, 64), (64, 32, 64), (1024, 48))
    while len(net) < size:
        x = net.map(net.add(net.random.choice(shapes)))
        for _ in range(net.random.randint(3, 8)):
            leaves = [net.add(net.made(x)) for _ in range(net.random.randint(1, 5))]
            x = net.map(x, *leaves)
            x = net.linear(x, net.made(x)[-1]) if net.random.random() < 0.5 else net.affine(x)


FAMILIES: dict[str, Callable[[MeshNetwork, int], None]] = {
    "transformer": _transformer,
    "unet": _unet,
    "gnn": _gnn,
    "weights": _weights,
    "leafy": _leafy,
}


def generate(what: str) -> dict[str, Any]:
    """A problem file's content, of FAMILY:SIZE:SEED."""
    return {"problem": {"name": what, **numbers(mesh_network(what))}}


def mesh_network(what: str) -> MeshNetwork:
    """The network behind a problem."""
    family, size, seed = parse(what)
    net = MeshNetwork(f"{family}:{size}:{seed}")
    FAMILIES[family](net, size)
    # leaves are read, not learned: most of what is there is a leaf, as in the contest
    if family != "leafy":
        net.backward()
    return net


def parse(what: str) -> tuple[str, int, int]:
    """Family, size and seed."""
    parts = what.split(":")
    if len(parts) == 3 and parts[0] in FAMILIES and parts[1].isdecimal() and parts[2].isdecimal():
        size, seed = int(parts[1]), int(parts[2])
        if 1 <= size <= MAX_SIZE:
            return parts[0], size, seed
    raise ValueError(
        f"what to generate must be FAMILY:SIZE:SEED with a family of {', '.join(FAMILIES)}, a size"
        f" of 1 to {MAX_SIZE} nodes and a whole seed, but is {what!r}; try leafy:2000:0"
    )


def main() -> None:
    """Write the file named on the command line."""
    if len(sys.argv) != 3:
        sys.exit("give FAMILY:SIZE:SEED and the FILE to write, such as leafy:2000:0 leafy.json")
    try:
        content = generate(sys.argv[1])
        Path(sys.argv[2]).write_text(json.dumps(content) + "\n", encoding="utf-8")
    except (ValueError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""Random changes of nested data: keys, values and rows."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from hostile_values import NAMES, any_text, any_value

Path = tuple[str | int, ...]
Change = Callable[[Any, Path, random.Random], str]


def paths(tree: Any, above: Path = ()) -> Iterator[Path]:
    """All places of nested data below the top."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*above, key))


def get(tree: Any, path: Path) -> Any:
    """What is at a place."""
    for key in path:
        tree = tree[key]
    return tree


def put(tree: Any, path: Path, value: Any) -> None:
    """Another value at a place, which need not exist yet."""
    get(tree, path[:-1])[path[-1]] = value


def told(path: Path) -> str:
    """A place in words, rows without their numbers, so that equal causes read alike."""
    return ".".join("#" if isinstance(key, int) else key[:20] for key in path)


def brief(value: Any) -> str:
    """A value in a few characters."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _drop(tree: Any, path: Path, rng: random.Random) -> str:
    del get(tree, path[:-1])[path[-1]]
    return "dropped"


def _rename(tree: Any, path: Path, rng: random.Random) -> str:
    where, key = get(tree, path[:-1]), path[-1]
    if isinstance(where, list):
        return _drop(tree, path, rng)
    name = rng.choice((str(key) + "s", str(key).upper(), rng.choice(NAMES)))
    where[name] = where.pop(key)
    return f"renamed to {brief(name)}"


def _replace(tree: Any, path: Path, rng: random.Random) -> str:
    # what stands elsewhere under the same key, or as a name, makes cycles, doubles and losses
    alike = [get(tree, p) for p in paths(tree) if p[-1] in (path[-1], "name") and p != path]
    value = any_value(rng, get(tree, path))
    if alike and rng.random() < 0.25:
        value = copy.deepcopy(rng.choice(alike))
    put(tree, path, value)
    return brief(value)


def _repeat(tree: Any, path: Path, rng: random.Random) -> str:
    where, key = get(tree, path[:-1]), path[-1]
    if isinstance(where, list):
        where.insert(rng.randint(0, len(where)), copy.deepcopy(where[int(key)]))
        return "repeated"
    where[rng.choice(NAMES)] = copy.deepcopy(where[key])
    return "repeated under another name"


def _swap(tree: Any, path: Path, rng: random.Random) -> str:
    other = rng.choice(list(paths(tree)))
    shorter = min(len(path), len(other))
    if path[:shorter] == other[:shorter]:
        return _replace(tree, path, rng)
    here, there = get(tree, path), get(tree, other)
    put(tree, path, there)
    put(tree, other, here)
    return f"swapped with {told(other)}"


def _add(tree: Any, path: Path, rng: random.Random) -> str:
    where = get(tree, path)
    value = any_value(rng)
    if isinstance(where, list):
        where.append(value)
    elif isinstance(where, dict):
        where[rng.choice(("more", "kind", "inputs", "share", *NAMES))] = value
    else:
        put(tree, path, [where, value])
    return f"with {brief(value)} added"


def _reword(tree: Any, path: Path, rng: random.Random) -> str:
    """Another text for one, wherever it stands: a name and all that refer to it."""
    old = get(tree, path)
    if not isinstance(old, str):
        texts = [p for p in paths(tree) if isinstance(get(tree, p), str) and p[-1] == "name"]
        if not texts:
            return _replace(tree, path, rng)
        path = rng.choice(texts)
        old = get(tree, path)
    new = any_text(rng)
    for place in list(paths(tree)):
        if get(tree, place) == old:
            put(tree, place, new)
    return f"is {brief(old)}, everywhere {brief(new)}"


_CHANGES: tuple[tuple[Change, int], ...] = (
    (_replace, 10),
    (_drop, 2),
    (_rename, 1),
    (_repeat, 2),
    (_swap, 2),
    (_add, 1),
    (_reword, 4),
)


def change(tree: Any, rng: random.Random) -> str:
    """Change something somewhere.

    Parameters
    ----------
    tree
        Changed in place.
    rng
        Says what and where.

    Returns
    -------
    str
        What was changed.
    """
    places = list(paths(tree))
    if not places:
        return "nothing left to change"
    path = rng.choice(places)
    changes, weights = zip(*_CHANGES, strict=True)
    return f"{told(path)} {rng.choices(changes, weights)[0](tree, path, rng)}"

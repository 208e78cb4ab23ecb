"""Random changes of bytes, and files that are no files."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

Bytes = Callable[[bytes, random.Random], bytes]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(rng.choice((1, 1, 5))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _bomb(data: bytes, rng: random.Random) -> bytes:
    return gzip.compress(data + b" " * 60_000_000, 9) if data else data


def _line_twice(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return b"\n".join(lines)


def _junk(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    junk = rng.choice((b"\0", b"\xff\xfe", b"\x1b]0;x\x07", b"\xc3\x28", b"[", b'"', b"#", b"\r"))
    return data[:at] + junk + data[at:]


BYTES: dict[str, Bytes] = {
    "cut short": lambda data, rng: data[: rng.randint(0, len(data))],
    "bits flipped": _flip,
    "byte order mark": lambda data, rng: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data, rng: data.decode("utf-8", "replace").encode("utf-16"),
    "CRLF": lambda data, rng: data.replace(b"\n", b"\r\n"),
    "CR": lambda data, rng: data.replace(b"\n", b"\r"),
    "Latin-1": lambda data, rng: data.replace(b"a", b"\xe9"),
    "empty": lambda data, rng: b"",
    "blank": lambda data, rng: b" \n",
    "NULs": lambda data, rng: b"\0" * 4096,
    "a line twice": _line_twice,
    "junk inside": _junk,
    "twice": lambda data, rng: data + data,
    "brackets": lambda data, rng: rng.choice((b"[", b'{"a":', b"a=[")) * 100_000,
    "gzipped": lambda data, rng: gzip.compress(data),
    "gzip cut": lambda data, rng: gzip.compress(data)[: rng.randint(2, 40)],
    "gzip bomb": _bomb,
    "random": lambda data, rng: rng.randbytes(200),
}


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _forbidden(path: Path) -> None:
    path.write_bytes(b"secret")
    path.chmod(0)


def _missing(path: Path) -> None:
    """No such file at all."""


def _socket(path: Path) -> None:
    os.mknod(path, 0o140644)


# What stands in place of a file that cannot be read, whoever asks.
UNREADABLE: dict[str, Callable[[Path], None]] = {
    "a folder": _folder,
    "a symlink loop": _loop,
    "a dangling link": _dangling,
    "without permission": _forbidden,
    "missing": _missing,
    "a socket": _socket,
}

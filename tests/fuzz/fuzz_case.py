"""What a case is: files of a folder, and the command line that is run there."""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass, field
from pathlib import Path

from byte_changes import BYTES, UNREADABLE
from protobuf_changes import Message
from written_forms import Table


@dataclass
class File:
    """A file of a case.

    Parameters
    ----------
    name
        Its name in the folder of the case.
    content
        Nested data, a message of protobuf, or bytes.
    zipped
        Whether the bytes are gzipped at last.
    bytes_changes
        What is done to its bytes, with the seed of each.
    instead
        What stands there instead of a file, of `UNREADABLE`.
    runs
        Whether it is a program.
    """

    name: str
    content: Table | Message | bytes
    zipped: bool = False
    bytes_changes: list[tuple[str, int]] = field(default_factory=list)
    instead: str = ""
    runs: bool = False

    def data(self) -> bytes:
        """The bytes after all changes."""
        content = self.content
        data = content if isinstance(content, bytes) else content.data()
        for name, seed in self.bytes_changes:
            data = BYTES[name](data, random.Random(seed))
        return gzip.compress(data, mtime=0) if self.zipped else data

    def write(self, folder: Path) -> None:
        """Put it into the folder of the case."""
        path = folder / self.name
        if self.instead:
            UNREADABLE[self.instead](path)
        else:
            path.write_bytes(self.data())
            path.chmod(0o755 if self.runs else 0o644)


@dataclass
class Case:
    """A run of the command.

    Parameters
    ----------
    seed, number
        What it is made from.
    kind
        What is changed: a kind of file, or the command line.
    command
        The subcommand.
    files
        What lies in the folder; the first one is what is changed.
    words
        Arguments behind the subcommand; a file stands for its name.
    outputs
        Paths that may be written if all goes well.
    kept
        Files that may be written whatever happens.
    links
        Links in the folder, by their name.
    refuse
        Why the command must refuse, empty where it need not.
    changes
        What was done, in words.
    num_pieces
        How many changes and options there are, those that are left out included.
    encoding
        Of the streams.
    environment
        Variables that are set.
    interrupt
        Processor time after which the command is interrupted. [s]
    """

    seed: int
    number: int
    kind: str
    command: str = "optimize"
    files: list[File] = field(default_factory=list)
    words: list[str | File] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    refuse: str = ""
    changes: list[str] = field(default_factory=list)
    num_pieces: int = 0
    encoding: str = "utf-8"
    environment: dict[str, str] = field(default_factory=dict)
    interrupt: float | None = None

    def arguments(self) -> list[str]:
        """The whole command line, without NULs, which no shell can pass on."""
        words = [word.name if isinstance(word, File) else word for word in self.words]
        return [word.replace("\0", "") for word in ([self.command] if self.command else []) + words]

    def write(self, folder: Path) -> None:
        """Put all files into an empty folder."""
        for file in self.files:
            file.write(folder)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)
        (folder / "blocked").write_bytes(b"")
        (folder / "locked").mkdir(mode=0o500)
        (folder / "loop").symlink_to("loop")

"""Writing files so that none is left half written, and finding out early that one cannot be."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from costmodels.errors import InputError

# As a path on the command line: standard output.
STDOUT = "-"


class Output(Struct, frozen=True, kw_only=True):
    """A file that a command is to write.

    Parameters
    ----------
    option
        The option that names it.
    path
        Where to.
    suffixes
        What its path must end in, to fit what is written.
    streams
        Whether "-" stands for standard output.
    """

    option: str
    path: str
    suffixes: tuple[str, ...]
    streams: bool = False


def check_outputs(outputs: Iterable[Output], inputs: Iterable[object]) -> None:
    """Refuse outputs that cannot be written, or that would overwrite an input or each other.

    Files are compared, not paths: links lead to one file, too.

    Parameters
    ----------
    outputs
        All files that a command is to write.
    inputs
        All that it may read: paths, names of what is built in, and what was not given.

    Raises
    ------
    InputError
        When a suffix does not fit, a file cannot be written, or two files are one.
    """
    read: set[object] | None = None
    written: dict[object, str] = {}
    for one in outputs:
        if one.path == STDOUT and one.streams:
            continue
        if not one.path.lower().endswith(one.suffixes) and not _is_special(one.path):
            raise InputError(
                f"the file of {one.option} cannot be written: it must end in "
                f"{' or '.join(one.suffixes)} but is '{one.path}'; rename it"
            )
        check_writable(one.path)
        if _is_special(one.path):
            continue
        if read is None:
            read = {key for path in inputs if isinstance(path, str) for key in _identities(path)}
        for key in _identities(one.path):
            if key in read:
                raise InputError(
                    f"'{one.path}' of {one.option} is read by this command, too; write to another "
                    "file"
                )
            if key in written:
                raise InputError(
                    f"{written[key]} and {one.option} must be different files but both are "
                    f"'{one.path}'; rename one"
                )
        written |= dict.fromkeys(_identities(one.path), one.option)


def _identities(path: str) -> tuple[object, ...]:
    """What is equal for two paths of one file, there or not."""
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except (OSError, ValueError):
        return (real,)
    return real, (found.st_dev, found.st_ino)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that `write_bytes` could not write, before anything is computed for it.

    Raises
    ------
    InputError
        When the folder is missing or cannot be written to, or the path is a folder.
    """
    target = _real(path)
    if not os.fspath(path) or os.path.isdir(target):
        raise InputError(
            f"'{os.fspath(path)}' cannot be written: it is a folder, not a file; add a file name"
        )
    if not os.path.isdir(target.parent) and not _is_special(path):
        raise InputError(
            f"{path} cannot be written: the folder {target.parent} does not exist; create it or "
            "choose another path"
        )
    try:
        os.lstat(target)
    except FileNotFoundError:
        pass
    except OSError as error:  # a name that is too long, a loop of links
        raise InputError(
            f"{path} cannot be written ({error.strerror}); choose another path"
        ) from None
    place = Path(path) if _is_special(path) else target.parent
    if not os.access(place, os.W_OK):
        raise InputError(
            f"{path} cannot be written: {place} may not be written to; choose another path"
        )


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file under a temporary name and rename it, so that none is left half written.

    A symbolic link is followed, and what is no file (a pipe, /dev/stdout) is written to, since
    renaming would replace it.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    check_writable(path)
    target = _real(path)
    temporary = None
    try:
        if _is_special(path):
            Path(path).write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".planner-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
        temporary = None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); choose another path"
        ) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _real(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path))


def _is_special(path: str | os.PathLike[str]) -> bool:
    # not of the resolved path: that of a pipe behind /dev/stdout does not exist
    given = os.fspath(path)
    return os.path.exists(given) and not os.path.isfile(given) and not os.path.isdir(given)


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, else those that the user's umask leaves."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

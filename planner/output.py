"""Writing files so that none is left half written, and finding out early that one cannot be."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from costmodels.errors import InputError


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that `write_bytes` could not write, before anything is computed for it.

    Raises
    ------
    InputError
        When the folder is missing or cannot be written to, or the path is a folder.
    """
    target = _real(path)
    if not os.fspath(path) or target.is_dir():
        raise InputError(
            f"'{os.fspath(path)}' cannot be written: it is a folder, not a file; add a file name"
        )
    if not target.parent.is_dir() and not _is_special(path):
        raise InputError(
            f"{path} cannot be written: the folder {target.parent} does not exist; create it or "
            "choose another path"
        )
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
    given = Path(path)
    return given.exists() and not given.is_file() and not given.is_dir()


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, else those that the user's umask leaves."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

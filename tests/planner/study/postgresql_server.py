"""A PostgreSQL server of the tests' own, from the programs of Debian's package `postgresql`."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def server() -> Iterator[Path]:
    """The folder of its socket; skips the test where the programs or the driver are missing."""
    pytest.importorskip("psycopg", reason="needs pip install 'planner[postgresql]'")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("needs apt-get install postgresql")
    # a path of a socket may have 107 bytes, fewer than folders of tests have
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    user: dict[str, object] = {}
    if os.getuid() == 0:
        # the server refuses to run as root
        entry = pwd.getpwnam("postgres")
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        user = {"user": entry.pw_uid, "group": entry.pw_gid}

    def control(*words: str) -> None:
        log = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*words], check=True, cwd=folder, **user, **log)

    data = str(folder / "data")
    try:
        control(str(programs[-1] / "initdb"), "-D", data, "-A", "trust", "-U", "me")
        options = f"-k {folder} -c listen_addresses="
        control(str(programs[-1] / "pg_ctl"), "-D", data, "-o", options, "-w", "start")
        try:
            yield folder
        finally:
            control(str(programs[-1] / "pg_ctl"), "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def new_base(folder: Path) -> str:
    """The address of an empty database on a server."""
    import psycopg

    name = f"base_{uuid.uuid4().hex}"
    with psycopg.connect(host=str(folder), user="me", dbname="postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://me@/{name}?host={folder}"

"""The PostgreSQL server of one worker: a copy of the built cluster, which ends with its parent."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from . import kernel

READY_SECONDS = 60.0
"""Real seconds until a server must accept connections."""
PAUSE = 0.02
"""Seconds between looks at a server that is starting."""
MAX_LOG = 2000
"""Last characters of a server's log that an error shows."""
USERS = ("postgres", "nobody")
"""Users that run the server where this process is root's, which PostgreSQL refuses."""
OPTIONS = {
    "listen_addresses": "",
    "max_connections": "500",
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "32MB",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
}
"""Settings of a server whose data are copies: nothing of it has to outlive a crash.

Its shared memory is files of its data: those in ``/dev/shm`` would outlive a kill, and the server's
user may not write there in every container.
"""


def server_user() -> dict[str, Any]:
    """Return the server's user for `subprocess.Popen`; empty if it is this process's."""
    if os.geteuid():
        return {}
    for name in USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise OSError(f"PostgreSQL does not run as root, and there is no user {' or '.join(USERS)}")


def make_place(folder: Path) -> Path:
    """Make a server's folder, which all users may enter, and return that of its data."""
    owner, data = server_user(), folder / "data"
    folder.mkdir(exist_ok=True)
    data.mkdir(mode=0o700)
    if owner:
        for place in (folder, data):
            os.chown(place, owner["user"], owner["group"])
    folder.chmod(0o711)
    return data


def start_copy(program: str, cluster: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a server on a copy of a cluster, with its socket in a new folder."""
    data = make_place(folder)
    shutil.copytree(cluster, data, dirs_exist_ok=True)
    data.chmod(0o700)
    if owner := server_user():
        for place, folders, files in os.walk(data):
            for name in (".", *folders, *files):
                os.chown(os.path.join(place, name), owner["user"], owner["group"])
    return start_server(program, data)


def start_server(program: str, data: Path) -> subprocess.Popen[bytes]:
    """Start a server and wait until it accepts connections.

    Raises:
        OSError: It ends, or takes too long; shows the end of its log.
    """
    settings = [word for name, value in OPTIONS.items() for word in ("-c", f"{name}={value}")]
    log = data.parent / "log"
    with log.open("wb") as written:
        server: subprocess.Popen[bytes] = subprocess.Popen(
            [program, "-D", str(data), "-k", str(data.parent), *settings],
            cwd=data,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            preexec_fn=kernel.die_with_parent,  # called after the change of user, which would undo it
            **server_user(),
        )
    begun, status = time.monotonic(), data / "postmaster.pid"
    while not (status.exists() and status.read_text().endswith("ready   \n")):
        if server.poll() is not None or time.monotonic() - begun > READY_SECONDS:
            server.kill()
            raise OSError(f"PostgreSQL does not start: {log.read_text(errors='replace')[-MAX_LOG:].strip()}")
        time.sleep(PAUSE)
    return server

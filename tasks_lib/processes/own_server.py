"""The Prefect server that a run starts for itself where none is configured."""

from __future__ import annotations

from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from envs.types import ConfigError
from tasks_lib.processes.interrupts import block_interrupts
from tasks_lib.processes.orphans import end_with_parent
from tasks_lib.processes.prefect_api import check_home


def api_url() -> str:
    """Return the address of this process's Prefect API. Start the ephemeral server if there is
    none.

    Prefect sends its settings along with each task; without the address in them, every worker would
    start an ephemeral server of its own.

    Raises:
        ConfigError: the ephemeral server does not start.
    """
    configured = PREFECT_API_URL.value()
    if configured:
        return str(configured)
    check_home()
    # Imported here because it imports all of the server: seconds, in every worker too.
    from prefect.server.api.server import SubprocessASGIServer

    server = SubprocessASGIServer()
    # Ctrl-C reaches all processes of a terminal, and our reports of an interrupt need a server.
    try:
        with block_interrupts():
            server.start()
    except RuntimeError as error:
        raise ConfigError(
            f"the Prefect server of this run did not start ({' '.join(str(error).split())}); its database is in PREFECT_HOME="
            f"{PREFECT_HOME.value()}: set that to an empty folder, or start a server (prefect server start) and set PREFECT_API_URL to its address"
        ) from error
    if server.server_process is not None:
        end_with_parent(server.server_process.pid)
    return str(server.api_url)


def ephemeral_server_pid() -> int | None:
    """Return the pid of the server that `api_url` started; ``None`` where it ran before."""
    if PREFECT_API_URL.value():
        return None
    from prefect.server.api.server import SubprocessASGIServer

    process = SubprocessASGIServer().server_process
    return None if process is None else process.pid

"""The hosts of a process: browsers that all environments of other frameworks share."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from envs.sync import SyncEnvHost

T = TypeVar("T")

_hosts: dict[tuple[int, tuple[tuple[str, Any], ...]], SyncEnvHost] = {}
_making = threading.Lock()


def shared_host(**pool_options: Any) -> SyncEnvHost:
    """Return this process's host with these options; it is made at the first call.

    It lives until `close_hosts` or the interpreter's end, so that a framework that makes an
    environment for each episode does not start a browser for each. A forked process gets its own.

    Args:
        pool_options: Fields of `envs.PoolOptions`, such as `StepRenderer.pool_options`.
    """
    key = (os.getpid(), tuple(sorted(pool_options.items())))
    with _making:
        if key not in _hosts:
            _hosts[key] = SyncEnvHost(**pool_options)
        return _hosts[key]


def close_hosts() -> None:
    """Close the hosts of this process, with the environments that are open on them."""
    with _making:
        for key in [key for key in _hosts if key[0] == os.getpid()]:
            _hosts.pop(key).close()


async def on_host(host: SyncEnvHost, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Await a function in a host's event loop, from another event loop.

    A caller that is cancelled cancels the call.
    """
    return await asyncio.wrap_future(host.portal.start_task_soon(function, *args))

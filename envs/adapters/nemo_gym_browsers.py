"""Browsers of an environment server for NeMo-Gym's ``interactive_browser`` (0.7).

::

    from resources_servers.interactive_browser.browser import register_session_provider
    register_session_provider("rollwright", SessionBrowsers)

    backend:
      remote_cdp:
        session_provider:
          rollwright: {address: "http://127.0.0.1:8700", task: live/example.com, instruction: Look.}

Each rollout has a session of its own, whose browser context is the new one that NeMo-Gym asks for.
A rollout that is abandoned leaves it to the end of the session's lease. NeMo-Gym grades; a page
that was lost has a ``failure_reason`` there.
"""

from __future__ import annotations

import os
from typing import Any

from envs.server.client import RemoteEnv
from envs.types import ConfigError

try:
    from resources_servers.interactive_browser.browser import BrowserSessionHandle, BrowserSessionSpec
except ImportError as error:
    raise ImportError(
        "envs.adapters.nemo_gym_browsers needs nemo-gym 0.7 or later: scripts/setup_frameworks nemo_gym"
    ) from error


class SessionBrowsers:
    """A session provider of NeMo-Gym: a session of an environment server for each rollout."""

    name = "rollwright"

    def __init__(self, address: str, task: Any, *, key: str = "", **options: Any) -> None:
        """
        Args:
            address: Address of the server.
            task: Task whose site the browser reaches, as of `RemoteEnv`, or one as JSON.
            key: Environment variable with the server's key.
            options: Further options of `RemoteEnv`, such as ``seed`` and ``lease_seconds``.

        Raises:
            ConfigError: The variable is not set.
        """
        if key and not os.environ.get(key):
            raise ConfigError(f"key: the environment variable {key} is not set")
        self._address, self._task = address, task
        self._options = {"key": os.environ.get(key, ""), "screenshots": False, **options}

    async def acquire(self, spec: BrowserSessionSpec) -> BrowserSessionHandle:
        """Open a session and lend its page.

        Raises:
            RollwrightError: An error of `RemoteEnv`.
        """
        env = RemoteEnv(self._address, self._task, **{**self._options, **spec.provider_options})
        await env.__aenter__()
        try:
            await env.reset()
            return BrowserSessionHandle(await env.lend(), env.session_id, self.name, raw=env)
        except BaseException:
            await env.close()
            raise

    async def release(self, handle: BrowserSessionHandle) -> None:
        """Close the session; again does nothing."""
        await handle.raw.close()

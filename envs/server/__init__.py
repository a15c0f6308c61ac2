"""The environment server: sessions with leases that clients use over HTTP.

`SessionTable` holds them; each front (our own routes, Omniboxes, OpenEnv, MCP) only translates.
``python -m envs.server`` serves them, and `RemoteEnv` is used as `envs.open_env` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envs.lazy import lazy_names
from envs.server.sessions import Session, SessionError, SessionTable

if TYPE_CHECKING:
    from envs.server.app import EnvServer
    from envs.server.client import RemoteEnv
    from envs.server.requests import ClientRules

__all__ = ["ClientRules", "EnvServer", "RemoteEnv", "Session", "SessionError", "SessionTable"]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.server.app": ("EnvServer",),
        "envs.server.client": ("RemoteEnv",),
        "envs.server.requests": ("ClientRules",),
    },
)

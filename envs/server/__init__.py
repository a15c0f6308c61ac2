"""The environment server: sessions with leases that clients use over HTTP.

`SessionTable` holds them; each front (our own routes, Omniboxes, OpenEnv, MCP) only translates.
``python -m envs.server`` serves them, and `RemoteEnv` is used as `envs.open_env` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envs.lazy import lazy_names
from envs.server.sessions import SessionError, SessionTable

if TYPE_CHECKING:
    from envs.egress.addresses import is_this_machine
    from envs.server.app import EnvServer
    from envs.server.client import RemoteEnv
    from envs.server.master import Master
    from envs.server.requests import ClientRules
    from envs.server.running import (
        DrainingServer,
        EnvServerOptions,
        add_server_arguments,
        open_server,
        server_options,
    )

__all__ = [
    "ClientRules",
    "DrainingServer",
    "EnvServer",
    "EnvServerOptions",
    "Master",
    "RemoteEnv",
    "SessionError",
    "SessionTable",
    "add_server_arguments",
    "is_this_machine",
    "open_server",
    "server_options",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.egress.addresses": ("is_this_machine",),
        "envs.server.app": ("EnvServer",),
        "envs.server.client": ("RemoteEnv",),
        "envs.server.master": ("Master",),
        "envs.server.requests": ("ClientRules",),
        "envs.server.running": (
            "DrainingServer",
            "EnvServerOptions",
            "add_server_arguments",
            "open_server",
            "server_options",
        ),
    },
)

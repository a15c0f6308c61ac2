"""The environment server: sessions with leases that clients use over HTTP.

`SessionTable` holds them; each front (our own routes, Omniboxes, OpenEnv, MCP) only translates.
"""

from envs.server.sessions import Session, SessionError, SessionTable

__all__ = ["Session", "SessionError", "SessionTable"]

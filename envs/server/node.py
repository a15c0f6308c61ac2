"""An environment server as its master sees it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

logger = logging.getLogger(__name__)

LOOK_DEADLINE = 5.0
"""Seconds in which a node must say how full it is."""


@dataclass(slots=True)
class ServerNode:
    """A server, and its free places when it was last looked at."""

    url: str
    healthy: bool = False
    """It opens sessions."""
    reachable: bool = False
    """It answers; one that drains serves its sessions to their end."""
    gone: bool = False
    """It was removed, and its sessions are lost."""
    capacity: int = 0
    sessions: int = 0

    @property
    def free(self) -> int:
        """Places for further sessions."""
        return self.capacity - self.sessions if self.healthy else 0

    def fail(self) -> None:
        """Count it as not reachable, until it is looked at again."""
        self.healthy = self.reachable = False

    async def look(self, client: httpx.AsyncClient) -> None:
        """Ask how full it is."""
        try:
            answer = await client.get(f"{self.url}/health", timeout=LOOK_DEADLINE)
            state = answer.json()
            self.capacity, self.sessions = int(state["capacity"]), int(state["sessions"])
        except (httpx.TransportError, ValueError, KeyError, TypeError) as error:
            if self.reachable:
                logger.warning("node %s does not answer: %s", self.url, error)
            self.fail()
        else:
            self.reachable = not self.gone
            self.healthy = self.reachable and answer.status_code == 200

    async def metrics(self, client: httpx.AsyncClient, headers: Mapping[str, str]) -> str:
        """Return its metrics; nothing if it does not answer."""
        if not self.reachable:
            return ""
        try:
            answer = await client.get(f"{self.url}/metrics", headers=headers, timeout=LOOK_DEADLINE)
        except httpx.TransportError:
            self.fail()
            return ""
        return answer.text if answer.is_success else ""

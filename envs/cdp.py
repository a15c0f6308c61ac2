"""The DevTools protocol as everything that reads or drives a page sees it. What connects to a browser is in ``envs.browser``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Cdp(Protocol):
    """One session of the DevTools protocol: a tab, a frame of another process, a worker, or the browser itself."""

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a CDP method and return its result."""
        ...

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        """Call ``f`` with the parameters of each such event."""
        ...

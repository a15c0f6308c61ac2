"""What a look says when the browser or we fail: its questions are asked at once, and several may
fail together."""

from __future__ import annotations

from typing import Any

import pytest

from envs.observation import Observer
from envs.types import BrowserError


class Failing:
    """A session whose calls fail as they are told to, at once."""

    def __init__(self, snapshot: Exception, focus: Exception) -> None:
        self.failures = {"DOMSnapshot.captureSnapshot": snapshot, "Page.getFrameTree": focus}

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        raise self.failures[method]

    def on(self, event: Any, f: Any) -> None: ...


async def look(snapshot: Exception, focus: Exception) -> None:
    await Observer().observe(Failing(snapshot, focus), viewport=(800, 600), instruction="")


async def test_a_lost_connection_is_one_error() -> None:
    with pytest.raises(BrowserError, match="the socket is gone"):
        await look(BrowserError("the socket is gone"), BrowserError("the socket is gone"))


async def test_what_is_no_error_of_the_browser_is_not_lost_behind_one() -> None:
    for failures in ((BrowserError("gone"), KeyError("frameTree")), (KeyError("frameTree"), BrowserError("gone"))):
        with pytest.raises(KeyError, match="frameTree"):
            await look(*failures)

"""Ends CSS and script animations as soon as they begin.

Frames are drawn by real time, so how far an animation has come would depend on the machine. An
animation that ends is moved to its end (its events fire and its final style holds, as they would
have); one that does not is stopped at its first picture.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from envs.cdp.messages import ANIMATION_GONE, refused_with

if TYPE_CHECKING:
    from envs.cdp import Cdp

END_MS = 3_600_000.0
"""Later than the end of any animation that ends."""


class Animations:
    """The animations of one page that have begun and were not ended yet.

    ``Animation.enable`` is the caller's.
    """

    def __init__(self, cdp: Cdp) -> None:
        self._cdp = cdp
        self._ending: list[str] = []
        self._endless: list[str] = []
        cdp.on("Animation.animationStarted", self._started)

    async def freeze(self) -> None:
        """Let no animation move by itself, in this document and those to come.

        The time stamps of the browser's own frames stand still with them: only for pages whose
        frames are timers (`document_script`).
        """
        await self._cdp.send("Animation.setPlaybackRate", {"playbackRate": 0})

    async def thaw(self) -> None:
        """Let animations move by themselves again."""
        await self._cdp.send("Animation.setPlaybackRate", {"playbackRate": 1})

    @property
    def ending(self) -> bool:
        """True if an animation has begun whose end the page will be notified of."""
        return bool(self._ending)

    async def end(self) -> bool:
        """Deal with those that have begun; whether there were any that now end."""
        ending, self._ending = self._ending, []
        endless, self._endless = self._endless, []
        calls = []
        if ending:
            calls.append(self._cdp.send("Animation.seekAnimations", {"animations": ending, "currentTime": END_MS}))
        if endless:
            calls.append(self._cdp.send("Animation.setPaused", {"animations": endless, "paused": True}))
            calls.append(self._cdp.send("Animation.seekAnimations", {"animations": endless, "currentTime": 0}))
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and refused_with(answer, ANIMATION_GONE):
                continue  # its element went away between its beginning and now
            if isinstance(answer, BaseException):
                raise answer
        return bool(ending)

    def _started(self, event: dict[str, Any]) -> None:
        animation = event["animation"]
        source = animation.get("source", {})
        if animation.get("viewOrScrollTimeline"):
            return  # moved by scrolling, not by time
        # Without a number of iterations it repeats for ever; a transition has one and needs none.
        endless = animation["type"] != "CSSTransition" and source.get("iterations") is None
        (self._endless if endless else self._ending).append(animation["id"])

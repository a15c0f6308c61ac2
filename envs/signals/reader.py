"""Reads the signals of one tab, one round trip a step."""

from __future__ import annotations

import asyncio
from typing import Any

from envs.cdp import Cdp, main_frame, script_beside
from envs.signals.build import SignalReadings, build
from envs.signals.troubles import Troubles
from envs.types.signals import PageSignals

WORLD = "rollwright-signals"
"""Name of the isolated world of the collector; the page cannot see what runs there."""
MAX_FRAMES = 8
"""Frames that are read each time, the main frame first."""


class SignalReader:
    """Reads the signals of one tab after each step.

    Example::

        reader = await SignalReader.start(cdp)  # before the first navigation
        signals = await reader.read(virtual=True)  # after each step
    """

    def __init__(self, cdp: Cdp, main_frame: str) -> None:
        """Use `start`."""
        self._cdp = cdp
        self._main_frame = main_frame
        self._troubles = Troubles(cdp, main_frame)
        self._worlds: dict[str, str] = {}
        """Frame ids by the collector's context, which a navigation replaces."""
        self._documents = 0
        self._before: dict[str, float] = {}
        self._layers: int | None = None
        self._watched = 0
        """Number of the document whose layers are reported."""
        cdp.on("Runtime.executionContextCreated", self._on_world)
        cdp.on("Runtime.executionContextDestroyed", self._on_world_gone)
        cdp.on("Runtime.executionContextsCleared", lambda _event: self._worlds.clear())
        cdp.on("LayerTree.layerTreeDidChange", self._on_layers)

    @classmethod
    async def start(cls, cdp: Cdp, *, setup: Cdp | None = None) -> SignalReader:
        """Begin to listen to a tab, whatever it shows.

        Args:
            cdp: The tab's session. Its Page, Runtime, Network, Performance, DOM and LayerTree
                domains are enabled.
            setup: Session for the set-up commands, if not ``cdp``: one that replays them when it is
                bound to another socket.
        """
        setup = setup or cdp
        reader = cls(cdp, await main_frame(cdp))
        added = {"source": script_beside(__file__, "collector.js"), "worldName": WORLD, "runImmediately": True}
        await asyncio.gather(
            setup.send("Page.enable"),
            setup.send("Runtime.enable"),
            setup.send("Network.enable"),
            setup.send("Performance.enable", {"timeDomain": "threadTicks"}),
            setup.send("Page.addScriptToEvaluateOnNewDocument", added),
            setup.send("DOM.enable"),
        )
        return reader

    async def watch_layers(self) -> None:
        """Have the layers of the shown document reported, from its next frame on.

        Chromium forgets the watch at every navigation. `read` renews it. To know the layers already
        at the first reading of a document, call this after the navigation and before the
        screenshot.
        """
        if self._watched != self._documents:
            self._watched, self._layers = self._documents, None
            await asyncio.gather(self._cdp.send("LayerTree.disable"), self._cdp.send("LayerTree.enable"))

    async def read(self, *, virtual: bool) -> PageSignals:
        """Return the signals since the last reading.

        Args:
            virtual: True if the page's clock was virtual during the step; values that it cannot
                time are then absent.
        """
        worlds = sorted(self._worlds.items(), key=lambda item: item[1] != self._main_frame)[:MAX_FRAMES]
        asked = [self._ask(context) for context, _ in worlds]
        metrics, watched, *answers = await asyncio.gather(
            self._cdp.send("Performance.getMetrics"), self.watch_layers(), *asked, return_exceptions=True
        )
        for failed in (metrics, watched):
            if isinstance(failed, BaseException):
                raise failed
        counts, troubles = self._troubles.take()
        now = {metric["name"]: metric["value"] for metric in metrics["metrics"]}
        main, why_not = self._main_answer(worlds, answers)
        reading = SignalReadings(
            document=max(self._documents, 1),
            status=self._troubles.status,
            main=main,
            frames=[answer for answer in answers[1:] if isinstance(answer, dict)],
            why_not=why_not,
            metrics=now,
            before=self._before,
            layers=self._layers,
            counts=counts,
            troubles=troubles,
            virtual=virtual,
        )
        self._before = now
        return build(reading)

    async def _ask(self, context: str) -> dict[str, Any]:
        asked = {"expression": "rollwrightSignals()", "uniqueContextId": context, "returnByValue": True}
        answer = await self._cdp.send("Runtime.evaluate", asked)
        value = answer["result"].get("value")
        if not isinstance(value, dict):
            raise LookupError("the collector did not run in it")
        return value

    def _main_answer(self, worlds: list[tuple[str, str]], answers: list[Any]) -> tuple[dict[str, Any] | None, str]:
        if not worlds or worlds[0][1] != self._main_frame:
            return None, "it is being replaced"
        if isinstance(answers[0], dict):
            return answers[0], ""
        return None, str(answers[0]).partition("\n")[0]

    def _on_world(self, event: dict[str, Any]) -> None:
        context = event["context"]
        if context["name"] != WORLD or context["uniqueId"] in self._worlds:
            return  # a session that was bound anew is sent the contexts that exist already
        frame = context["auxData"]["frameId"]
        self._worlds[context["uniqueId"]] = frame
        self._documents += frame == self._main_frame

    def _on_world_gone(self, event: dict[str, Any]) -> None:
        self._worlds.pop(event["executionContextUniqueId"], None)

    def _on_layers(self, event: dict[str, Any]) -> None:
        layers = event.get("layers")
        if layers is not None:
            self._layers = sum(bool(layer.get("drawsContent")) for layer in layers)

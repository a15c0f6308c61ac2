"""Restores ``localStorage`` and IndexedDB of origins into a browser context."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from envs.background import start_background
from envs.browser.process.connection import Connection
from envs.cdp.client import CdpSession
from envs.types import BrowserError

RESTORE = Path(__file__).with_name("restore_stores.js").read_text(encoding="utf-8")

SIZE = (100, 100)
"""Width and height of the tab in CSS pixels; it is not shown."""

BLANK = base64.b64encode(b"<!DOCTYPE html><title></title>").decode("ascii")


async def restore_stores(connection: Connection, context_id: str, stores: Iterable[Mapping[str, Any]]) -> None:
    """Write the stores of origins, each on an empty page in a tab of its own.

    Nothing is requested from the network: all requests of the tab are answered here.

    Args:
        stores: Origins of a storage state, as Playwright writes them.

    Raises:
        BrowserError: The browser refused them. The message has none of their values.
    """
    session = await connection.open_page(context_id, *SIZE)
    try:
        await _write(session, stores)
    finally:
        await connection.browser.send("Target.closeTarget", {"targetId": session.target_id})
        connection.forget(session)


async def _write(cdp: CdpSession, stores: Iterable[Mapping[str, Any]]) -> None:
    answers: set[asyncio.Task[Any]] = set()
    loaded: asyncio.Queue[Any] = asyncio.Queue()

    def answer(event: dict[str, Any]) -> None:
        headers = [{"name": "Content-Type", "value": "text/html"}]
        reply = {"requestId": event["requestId"], "responseCode": 200, "responseHeaders": headers, "body": BLANK}
        start_background(cdp.send("Fetch.fulfillRequest", reply), answers, "an empty page")

    cdp.on("Fetch.requestPaused", answer)
    cdp.on("Page.loadEventFired", loaded.put_nowait)
    await cdp.send("Page.enable")
    await cdp.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]})
    await cdp.send("Runtime.runIfWaitingForDebugger")
    for store in stores:
        gone = await cdp.send("Page.navigate", {"url": f"{store['origin']}/"})
        if gone.get("errorText"):
            raise BrowserError(f"the stores of {store['origin']} are not restored: {gone['errorText']}")
        await loaded.get()
        call = {
            "expression": f"({RESTORE})({json.dumps(store)})",
            "awaitPromise": True,
            "returnByValue": True,
        }
        result = await cdp.send("Runtime.evaluate", call)
        if failed := result.get("exceptionDetails"):
            kind = failed.get("exception", {}).get("className", "an error")
            raise BrowserError(f"the stores of {store['origin']} are not restored: {kind} in the page")

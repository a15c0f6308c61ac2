"""Error messages of Chromium 156's DevTools protocol, by meaning.

Nearly all its error codes are -32000, so the messages tell errors apart. Only messages of the
browser itself count (`CdpError.message`): the text of any other error may hold the same words.
"""

from __future__ import annotations

from typing import Any

from envs.cdp import Cdp, CdpError, ConnectionLost

NODE_GONE = (
    "No node found for given backend id",
    "No node with given id found",
    "Could not find node with given id",
    "Node is detached from document",
    "Cannot find context with specified id",
    "Could not find object with given id",
    "Inspected target navigated or closed",
)
"""A node is not in the page any more, or its page is gone."""
NO_BOX = ("Node does not have a layout object", "Could not compute content quads")
"""A node is not laid out."""
NO_FRAME_BOX = ("compute box model", "No node", "Could not find node")
"""A frame's element is not laid out any more, or has gone."""
NOWHERE = ("No node found at given location",)
"""Nothing is at a point."""
UNFOCUSABLE = ("Element is not focusable",)
NO_CONTEXT = ("Cannot find context",)
"""The document of a JavaScript world was replaced."""
DOCUMENT_REPLACED = (
    "Cannot find context",
    "xecution context",
    "Inspected target navigated or closed",
    "No frame",
)
"""The document was replaced while it was read."""
ANIMATION_GONE = ("Could not find animation with given id",)
"""An animation's element went away between its beginning and now."""
UNKNOWN_METHOD = ("wasn't found", "not supported")
"""The browser has no such method, for example one without a virtual clock."""
ALREADY_IN_EFFECT = ("already in effect",)
"""Another tab of the process has set the language, which holds for the process; or a session before
this one has."""
NO_PICTURE = ("Unable to capture screenshot",)
"""A fresh page has no frame yet."""
NOT_JSON = ("reference chain is too long", "couldn't be returned by value")
"""A value cannot be written as JSON."""
TARGET_GONE = ("Inspected target navigated or closed", "Target closed", "Session with given id not found")
"""A page or a worker ended before it answered."""
NO_SESSION = -32001
"""Chromium's code for a call to a session that has ended."""
BAD_URL = ("invalid URL",)


def refused_with(error: BaseException, messages: tuple[str, ...]) -> bool:
    """True if the browser refused a call with one of these messages."""
    return isinstance(error, CdpError) and any(message in error.message for message in messages)


async def send_unless(
    messages: tuple[str, ...], cdp: Cdp, method: str, params: dict[str, Any]
) -> dict[str, Any] | None:
    """Call a CDP method; ``None`` where the browser refuses it with one of these messages.

    Raises:
        BrowserError: any other refusal, or the browser cannot be reached.
    """
    try:
        return await cdp.send(method, params)
    except CdpError as error:
        if not refused_with(error, messages):
            raise
        return None


def target_gone(error: BaseException) -> bool:
    """True if a call failed because its target or the connection is gone."""
    if isinstance(error, CdpError) and error.code == NO_SESSION:
        return True
    return isinstance(error, ConnectionLost) or refused_with(error, TARGET_GONE)

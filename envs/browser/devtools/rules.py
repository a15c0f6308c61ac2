"""Rules of the calls that a foreign DevTools client may make. Pure: no browser, no socket.

At browser level little is allowed, and only for the client's own context. On a session of its own
page everything is allowed that stays in the page: Chromium's other contexts, its process, the
machine's files and the shared clipboard are out of reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

INVALID_PARAMS, NO_METHOD, REFUSED, NO_SESSION = -32602, -32601, -32000, -32001
"""Error codes of the DevTools protocol."""

PAGE_DOMAINS = frozenset(
    [
        "Accessibility",
        "Animation",
        "Audits",
        "BackgroundService",
        "CSS",
        "CacheStorage",
        "Console",
        "DOM",
        "DOMDebugger",
        "DOMSnapshot",
        "DOMStorage",
        "Debugger",
        "DeviceOrientation",
        "Emulation",
        "EventBreakpoints",
        "FedCm",
        "Fetch",
        "FileSystem",
        "HeadlessExperimental",
        "HeapProfiler",
        "IO",
        "IndexedDB",
        "Input",
        "Inspector",
        "LayerTree",
        "Log",
        "Media",
        "Network",
        "Overlay",
        "Page",
        "Performance",
        "PerformanceTimeline",
        "Preload",
        "Profiler",
        "Runtime",
        "Schema",
        "Security",
        "ServiceWorker",
        "Storage",
        "WebAudio",
        "WebAuthn",
    ]
)
"""Domains that act on a page, its frames, its workers and its context's storage. Not among them:
Tracing, SystemInfo, Memory, Tethering, Extensions, Cast and PWA, which are the whole browser's."""

OF_CONTEXT = frozenset(
    [
        "Browser.grantPermissions",
        "Browser.resetPermissions",
        "Browser.setPermission",
        "Storage.getCookies",
        "Storage.setCookies",
        "Storage.clearCookies",
    ]
)
"""Methods with a ``browserContextId``: the default context, without one, has no owner here."""

WITHOUT_EFFECT = frozenset(["Browser.setDownloadBehavior", "Browser.cancelDownload", "Security.enable", "Log.enable"])
"""Methods that a client sends as it connects, and that are answered without being carried out at
browser level: downloads stay as the pool set them."""

REFUSED_METHODS = {
    "DOM.setFileInputFiles": "it reads files of the browser's machine; give the bytes to the page instead",
    "Emulation.setVirtualTimePolicy": "the clock of a lent page runs in real time",
    "Emulation.addScreen": "screens belong to the whole browser",
    "Emulation.removeScreen": "screens belong to the whole browser",
    "Emulation.updateScreen": "screens belong to the whole browser",
    "Emulation.setPrimaryDisplay": "screens belong to the whole browser",
}
"""Methods of `PAGE_DOMAINS` that reach beyond the page."""

URL_METHODS = frozenset(["Page.navigate", "Network.loadNetworkResource", "Target.createTarget"])
"""Methods that have the browser itself open an address, which no proxy sees if it is a file."""

CLIPBOARD = frozenset(["clipboardReadWrite", "clipboardSanitizedWrite", "clipboard-read", "clipboard-write"])
"""Permissions for the clipboard, which all contexts of a Chromium share."""

MOUSE_METHODS = ("Input.dispatchMouseEvent", "Input.emulateTouchFromMouseEvent")
CLIPBOARD_COMMANDS = ("paste", "copy", "cut", "yank")
CLIPBOARD_KEYS = {"KeyC", "KeyV", "KeyX"}
CONTROL, META, SHIFT = 2, 4, 8
"""Modifier bits of ``Input.dispatchKeyEvent``."""


class CallRefused(Exception):
    """A call that is not passed on; the client gets ``code`` and the message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Rules:
    """The rules for one lent context."""

    def __init__(self, context_id: str, refuse_url: Callable[[str], object | None], *, clipboard: bool) -> None:
        """
        Args:
            context_id: The client's own context.
            refuse_url: Returns a reason if an address may not be opened, else ``None``.
            clipboard: True if no other context shares the browser's clipboard.
        """
        self.context_id = context_id
        self._refuse_url = refuse_url
        self._clipboard = clipboard

    def of_context(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters with the client's own context in the place of the default one.

        Raises:
            CallRefused: They name another context.
        """
        if params.get("browserContextId") not in (None, "", self.context_id):
            raise CallRefused(REFUSED, f"Failed to find browser context with id {params['browserContextId']}")
        return {**params, "browserContextId": self.context_id}

    def check_url(self, url: object) -> None:
        """
        Raises:
            CallRefused: The address may not be opened.
        """
        reason = self._refuse_url(str(url)) if url else None
        if reason is not None:
            raise CallRefused(REFUSED, f"{url} may not be opened: {reason}")

    def for_browser(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the parameters of a call at browser level; ``None`` if it is answered with ``{}``.

        ``Target`` and ``Browser.close`` are the caller's.

        Raises:
            CallRefused: The call is not allowed.
        """
        if method in WITHOUT_EFFECT:
            return None
        if method == "Browser.getVersion":
            return params
        if method not in OF_CONTEXT:
            raise CallRefused(NO_METHOD, f"'{method}' reaches beyond this session's browser context, or wasn't found")
        self._check_permissions(params)
        return self.of_context(params)

    def for_page(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """The same for a call on a session of the client's own page, frame or worker.

        ``Browser`` and `OF_CONTEXT` are for `for_browser`, also there.

        Raises:
            CallRefused: The call is not allowed.
        """
        domain = method.partition(".")[0]
        if method == "Page.setDownloadBehavior":
            return None
        if domain not in PAGE_DOMAINS:
            raise CallRefused(NO_METHOD, f"'{method}' reaches beyond this session's page, or wasn't found")
        if method in REFUSED_METHODS:
            raise CallRefused(REFUSED, f"{method}: {REFUSED_METHODS[method]}")
        if method in URL_METHODS:
            self.check_url(params.get("url"))
        if method == "Input.dispatchDragEvent" and _object(params, "data").get("files"):
            raise CallRefused(REFUSED, f"{method}: files of the browser's machine cannot be dropped")
        if not self._clipboard and uses_clipboard(method, params):
            raise CallRefused(REFUSED, "the clipboard is shared with other episodes: type the text instead")
        return params

    def _check_permissions(self, params: dict[str, Any]) -> None:
        named = {*params.get("permissions", ()), _object(params, "permission").get("name")}
        if not self._clipboard and named & CLIPBOARD:
            raise CallRefused(
                REFUSED, "the clipboard is shared with other episodes: it cannot be opened to one of them"
            )


def _object(params: dict[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name) or {}
    if not isinstance(value, dict):
        raise CallRefused(INVALID_PARAMS, f"{name}: object expected")
    return value


def uses_clipboard(method: str, params: dict[str, Any]) -> bool:
    """True if an input event copies, cuts or pastes.

    The middle button pastes what was selected last in any context (Chromium 156 on Linux).
    """
    if method in MOUSE_METHODS:
        return params.get("button") == "middle"
    if method != "Input.dispatchKeyEvent":
        return False
    commands = [str(command).lower() for command in params.get("commands") or ()]
    if any(command.startswith(CLIPBOARD_COMMANDS) for command in commands):
        return True
    modifiers = params.get("modifiers") or 0
    code, key = params.get("code") or "", str(params.get("key") or "").lower()
    virtual = params.get("windowsVirtualKeyCode")
    letters = code in CLIPBOARD_KEYS or key in ("c", "v", "x") or virtual in (67, 86, 88)
    insert = "Insert" in code or key == "insert" or virtual == 45
    delete = code == "Delete" or key == "delete" or virtual == 46
    return bool(
        (letters and modifiers & (CONTROL | META))
        or (insert and modifiers & (CONTROL | META | SHIFT))
        or (delete and modifiers & SHIFT)
    )

"""Reads evidence for the grading at an episode's end: nodes with their styles, answers to
predicates, downloads.

Reading only. Predicates run in a JavaScript world of their own, which shares the document with the
page and nothing else, and where V8 stops what would have an effect. What cannot be read is recorded
with its reason; what fails in the browser is a `BrowserError`, as in a step.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.cdp import Cdp, isolated_world, main_frame
from envs.cdp.client import CdpError
from envs.cdp.messages import NOT_JSON, refused_with
from envs.types import BrowserError
from envs.types.evidence import DomElement, Download, PageReply

WORLD = "rollwright-evidence"
SCRIPT_SECONDS = 1.0
"""Real seconds that a predicate may take; one that reads a page takes a thousandth."""
MAX_NODES = 20_000
"""Elements of a page that are recorded, ten times those of a large one (2 MB in the trajectory); of
a larger page the first ones are."""
DOWNLOAD_SECONDS = 10.0
"""Real seconds that files which are on their way get to arrive."""
LOOK_SECONDS = 0.05
"""Seconds between looks at the folder."""
QUIET_SECONDS = 0.5
"""Seconds without a new file after which all have come: a click's file is not there at once."""
UNFINISHED = ".crdownload"
NO_EFFECTS = "it would change something, and may only read"
"""Begins the cause of what V8 stopped."""

# Methods of the prototype: a form or an image that is named like a method hides the document's own.
_ASKED = """(() => {
  const $ = (selector) => Document.prototype.querySelector.call(document, selector);
  const $$ = (selector) => Array.from(Document.prototype.querySelectorAll.call(document, selector));
  return (%s
  );
})()"""

_ELEMENT, _DOCUMENT, _FRAGMENT = 1, 9, 11


async def own_world(cdp: Cdp) -> int:
    """Execution context of a JavaScript world of the tab's document that the page knows nothing
    of."""
    return await isolated_world(cdp, WORLD, await main_frame(cdp))


async def ask_page(cdp: Cdp, expressions: Sequence[str]) -> dict[str, PageReply]:
    """Evaluate expressions on the page; return the reply to each."""
    if not expressions:
        return {}
    world = await own_world(cdp)
    return {expression: await _ask(cdp, world, expression) for expression in expressions}


async def _ask(cdp: Cdp, world: int, expression: str) -> PageReply:
    params = {
        "expression": _ASKED % expression,
        "contextId": world,
        "returnByValue": True,
        "throwOnSideEffect": True,
    }
    try:
        # The call's own timeout is counted on the page's clock, which stands still.
        async with asyncio.timeout(SCRIPT_SECONDS):
            answer = await cdp.send("Runtime.evaluate", params)
    except TimeoutError:
        await cdp.send("Runtime.terminateExecution")
        return PageReply(trouble=f"it was stopped after {SCRIPT_SECONDS:g} s", stopped=True)
    except CdpError as error:
        if refused_with(error, NOT_JSON):
            return PageReply(trouble="the value cannot be written as JSON")
        raise
    if "exceptionDetails" in answer:
        cause = script_cause(answer["exceptionDetails"])
        return PageReply(
            trouble=cause, threw=not cause.startswith(NO_EFFECTS) and await _compiles(cdp, world, expression)
        )
    result = answer["result"]
    value = result.get("value")
    if isinstance(value, bool | int | float):
        return PageReply(value=value)
    # A text may be anything that a logged-in page shows, and no predicate: what it says is not
    # kept.
    kinds: dict[type, str] = {str: "a text", list: "a list", dict: "an object", type(None): "null"}
    name = kinds[type(value)] if "value" in result else result.get("unserializableValue", result["type"])
    return PageReply(trouble=f"the expression is {name}; expected true or false")


async def _compiles(cdp: Cdp, world: int, expression: str) -> bool:
    """True if an expression is JavaScript.

    An exception is then a matter of the page.
    """
    params = {"expression": f"() => {_ASKED % expression}", "contextId": world}
    return "exceptionDetails" not in await cdp.send("Runtime.evaluate", params)


def script_cause(details: dict[str, Any]) -> str:
    """Return the first line of an exception, from the protocol's ``exceptionDetails``."""
    exception = details.get("exception", {})
    cause = str(exception.get("description") or exception.get("value") or details.get("text", "an exception")).split(
        "\n"
    )[0]
    if "side-effect" in cause:
        return f"{NO_EFFECTS} ({cause})"
    return cause[:500]


async def read_nodes(cdp: Cdp, styles: Sequence[str]) -> tuple[tuple[DomElement, ...], bool]:
    """The elements of the tab's page, its frames and shadow trees in document order.

    And whether there are more, which are left out.
    """
    params = {"computedStyles": list(styles), "includePaintOrder": False}
    return elements_of(await cdp.send("DOMSnapshot.captureSnapshot", params), styles)


def elements_of(raw: dict[str, Any], styles: Sequence[str]) -> tuple[tuple[DomElement, ...], bool]:
    """`read_nodes` from a raw snapshot. Pure.

    An element without a box has the style ``display: none`` and no other that a fact could ask for.
    """
    strings, elements = raw["strings"], list[DomElement]()
    boxes = [_boxes(document, strings, styles) for document in raw["documents"]]
    hidden = {name: "none" if name == "display" else "" for name in styles}
    cut = False

    def walk(number: int, frame: int | None) -> None:
        nonlocal cut
        nodes = raw["documents"][number]["nodes"]
        inside = _sparse(nodes.get("contentDocumentIndex"))
        pseudo = _sparse(nodes.get("pseudoType"))
        places: dict[int, int | None] = {-1: frame}
        for node, (above, kind) in enumerate(zip(nodes["parentIndex"], nodes["nodeType"], strict=True)):
            places[node] = places[above]
            if kind != _ELEMENT or node in pseudo:
                continue
            if len(elements) >= MAX_NODES:
                cut = True
                return
            written = [strings[index] if index >= 0 else "" for index in nodes["attributes"][node]]
            elements.append(
                DomElement(
                    tag=strings[nodes["nodeName"][node]].lower(),
                    parent=places[above],
                    attributes={name.lower(): value for name, value in zip(written[::2], written[1::2], strict=True)},
                    styles=boxes[number].get(node, hidden) if styles else None,
                )
            )
            places[node] = len(elements) - 1
            if node in inside:
                walk(inside[node], places[node])

    walk(0, None)
    return tuple(elements), cut


def _sparse(table: dict[str, list[int]] | None) -> dict[int, int]:
    return dict(zip(table["index"], table["value"], strict=True)) if table else {}


def _boxes(document: dict[str, Any], strings: list[str], styles: Sequence[str]) -> dict[int, dict[str, str]]:
    """Styles by node; of a node's boxes the first stands for it."""
    layout, of = document["layout"], dict[int, dict[str, str]]()
    for node, row in zip(layout["nodeIndex"], layout["styles"], strict=True):
        if row and node not in of:
            of[node] = {name: strings[index] for name, index in zip(styles, row, strict=True) if index >= 0}
    return of


class DownloadFolder:
    """The download folder of one episode.

    Made at its reset, `remove`d after it, when its pages are gone.
    """

    def __init__(self, browser: Cdp, context_id: str, path: Path) -> None:
        self._browser = browser
        self._context_id = context_id
        self._path = path

    @classmethod
    def make(cls, browser: Cdp, context_id: str, within: Path | None = None) -> DownloadFolder:
        """Make a folder for the downloads of a context; nothing goes there before `allow`.

        Args:
            browser: The session of the browser itself.
            within: Folder to make it in; the system's temporary folder if not given.

        Raises:
            BrowserError: The folder cannot be made.
        """
        try:
            path = Path(tempfile.mkdtemp(prefix="rollwright-downloads-", dir=within)).resolve()
        except OSError as error:
            raise BrowserError(f"the folder for an episode's downloads cannot be made: {error}") from error
        return cls(browser, context_id, path)

    async def allow(self) -> None:
        """Have the context's downloads kept here."""
        await self._behave("allow")

    async def deny(self) -> None:
        """Deny its downloads again, before the context is used by another episode."""
        await self._behave("deny")

    async def read(self) -> tuple[tuple[Download, ...], bool]:
        """The files that have arrived, by name; those on their way are waited for.

        And whether there are some that have not arrived.

        Raises:
            BrowserError: they cannot be read.
        """
        now = time.monotonic()
        end, since, before = now + DOWNLOAD_SECONDS, now, None
        while True:
            now = time.monotonic()
            late = now >= end
            try:
                names = {file.name for file in self._path.iterdir()}
                if names != before or any(name.endswith(UNFINISHED) for name in names):
                    since, before = now, names
                if late or now >= since + QUIET_SECONDS:
                    return await asyncio.to_thread(read_files, self._path)
            except OSError as error:
                # The browser gives a file its last name when it is whole: between our look at the
                # names and at the file, say.
                if late or not isinstance(error, FileNotFoundError) or not self._path.is_dir():
                    raise BrowserError(f"the episode's downloads cannot be read: {error}") from error
            await asyncio.sleep(LOOK_SECONDS)

    async def remove(self) -> None:
        """Throw the files away."""
        await asyncio.to_thread(shutil.rmtree, self._path, ignore_errors=True)

    async def _behave(self, behavior: str) -> None:
        where = {"downloadPath": str(self._path)} if behavior == "allow" else {}
        params = {"behavior": behavior, "browserContextId": self._context_id, **where}
        await self._browser.send("Browser.setDownloadBehavior", params)


def read_files(folder: Path) -> tuple[tuple[Download, ...], bool]:
    """Read the whole files of a folder of downloads; also whether one is still being written."""
    files, unfinished = [], False
    for file in sorted(folder.iterdir()):
        unfinished = unfinished or file.suffix == UNFINISHED
        if file.suffix == UNFINISHED or file.is_symlink() or not file.is_file():
            continue
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        files.append(Download(name=file.name, size=file.stat().st_size, sha256=digest))
    return tuple(files), unfinished

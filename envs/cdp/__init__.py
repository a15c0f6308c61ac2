"""The Chrome DevTools Protocol (CDP): sessions, codecs and transports.

What connects to a browser is in ``envs.browser``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.types import BrowserError


class CdpError(BrowserError):
    """The browser answered a call with an error."""

    def __init__(self, method: str, message: str, code: int = 0) -> None:
        """``message`` and ``code`` are the browser's own; 0 where it gave none."""
        super().__init__(method, message, code)
        self.method, self.message, self.code = method, message, code

    def __str__(self) -> str:
        return f"{self.method}: {self.message}"


class ConnectionLost(BrowserError):
    """The wire is gone; the call may or may not have had an effect."""


class Cdp(Protocol):
    """One DevTools session: of a tab, an out-of-process frame, a worker, or the browser."""

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a CDP method and return its result.

        Raises:
            CdpError: The browser refused the call.
            BrowserError: The browser cannot be reached.
        """
        ...

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        """Call ``f`` with the parameters of each such event."""
        ...


class Rows(Sequence[list[int]]):
    """Lists of integers, many of them equal, as a snapshot has them."""

    def __init__(self, distinct: list[list[int]], place: NDArray[np.int64]) -> None:
        self.distinct = distinct
        """The distinct lists."""
        self.place = place
        """Index into ``distinct`` for each list."""

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, key: Any) -> Any:
        place = self.place[key]
        return [self.distinct[one] for one in place] if isinstance(key, slice) else self.distinct[place]

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.distinct.__getitem__, self.place.tolist())


class Integers(list[int]):
    """A list of integers of a snapshot, never changed."""

    @cached_property
    def array(self) -> NDArray[np.int64]:
        """The integers as a read-only array."""
        array = np.fromiter(self, np.int64, len(self))
        array.setflags(write=False)
        return array


class Rectangles(Sequence[list[float]]):
    """Lists of four numbers, as a snapshot has them."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        """Array of shape (n, 4)."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        return self.values[key].tolist()

    def __iter__(self) -> Iterator[list[float]]:
        return iter(self.values.tolist())


def binary(value: str | bytes | bytearray) -> bytes:
    """Decode a binary result: bytes over a pipe, base64 over a socket."""
    return base64.b64decode(value) if isinstance(value, str) else bytes(value)


@cache
def script_beside(module: str, name: str) -> str:
    """Read the JavaScript file of this name beside a module (its ``__file__``)."""
    return (Path(module).parent / name).read_text(encoding="utf-8")


async def main_frame(cdp: Cdp) -> str:
    """Return the id of a tab's main frame."""
    return str((await cdp.send("Page.getFrameTree"))["frameTree"]["frame"]["id"])


async def isolated_world(cdp: Cdp, name: str, frame: str) -> int:
    """Return the execution context of a JavaScript world isolated from the page.

    It shares the document with the page and nothing else: the page neither sees it nor can change
    what is in it. Chromium gives the same one for the same name and frame, until the frame has
    another document.
    """
    made = await cdp.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": name})
    return int(made["executionContextId"])

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
    """The wire is gone; whether the call had an effect is not known."""


class Cdp(Protocol):
    """One DevTools session: of a tab, an out-of-process frame, a worker, or the browser."""

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a CDP method and return its result.

        Raises:
            CdpError: the browser refused it.
            BrowserError: it cannot be reached.
        """
        ...

    def on(self, event: Any, f: Callable[..., Any]) -> None:
        """Call ``f`` with the parameters of each such event."""
        ...


class Rows(Sequence[list[int]]):
    """Lists of integers, many of them equal, as a snapshot has them."""

    def __init__(self, distinct: list[list[int]], place: NDArray[np.int64]) -> None:
        self.distinct = distinct
        """Each of them once."""
        self.place = place
        """For each list, which of the distinct ones it is."""

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, at: Any) -> Any:
        return (
            [self.distinct[one] for one in self.place[at]] if isinstance(at, slice) else self.distinct[self.place[at]]
        )

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.distinct.__getitem__, self.place.tolist())


class Integers(list[int]):
    """A list of integers of a snapshot. Nobody changes it."""

    @cached_property
    def array(self) -> NDArray[np.int64]:
        """The same as an array."""
        array = np.fromiter(self, np.int64, len(self))
        array.setflags(write=False)
        return array


class Rectangles(Sequence[list[float]]):
    """Lists of four numbers, as a snapshot has them: a sequence of lists."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        """(n, 4)"""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: Any) -> Any:
        return self.values[at].tolist()

    def __iter__(self) -> Iterator[list[float]]:
        return iter(self.values.tolist())


def binary(value: str | bytes | bytearray) -> bytes:
    """What a method answers as bytes over a pipe and as base64 over a socket."""
    return base64.b64decode(value) if isinstance(value, str) else bytes(value)


@cache
def script_beside(module: str, name: str) -> str:
    """The JavaScript file of this name beside a module (its ``__file__``)."""
    return (Path(module).parent / name).read_text(encoding="utf-8")


async def main_frame(cdp: Cdp) -> str:
    """Id of a tab's own frame."""
    return str((await cdp.send("Page.getFrameTree"))["frameTree"]["frame"]["id"])


async def isolated_world(cdp: Cdp, name: str, frame: str) -> int:
    """Execution context of a frame's JavaScript world that is isolated from the page.

    It shares the document with the page and nothing else: the page neither sees it nor can change what
    is in it. Chromium gives the same one for the same name and frame, until the frame has another document.
    """
    made = await cdp.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": name})
    return int(made["executionContextId"])

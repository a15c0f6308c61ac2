"""Prepares a page so that equal episodes look equal on every machine.

`prepare` sets a tab up: size, scale, language, time zone, colour scheme, generic fonts, and a
script for every document. Time is held by `VirtualClock`; the script takes care of what a held
clock does not reach (frames, a document's own zero of time, time stamps of events) and, where
asked, of random numbers. Workers have their own random numbers, and ``crypto.subtle`` makes true
ones.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.cdp import script_beside
from envs.cdp.messages import ALREADY_IN_EFFECT, send_unless

if TYPE_CHECKING:
    from envs.cdp import Cdp

BASE_STYLE = """*, *::before, *::after { caret-color: transparent !important; scroll-behavior: auto !important; }
@view-transition { navigation: none; }"""
"""A blinking caret and a scroll that is under way make equal pages look unequal. Animations are
ended by the clock, so that their events come. A transition between documents waits for frames that
a stopped clock does not draw, and no document comes."""

FONT_FAMILIES = {
    "standard": "Liberation Serif",
    "serif": "Liberation Serif",
    "sansSerif": "Liberation Sans",
    "fixed": "Liberation Mono",
    "cursive": "Liberation Serif",
    "fantasy": "Liberation Sans",
    "math": "Liberation Serif",
}
"""The generic families of CSS, which else are what the machine's configuration says. Liberation has
the widths of the fonts that pages are made for (Times New Roman, Arial, Courier New) and is
installed by ``make setup``."""

FONTS_CONF = Path(__file__).parent / "fonts.conf"
"""Value of ``FONTCONFIG_FILE`` in Chromium's environment, so that named families are the same on
every machine."""

_SET_METRICS = "Emulation.setDeviceMetricsOverride"

_BEHIND = secrets.token_hex(8)
"""Name of an event that no page knows."""

CORNER = 16
"""Side in CSS pixels of what is drawn of a page of which no pictures are made."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks and behaviour of pages, the same on every machine."""

    viewport: tuple[int, int]
    """Width and height in CSS pixels."""
    scale: float = 1.0
    """Device pixels per CSS pixel."""
    mobile: bool = False
    style: str = ""
    """The site's style sheet."""
    locale: str = "en-US"
    timezone: str = "UTC"
    seed: int | None = None
    """Seed of ``Math.random`` and ``crypto``; ``None`` leaves them random."""
    drawn: bool = True
    """Pictures will be made. Without, only a corner of the page is drawn, which takes a fifth off a
    step. The page cannot tell, but a wheel can: see `drawn_whole`."""
    virtual_time: bool = True
    """Frames and time stamps follow the page's clock."""
    dates_ahead: float = 0.0
    """Milliseconds by which dates are ahead of that clock (`PageDates.ahead`)."""


def document_script(*, seed: int | None = None, virtual_time: bool = True, dates_ahead: float = 0.0) -> str:
    """The script for every document, for ``Page.addScriptToEvaluateOnNewDocument``."""
    clock = (
        f"({script_beside(__file__, 'page_clock.js')})({json.dumps(_BEHIND)}, {round(dates_ahead)})"
        if virtual_time
        else "null"
    )
    return f"({script_beside(__file__, 'determinism.js')})({json.dumps({'seed': seed})}, {clock});"


def worker_script() -> str:
    """The script for every worker whose clock is virtual, before its own."""
    return f"({script_beside(__file__, 'page_clock.js')})('', 0); 0"


def dates_script(milliseconds: float) -> str:
    """Sets a document's dates ahead of its clock, from a world of its own; never back."""
    return f"dispatchEvent(new CustomEvent({json.dumps(_BEHIND)}, {{detail: {round(milliseconds)}}})); 0"


async def prepare(cdp: Cdp, looks: Looks) -> None:
    """Set a tab up, before it loads anything.

    Raises:
        Exception: whatever the session raises when the tab is gone.
    """
    media = [{"name": "prefers-color-scheme", "value": "light"}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    source = document_script(
        seed=looks.seed, virtual_time=looks.virtual_time, dates_ahead=looks.dates_ahead
    ) + _style_script(looks.style)
    await cdp.send("Page.enable")
    await asyncio.gather(
        cdp.send(_SET_METRICS, _metrics(looks)),
        send_unless(ALREADY_IN_EFFECT, cdp, "Emulation.setLocaleOverride", {"locale": looks.locale}),
        cdp.send("Emulation.setTimezoneOverride", {"timezoneId": looks.timezone}),
        cdp.send("Emulation.setEmulatedMedia", {"features": media}),
        cdp.send("Page.setFontFamilies", {"fontFamilies": FONT_FAMILIES}),
        cdp.send("Page.addScriptToEvaluateOnNewDocument", {"source": source}),
    )


@asynccontextmanager
async def drawn_whole(cdp: Cdp, looks: Looks) -> AsyncIterator[None]:
    """Has the whole of a page drawn meanwhile, of which else only a corner is.

    Needed to turn the wheel: outside of what is drawn Chromium does not look for what is under the
    mouse, and scrolls the page itself. After an error inside, the page stays drawn whole until the
    next time, which costs some time and changes nothing.
    """
    if looks.drawn:
        yield
        return
    await cdp.send(_SET_METRICS, _metrics(replace(looks, drawn=True)))
    yield
    await cdp.send(_SET_METRICS, _metrics(looks))


def _metrics(looks: Looks) -> dict[str, Any]:
    width, height = looks.viewport
    metrics: dict[str, Any] = {
        "width": width,
        "height": height,
        "deviceScaleFactor": looks.scale,
        "mobile": looks.mobile,
    }
    if not looks.drawn:
        metrics["viewport"] = {"x": 0, "y": 0, "width": CORNER, "height": CORNER, "scale": 1}
    return metrics


def _style_script(style: str) -> str:
    """Adds the style sheet to a document, and keeps it where the page sets its own in place of
    it."""
    sheet = json.dumps(f"{BASE_STYLE}\n{style}")
    return f"({script_beside(__file__, 'style.js')})({sheet});"

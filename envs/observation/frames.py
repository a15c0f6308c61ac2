"""Frames of a page that can be seen; a captcha is a frame of another site over the page."""

from __future__ import annotations

from urllib.parse import urljoin

from envs.observation.dom import Dom
from envs.observation.occlusion import Scene
from envs.observation.options import URL_CHARS
from envs.observation.text_utils import shorten

MIN_FRAME = 20.0
"""Minimum visible width and height of a frame in CSS pixels. Smaller frames are there for their
scripts, not for people."""


def seen_frames(dom: Dom, scene: Scene) -> tuple[str, ...]:
    """Return the addresses of the frames that are partly in the viewport.

    Each frame gives the address of its document and that of its ``src``, since a frame that may not
    be reached shows the browser's own page. Puzzles that wait for their turn are in the page all
    the time, hidden or far outside of the viewport; they are left out.
    """
    if len(dom.documents) == 1:
        return ()
    clear, addresses = dom.transparent, dict[str, None]()
    for first, url in zip(dom.documents[1:], dom.urls[1:], strict=True):
        frame = dom.parent[first]
        box = dom.box_of[frame] if frame >= 0 else -1
        if box < 0 or box in clear or dom.hidden[box]:
            continue
        left, top, right, bottom = dom.rects[box]
        low_x, low_y, high_x, high_y = scene.clips[box]
        if min(min(right, high_x) - max(left, low_x), min(bottom, high_y) - max(top, low_y)) < MIN_FRAME:
            continue
        given = _absolute(dom.url, dom.attribute(frame, "src"))
        addresses |= dict.fromkeys(shorten(address, URL_CHARS) for address in (url, given) if address)
    return tuple(addresses)


def _absolute(page: str, given: str | None) -> str:
    try:
        return urljoin(page, given.strip()) if given else ""
    except ValueError:
        return ""  # no address; the browser loads nothing for it

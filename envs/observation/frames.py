"""Which frames of a page can be seen, and where they are from: a captcha is a frame of somebody else over the page."""

from __future__ import annotations

from urllib.parse import urljoin

from envs.observation.dom import Dom
from envs.observation.occlusion import Scene
from envs.observation.options import URL_CHARS
from envs.observation.text_utils import shorten

MIN_FRAME = 20.0
"""CSS pixels that must be seen of a frame in both directions: less is there for its scripts, not for people."""


def seen_frames(dom: Dom, scene: Scene) -> tuple[str, ...]:
    """Addresses of the frames of which something is in the viewport: of the documents in them, and those that the page gives them, since a
    frame that may not be reached shows the browser's own page.

    Puzzles that wait for their turn are in the page all the time, hidden or far outside of it; they are not told.
    """
    if len(dom.documents) == 1:
        return ()
    clear, found = dom.transparent, dict[str, None]()
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
        found |= dict.fromkeys(shorten(each, URL_CHARS) for each in (url, given) if each)
    return tuple(found)


def _absolute(page: str, given: str | None) -> str:
    try:
        return urljoin(page, given.strip()) if given else ""
    except ValueError:
        return ""  # no address; the browser loads nothing for it

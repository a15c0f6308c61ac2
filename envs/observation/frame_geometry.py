"""Places of frames' documents in the page.

A document lies inside of the border and the padding of its frame element, under all transforms
around it. A snapshot says how large the element is and how large the document thinks it is, not
what lies between. Where that is the border alone, and nothing around the frame can turn or mirror
it (only stacking contexts do), the place is certain. Otherwise the page is asked (`content_quads`),
which few pages make necessary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from envs.cdp import Cdp
from envs.cdp.messages import NO_FRAME_BOX, send_unless
from envs.observation.dom import LEFT, TOP, Dom, Rects, pixels

Quad = Sequence[float]
"""The x and y of four corners, clockwise from the top left, in CSS pixels of the main viewport."""

TOLERANCE = 1.0
"""Largest difference in CSS pixels between a frame and its document that rounding explains."""


async def content_quads(cdp: Cdp, frames: Iterable[int]) -> dict[int, Quad]:
    """Return the content quads of frame elements by backendNodeId.

    Frames that have gone meanwhile are left out.
    """

    async def ask(frame: int) -> tuple[int, Quad] | None:
        answer = await send_unless(NO_FRAME_BOX, cdp, "DOM.getBoxModel", {"backendNodeId": frame})
        return (frame, answer["model"]["content"]) if answer else None

    return dict(quad for quad in await asyncio.gather(*map(ask, frames)) if quad is not None)


def place(rects: Rects, inner: NDArray[np.float64], quad: Quad) -> Rects:
    """Return rectangles of a document as they are seen in the main viewport.

    A turned rectangle is replaced by the upright rectangle around it.

    Args:
        rects: (n, 4) in the document's viewport, which is ``inner``.
        quad: Content quad of the frame.
    """
    corners = np.array(quad, dtype=np.float64).reshape(4, 2)
    # The columns are the moves for one pixel to the right and one pixel down.
    turn = np.stack([corners[1] - corners[0], corners[3] - corners[0]], axis=1) / (inner[2:] - inner[:2])
    middles = (rects[:, :2] + rects[:, 2:]) / 2 @ turn.T + corners[0]
    halves = (rects[:, 2:] - rects[:, :2]) / 2 @ np.abs(turn).T
    return np.hstack([middles - halves, middles + halves])


def guess(dom: Dom, frame: int, inner: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """Guess the top left corner of a frame's content, and tell whether the guess is certain.

    It assumes no transform and an even padding.
    """
    box = dom.box_of[frame]
    if box < 0:
        return np.zeros(2), True
    outer = dom.rects[box]
    border = np.array([pixels(dom.style(frame, column)) for column in (LEFT, TOP)])
    rest = (outer[2:] - outer[:2]) - (inner[2:] - inner[:2]) - 2 * border
    upright = next(dom.stacking_around(box), -1) < 0
    return outer[:2] + border + np.maximum(0.0, rest / 2), upright and bool((np.abs(rest) <= TOLERANCE).all())

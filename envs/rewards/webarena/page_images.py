"""``page_image_query`` of VisualWebArena: the pictures of a page after the episode.

The pictures are read before the browser is given back, at the addresses of their ``src`` and, as in
the benchmark, without the episode's log-in. Their likeness to others (``eval_fuzzy_image_match``)
is measured then; for questions about them (``eval_vqa``) they are kept small, for the judge. The
benchmark skips a picture that it cannot read; here a check that hangs on one is unavailable.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TypeVar

from PIL import Image
from pydantic import BaseModel, ConfigDict

from envs.rewards.webarena.match import OR
from envs.rewards.webarena.program import LAST, PageAccess
from envs.rewards.webarena.similarity import opened, picture_similarity
from envs.sites.pictures import PictureReader
from envs.types import BrowserError, SiteError
from envs.types.evidence import PageText
from envs.types.webarena import PLACEHOLDER, EvalType, ImageCheck, WebArenaEval

T = TypeVar("T")

MAX_PICTURES = 40
"""Pictures of a page that are compared with others."""
MAX_ASKED = 16
"""Pictures that one question is about."""
ASKED_SIDE = 448
"""Longest side in pixels of a picture that the judge sees."""
MAX_SHOWN = 200

_LIST = """(selector => {
  const nodes = selector ? [...document.querySelectorAll(selector)] : [...document.images];
  const images = nodes.flatMap(one => one.tagName === "IMG" ? [one] : [...one.querySelectorAll("img")]);
  return images.map(one => new URL(one.getAttribute("src") ?? "", location.href).href);
})(%s)"""


class SeenPictures(BaseModel):
    """Pictures of a page, as one check needs them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int
    """Pictures on the page, each address once."""
    unread: tuple[str, ...] = ()
    """Reasons why some of them, or the pictures to compare with, could not be read."""
    likeness: float | None = None
    """Highest similarity to one of the pictures to compare with."""
    pictures: tuple[str, ...] = ()
    """Base64 of JPEG files, where a question is about them."""


async def read_images(
    evaluators: WebArenaEval, page: PageAccess, last_url: str, reader: PictureReader, *, last: bool
) -> dict[int, PageText]:
    """Read the pictures for the checks of ``page_image_query``, by the checks' numbers.

    Args:
        last: Read for the checks of the ``last`` page, which nothing may have navigated yet, or for
            all others.
    """
    if EvalType.PAGE_IMAGE_QUERY not in evaluators.eval_types:
        return {}
    checks = [(number, one) for number, one in enumerate(evaluators.page_image_query)]
    return {
        number: await _read(check, page, last_url, reader)
        for number, check in checks
        if (check.eval_image_url == LAST) == last
    }


async def _read(check: ImageCheck, page: PageAccess, last_url: str, reader: PictureReader) -> PageText:
    address = last_url if check.eval_image_url == LAST else check.eval_image_url
    if (placeholder := PLACEHOLDER.search(address)) is not None:
        return PageText(
            address=address, trouble=f"the address of {placeholder.group()} is not known; give tasks.addresses"
        )
    try:
        if check.eval_image_url != LAST:
            await page.goto(address)
        listed = await page.evaluate(_LIST % json.dumps(check.eval_image_class.strip()))
    except (BrowserError, SiteError) as error:
        return PageText(address=address, trouble=f"{type(error).__name__}: {error}")
    names = list(dict.fromkeys(map(str, listed if isinstance(listed, list) else [])))
    seen = await _looked_at(check, names, reader)
    return PageText(address=address, text=seen.model_dump_json(exclude_defaults=True))


async def _looked_at(check: ImageCheck, names: Sequence[str], reader: PictureReader) -> SeenPictures:
    unread = [f"the page has {len(names)} pictures; {MAX_PICTURES} were read"] if len(names) > MAX_PICTURES else []
    pictures = await _all(names[:MAX_PICTURES], reader, unread)
    likeness: float | None = None
    if pictures and check.eval_fuzzy_image_match:
        wanted = await _all(check.eval_fuzzy_image_match.split(OR), reader, unread)
        for first in wanted:
            for second in pictures:
                value = await asyncio.to_thread(_caught, lambda a=first, b=second: picture_similarity(a, b), unread)
                likeness = value if likeness is None or (value is not None and value > likeness) else likeness
    kept: list[str] = []
    if check.eval_vqa:
        shown = [await asyncio.to_thread(_caught, lambda one=one: _small(one), unread) for one in pictures[:MAX_ASKED]]
        kept = [one for one in shown if one]
        if len(pictures) > MAX_ASKED:
            unread.append(f"{len(pictures)} pictures were read; {MAX_ASKED} are asked about")
    return SeenPictures(count=len(names), unread=tuple(unread), likeness=likeness, pictures=tuple(kept))


async def _all(names: Sequence[str], reader: PictureReader, unread: list[str]) -> list[bytes]:
    pictures = []
    for name in names:
        try:
            data = await reader.read(name)
        except SiteError as error:
            unread.append(str(error)[:MAX_SHOWN])
        else:
            pictures.append(data)
    return pictures


def _caught(work: Callable[[], T], unread: list[str]) -> T | None:
    try:
        return work()
    except ValueError as error:  # no picture, such as a drawing in SVG
        unread.append(str(error)[:MAX_SHOWN])
        return None


def _small(data: bytes) -> str:
    picture = opened(data).convert("RGBA")
    picture.thumbnail((ASKED_SIDE, ASKED_SIDE))
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    file = BytesIO()
    white.convert("RGB").save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue()).decode("ascii")


def seen_pictures(seen: PageText) -> SeenPictures:
    """Return the pictures that `read_images` has read."""
    return SeenPictures.model_validate_json(seen.text)


def compare_likeness(check: ImageCheck, seen: SeenPictures) -> tuple[float | None, str]:
    """Return 1 or 0, and the evidence; ``None`` if it hangs on what was not read. Pure."""
    if seen.likeness is not None and seen.likeness > check.ssim_threshold:
        return (
            1.0,
            f"a picture is alike ({seen.likeness:.3f} > {check.ssim_threshold:g}): {check.eval_fuzzy_image_match}",
        )
    if seen.unread:
        return None, "; ".join(seen.unread)[: 2 * MAX_SHOWN]
    if not seen.count:
        return 0.0, f"the page has no picture at {check.eval_image_class!r}"
    return 0.0, f"no picture is alike ({seen.likeness:.3f}): {check.eval_fuzzy_image_match}"

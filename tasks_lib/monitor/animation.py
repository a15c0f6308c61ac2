"""An episode as a GIF: each page as the policy saw it, with the point of its action."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from envs.types import StorageError
from training.ledger.store import RunStore

FRAME_MS = 1200
"""Milliseconds that a step is shown."""
LAST_MS = 3000
MAX_SIDE = 960
"""Most pixels of a frame's longer side."""
CAPTION = 34
"""Pixels of the line below the page."""
INK, PAPER, RING = "#1c1f22", "#ffffff", "#c2500a"


def animation(store: RunStore, episode: dict[str, Any]) -> bytes:
    """Return the GIF of an episode.

    Args:
        episode: Values of the episode (`tasks_lib.report.episodes.episode_values`).

    Raises:
        StorageError: no screenshot of it can be read.
    """
    steps = episode["steps"]
    frames = [_frame(store, step, f"{number}. {step['say']}") for number, step in enumerate(steps, start=1)]
    final = episode["final"]
    if final and final["shot"]:
        score = "no reward" if episode["score"] is None else f"reward {episode['score']:.2f}"
        frames.append(_frame(store, {**final, "point": None}, f"{episode['stop']}, {score}"))
    pages = [frame for frame in frames if frame is not None]
    if not pages:
        raise StorageError(f"episode {episode['id']} has no screenshot that can be read: there is nothing to show")
    size = max(page.width for page in pages), max(page.height for page in pages)
    shown = [_on_paper(page, size) for page in pages]
    content = BytesIO()
    times = [FRAME_MS] * (len(shown) - 1) + [LAST_MS]
    shown[0].save(content, "GIF", save_all=True, append_images=shown[1:], duration=times, loop=0)
    return content.getvalue()


def _frame(store: RunStore, step: dict[str, Any], caption: str) -> Image.Image | None:
    """Return one page with its caption; ``None`` if its screenshot is lost."""
    try:
        picture = Image.open(BytesIO(store.blob(step["shot"]))).convert("RGB")
    except (StorageError, OSError):
        return None
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    if step["point"] is not None:
        width, height = step["viewport"]
        x, y = step["point"][0] * picture.width / width, step["point"][1] * picture.height / height
        ring = ImageDraw.Draw(picture)
        for radius, colour in ((12, PAPER), (10, RING), (2, RING)):
            ring.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=3)
    framed = Image.new("RGB", (max(picture.width, 320), picture.height + CAPTION), PAPER)
    framed.paste(picture)
    font = ImageFont.load_default(15)
    ImageDraw.Draw(framed).text((8, picture.height + 8), " ".join(caption.split())[:90], fill=INK, font=font)
    return framed


def _on_paper(page: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return a page on paper of the size that all frames have."""
    paper = Image.new("RGB", size, PAPER)
    paper.paste(page)
    return paper

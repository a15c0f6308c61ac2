"""A prompt as token ids, made by the renderer for the trainer and for engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt with its images' placeholders, in the two forms that engines take."""

    ids: tuple[int, ...]
    """Token ids of the prompt, image placeholders expanded: the trainer trains on these."""
    short_ids: tuple[int, ...]
    """Token ids with one placeholder for each image, for servers that expand them themselves."""
    image_places: tuple[tuple[int, int], ...]
    """(offset, length) of each image's placeholders in ``ids``, in the order of the images."""

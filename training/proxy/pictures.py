"""Images of a request: from ``data:`` addresses to the JPEGs that engine and trainer take."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from io import BytesIO

from PIL import Image, UnidentifiedImageError

from training.proxy.requests import RefusedCall
from training.serving.engine import Picture

JPEG_QUALITY = 90
"""JPEG quality of images that are written anew, of 100; as of rollouts' screenshots."""
EXIF_ORIENTATION = 0x0112
"""Tag of a photograph's orientation. Some libraries turn the image by it and others do not."""

MIN_SIDE, MAX_RATIO = 32, 200
"""Bounds of an image's sides, in pixels, and of their ratio. LLaMA-Factory gives other images
another shape, and servers do not."""

FittingSize = Callable[[tuple[int, int]], tuple[int, int]]
"""Returns the size to which an image of (width, height) is scaled."""


def read_picture(url: str, param: str, fitting_size: FittingSize) -> Picture:
    """Return the image of a ``data:`` address as the policy sees it.

    An RGB JPEG within the pixel budget keeps its bytes. Any other image is scaled and written anew,
    so that engine, server and trainer read the same pixels.

    Args:
        param: Path of the image in the request, for errors.

    Raises:
        RefusedCall: The address is no ``data:`` address, or its content no image.
    """
    head, comma, content = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise RefusedCall(
            f"{param}: give the image as data:image/jpeg;base64,…; other addresses ({url[:40]!r}) are not opened",
            code="invalid_image_url",
            param=param,
        )
    try:
        data = base64.b64decode(content, validate=True)
        with Image.open(BytesIO(data)) as image:
            image.load()
            size: tuple[int, int] = image.size
            fitted = fitting_size(size)
            if min(fitted) < MIN_SIDE or max(fitted) > MAX_RATIO * min(fitted):
                raise ValueError(
                    f"{size[0]}x{size[1]} pixels; both sides need {MIN_SIDE}, and their ratio is at most {MAX_RATIO}"
                )
            turned = image.getexif().get(EXIF_ORIENTATION, 1) != 1
            if image.format == "JPEG" and image.mode == "RGB" and fitted == size and not turned:
                return Picture(data, size)
            with BytesIO() as written:
                rgb = image.convert("RGB")
                scaled = rgb if fitted == size else rgb.resize(fitted, Image.Resampling.LANCZOS)
                scaled.save(written, "JPEG", quality=JPEG_QUALITY)
                return Picture(written.getvalue(), fitted)
    except (
        binascii.Error,
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,  # Pillow, of a broken PNG
        ValueError,
    ) as error:
        raise RefusedCall(
            f"{param}: the image cannot be read ({type(error).__name__}: {str(error)[:200]})",
            code="invalid_image",
            param=param,
        ) from error

"""Design2Code's score of a built page against its reference.

How like its reference a built page looks (arXiv 2403.03163): text blocks matched, their texts,
places and colours, and the picture as a whole.

The fifth part is CLIP's similarity in the paper. CLIP needs weights, so it is there only when a
function for it is given; otherwise SSIM takes its place and goes by its own name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from envs.rewards.design2code.colour import difference
from envs.rewards.design2code.matching import BlockMatch, BlockPair, match_blocks
from envs.rewards.design2code.records import PageBlocks
from envs.rewards.design2code.ssim import Image, ssim
from envs.types import JudgeError, RewardPart
from envs.types.record import Record

Clip = Callable[[Image, Image], float]
"""Cosine of the CLIP embeddings of two screenshots, reference first. Painting over the text before
is its business."""


class DesignScore(Record):
    """The parts, each in [0, 1], and their mean."""

    block_match: float | None
    """Share of the text's area, of both pages, that has a partner."""
    text: float | None
    position: float | None
    colour: float | None
    """These three are means over the matched blocks, 0 when there are none. The four are ``None``
    when neither page has text."""
    visual: float | None
    """``None`` without screenshots."""
    visual_name: Literal["ssim", "clip"] | None
    final: float | None
    """Mean of the parts that there are; ``None`` without any."""
    matched: int
    missing: int
    """Blocks of the reference without a partner."""
    extra: int
    """Blocks of the built page without a partner."""

    def part(self, weight: float = 1.0) -> RewardPart:
        """Make the part of a reward bundle named ``design2code``."""
        parts = {name: getattr(self, name) for name in ("block_match", "text", "position", "colour")}
        if self.visual_name is not None:
            parts[self.visual_name] = self.visual
        seen = [f"{name} {'not available' if value is None else format(value, '.3f')}" for name, value in parts.items()]
        counts = f"{self.matched} blocks matched, {self.missing} missing, {self.extra} extra"
        return RewardPart(name="design2code", value=self.final, weight=weight, evidence=", ".join(seen) + f"; {counts}")


def design_score(
    reference: PageBlocks,
    built: PageBlocks,
    screenshots: tuple[Image, Image] | None = None,
    clip: Clip | None = None,
) -> DesignScore:
    """Compare a built page with its reference.

    Args:
        reference: Text blocks of the page to build.
        built: Text blocks of the page that was built.
        screenshots: Pictures of the reference and the built page, uint8 of shape (height, width,
            3).
        clip: Function that replaces SSIM where given.

    Raises:
        JudgeError: The screenshots cannot be compared, or ``clip`` gives no number from -1 to 1, or
            there is nothing to give it.
    """
    if clip is not None and screenshots is None:
        raise JudgeError("Design2Code: a CLIP function was given without screenshots; give both")
    match = match_blocks(reference.blocks, built.blocks)
    parts = _block_parts(match, reference, built)
    visual = None if screenshots is None else _visual(*screenshots, clip)
    known = [value for value in (*parts.values(), visual) if value is not None]
    return DesignScore(
        **parts,
        visual=visual,
        visual_name=None if screenshots is None else "ssim" if clip is None else "clip",
        final=math.fsum(known) / len(known) if known else None,
        matched=len(match.pairs),
        missing=len(match.missing),
        extra=len(match.extra),
    )


def _block_parts(match: BlockMatch, reference: PageBlocks, built: PageBlocks) -> dict[str, float | None]:
    if not reference.blocks and not built.blocks:
        return dict.fromkeys(("block_match", "text", "position", "colour"))
    matched = math.fsum(pair.reference.area + pair.built.area for pair in match.pairs)
    alone = math.fsum(block.area for block in (*match.missing, *match.extra))
    return {
        "block_match": matched / (matched + alone),
        "text": _mean([pair.text for pair in match.pairs]),
        "position": _mean([_position(pair, reference, built) for pair in match.pairs]),
        "colour": _mean(
            [max(0.0, 1.0 - difference(pair.reference.colour, pair.built.colour) / 100.0) for pair in match.pairs]
        ),
    }


def _position(pair: BlockPair, reference: PageBlocks, built: PageBlocks) -> float:
    """One minus the larger distance of the centres, in shares of each page's size."""
    (x1, y1), (x2, y2) = pair.reference.centre, pair.built.centre
    apart = max(abs(x1 / reference.width - x2 / built.width), abs(y1 / reference.height - y2 / built.height))
    return max(0.0, 1.0 - apart)


def _visual(reference: Image, built: Image, clip: Clip | None) -> float:
    if clip is None:
        return min(1.0, max(0.0, ssim(reference, built)))
    cosine = clip(reference, built)
    if not -1.0 <= cosine <= 1.0 + 1e-6:
        raise JudgeError(f"Design2Code: the CLIP function gave {cosine}; expected a cosine from -1 to 1")
    return min(1.0, max(0.0, cosine))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0

"""Matches text blocks of a built page to blocks of the reference.

Which text block of the built page stands for which block of the reference (arXiv 2403.03163,
section 3.1 of the facts).

The assignment maximises the sum of text similarities, with a bonus where the neighbours in reading
order match as well. Before that, neighbouring blocks that one page has as one and the other as two
are merged. Pairs whose texts are less than half alike are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.assignment import best_pairs
from envs.rewards.design2code.records import TextBlock

CONTEXT_BONUS, CONTEXT_FROM = 0.1, 0.5
"""Added per matching neighbour; only to pairs that are more than half alike."""
MERGE_GAIN = 0.05
"""A merger must make the best partner's similarity better by more than this."""
KEEP = 0.5
"""Text similarity below which a pair is dropped."""

Matrix = NDArray[np.float64]


class BlockPair(NamedTuple):
    """A reference block and the block that stands for it."""

    reference: TextBlock
    built: TextBlock
    text: float
    """Their text similarity, in [0.5, 1]."""


class BlockMatch(NamedTuple):
    """Pairs and what is left of either page, after mergers."""

    pairs: list[BlockPair]
    missing: list[TextBlock]
    """Blocks of the reference without a partner."""
    extra: list[TextBlock]
    """Blocks of the built page without a partner."""


class _Texts:
    """The texts of one page, to be compared with single ones of the other."""

    def __init__(self, blocks: Sequence[TextBlock]) -> None:
        self.texts = [block.text for block in blocks]
        self.lengths = np.array([len(text) for text in self.texts])
        self.columns = {letter: place for place, letter in enumerate(sorted(set("".join(self.texts))))}
        self.counts = np.array([self._count(text) for text in self.texts]).reshape(len(self.texts), len(self.columns))

    def _count(self, text: str) -> NDArray[np.int64]:
        counts = np.zeros(len(self.columns), dtype=np.int64)
        for letter, times in Counter(text).items():
            if letter in self.columns:
                counts[self.columns[letter]] = times
        return counts

    def ratios(self, text: str, above: float) -> Matrix:
        """Ratcliff-Obershelp similarity of a text with each of these, 0 where it is below
        ``above``: (len(texts),).

        It is the most expensive step by far, so it is only computed where its upper bounds, the
        letters in common in any order and then the longest common subsequence, are high enough.
        """
        common = np.minimum(self.counts, self._count(text)).sum(axis=1)
        possible = 2.0 * common / (self.lengths + len(text)) >= above
        matcher = SequenceMatcher(None, "", text, autojunk=False)  # it keeps its analysis of the second text
        ratios = np.zeros(len(self.texts))
        bits = letter_bits(text)
        for place in np.flatnonzero(possible).tolist():
            if 2.0 * common_subsequence(bits, len(text), self.texts[place]) < above * (
                len(text) + len(self.texts[place])
            ):
                continue
            matcher.set_seq1(self.texts[place])
            ratio = 1.0 if self.texts[place] == text else matcher.ratio()
            ratios[place] = ratio if ratio >= above else 0.0
        return ratios


def letter_bits(text: str) -> dict[str, int]:
    """Return the positions of each letter: bit k for position k."""
    bits: dict[str, int] = {}
    for place, letter in enumerate(text):
        bits[letter] = bits.get(letter, 0) | 1 << place
    return bits


def common_subsequence(bits: dict[str, int], length: int, other: str) -> int:
    """Length of the longest common subsequence of a text, given by its `letter_bits` and length,
    and another (Hyyrö 2004)."""
    full = state = (1 << length) - 1
    for letter in other:
        hit = state & bits.get(letter, 0)
        state = ((state + hit) | (state - hit)) & full
    return length - state.bit_count()


def match_blocks(reference: Sequence[TextBlock], built: Sequence[TextBlock]) -> BlockMatch:
    """Merge what belongs together and assign the blocks to one another."""
    first, second = list(reference), list(built)
    chosen: list[tuple[int, int]] = []
    alike = np.zeros((len(first), len(second)))
    if first and second:
        alike = _ratios(first, second)
        first, alike = _merge(first, second, alike)
        second, turned = _merge(second, first, alike.T)
        alike = turned.T
        chosen = [(a, b) for a, b in best_pairs(_with_context(alike)) if alike[a, b] >= KEEP]
    used, taken = {a for a, _ in chosen}, {b for _, b in chosen}
    return BlockMatch(
        pairs=[BlockPair(first[a], second[b], float(alike[a, b])) for a, b in chosen],
        missing=[block for place, block in enumerate(first) if place not in used],
        extra=[block for place, block in enumerate(second) if place not in taken],
    )


def _ratios(first: Sequence[TextBlock], second: Sequence[TextBlock]) -> Matrix:
    """Similarity of all pairs of texts, 0 where it is below `KEEP`: (len(first), len(second)).

    A text that occurs once on both pages is only alike to itself: what else could it stand for?
    """
    texts, others = [block.text for block in first], [block.text for block in second]
    ratios = np.zeros((len(texts), len(others)))
    once = {text for text, count in Counter(texts).items() if count == 1}
    once &= {text for text, count in Counter(others).items() if count == 1}
    rows = [row for row, text in enumerate(texts) if text not in once]
    rest = _Texts([first[row] for row in rows])
    for column, text in enumerate(others):
        if text in once:
            ratios[texts.index(text), column] = 1.0
        else:
            ratios[rows, column] = rest.ratios(text, KEEP)
    return ratios


def _with_context(alike: Matrix) -> Matrix:
    """The similarities, with the bonus for the blocks before and after."""
    around = np.pad(alike, 1)
    bonus: Matrix = CONTEXT_BONUS * (around[:-2, :-2] + around[2:, 2:])
    return alike + np.where(alike > CONTEXT_FROM, bonus, 0.0)


def _merge(blocks: list[TextBlock], others: Sequence[TextBlock], alike: Matrix) -> tuple[list[TextBlock], Matrix]:
    """Join neighbours of one page as long as a block of the other becomes more alike; the greatest
    gain first."""
    texts = _Texts(others)
    gains = [_gain(blocks, place, texts, alike) for place in range(len(blocks) - 1)]
    while gains and max(gains) > 0:
        place = int(np.argmax(gains))
        joined = join_blocks(blocks[place], blocks[place + 1])
        blocks = [*blocks[:place], joined, *blocks[place + 2 :]]
        alike = np.concatenate([alike[:place], texts.ratios(joined.text, KEEP)[None], alike[place + 2 :]])
        gains = [*gains[:place], *gains[place + 1 :]]
        for near in (place - 1, place):
            if 0 <= near < len(gains):
                gains[near] = _gain(blocks, near, texts, alike)
    return blocks, alike


def _gain(blocks: Sequence[TextBlock], place: int, texts: _Texts, alike: Matrix) -> float:
    """Return the gain in likeness of merging a block with the next one; 0 if it is at most
    `MERGE_GAIN`.

    It is measured against the best likeness of either block, and against `KEEP`. Blocks that have
    an equal on the other page are not merged.
    """
    alone = max(KEEP, float(alike[place : place + 2].max()))
    if alone == 1.0:
        return 0.0
    free = alike.max(axis=0) < 1.0
    best = float(np.max(texts.ratios(_joined(blocks[place], blocks[place + 1]), alone + MERGE_GAIN) * free))
    return best - alone if best > alone + MERGE_GAIN else 0.0


def _joined(first: TextBlock, second: TextBlock) -> str:
    return f"{first.text} {second.text}"


def join_blocks(first: TextBlock, second: TextBlock) -> TextBlock:
    """Two neighbours as one block, in the colour of the larger."""
    left, top = min(first.left, second.left), min(first.top, second.top)
    return TextBlock(
        text=_joined(first, second),
        left=left,
        top=top,
        width=max(first.left + first.width, second.left + second.width) - left,
        height=max(first.top + first.height, second.top + second.height) - top,
        colour=(first if first.area >= second.area else second).colour,
    )

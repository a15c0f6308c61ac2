"""Greedy matching of live DOM nodes to reference nodes, as ChromiumRL does it.

Which live node stands for which reference node, as ChromiumRL decides it: three greedy passes
(facts section 2.6).

Kept as it is for comparable numbers. The second and third pass look at all pairs of what is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from envs.rewards.chromiumrl.pairs import overlaps, word_similarities
from envs.rewards.chromiumrl.records import TEXT
from envs.rewards.chromiumrl.view import View

FINGERPRINTED = frozenset({"a", "button", "h1", "h2", "h3", "h4", "h5", "h6", "p", "strong", "span", "li", "label"})
"""Elements whose text is part of the fingerprint although they may have children."""
ELEMENT_CHARS, TEXT_CHARS = 30, 50
TEXT_WEIGHT, BOX_WEIGHT, TAG_WEIGHT = 0.7, 0.2, 0.1
ACCEPT = 0.75
BONUS, BONUS_FROM, BONUS_CHARS = 0.2, 0.9, 5


@dataclass(slots=True)
class Matching:
    """Pairs of positions in two views."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    """(reference, live), ascending by reference."""
    comparisons: int = 0
    """Pairs of nodes that were looked at for how alike they are; lookups of equal nodes are not
    counted."""

    def rest(self, reference: View, live: View) -> tuple[list[int], list[int]]:
        """Return the nodes without a partner: deleted, inserted."""
        first, second = {a for a, _ in self.pairs}, {b for _, b in self.pairs}
        return (
            [index for index in range(len(reference.nodes)) if index not in first],
            [index for index in range(len(live.nodes)) if index not in second],
        )


def match_greedily(reference: View, live: View) -> Matching:
    """The three passes: equal fingerprints, equal texts, most alike."""
    matching = Matching()
    _fingerprints(reference, live, matching)
    _equal_texts(reference, live, matching)
    _candidates(reference, live, matching)
    matching.pairs.sort()
    return matching


def _fingerprint(seen: View, index: int) -> tuple[str, ...]:
    node, text = seen.nodes[index], seen.texts[index]
    if node.tag == TEXT:
        return (TEXT, text[:TEXT_CHARS])
    read = node.attributes.get
    shown = text[:ELEMENT_CHARS] if seen.leaves[index] or node.tag in FINGERPRINTED else ""
    return (node.tag, read("id", ""), read("role", ""), read("aria-label", ""), shown)


def _fingerprints(reference: View, live: View, matching: Matching) -> None:
    free: dict[tuple[str, ...], list[int]] = {}
    for index in range(len(live.nodes) - 1, -1, -1):
        free.setdefault(_fingerprint(live, index), []).append(index)
    for index in range(len(reference.nodes)):
        same = free.get(_fingerprint(reference, index))
        if same:
            matching.pairs.append((index, same.pop()))


def _equal_texts(reference: View, live: View, matching: Matching) -> None:
    deleted, inserted = matching.rest(reference, live)
    free: dict[str, list[int]] = {}
    for b in inserted:
        if live.texts[b]:
            free.setdefault(live.texts[b], []).append(b)
    for a in deleted:
        same = free.get(reference.texts[a])
        if same:
            matching.comparisons += len(same)
            nearest = min(same, key=lambda b: _distance(reference, a, live, b))
            same.remove(nearest)
            matching.pairs.append((a, nearest))


def _distance(reference: View, a: int, live: View, b: int) -> float:
    """Distance between the top left corners; a node without a box is far."""
    first, second = reference.boxes[a], live.boxes[b]
    return math.inf if first is None or second is None else math.dist(first[:2], second[:2])


def _candidates(reference: View, live: View, matching: Matching) -> None:
    deleted, inserted = matching.rest(reference, live)
    matching.comparisons += len(deleted) * len(inserted)
    if not deleted or not inserted:
        return
    first, second = [reference.texts[a] for a in deleted], [live.texts[b] for b in inserted]
    texts = word_similarities(first, second)
    long = np.array([len(text) > BONUS_CHARS for text in first])[:, None]
    texts += BONUS * ((texts > BONUS_FROM) & long)
    boxes = overlaps([reference.boxes[a] for a in deleted], [live.boxes[b] for b in inserted])
    tags = np.array([live.nodes[b].tag for b in inserted])
    same_tag = np.array([reference.nodes[a].tag for a in deleted])[:, None] == tags[None]
    score = TEXT_WEIGHT * texts + BOX_WEIGHT * boxes + TAG_WEIGHT * same_tag
    rows, columns = np.nonzero(score > ACCEPT)
    order = np.argsort(-score[rows, columns], kind="stable")
    used_rows, used_columns = set[int](), set[int]()
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if row not in used_rows and column not in used_columns:
            used_rows.add(row)
            used_columns.add(column)
            matching.pairs.append((deleted[row], inserted[column]))

"""Matches live nodes to reference nodes in mode `native`.

Nodes that are the same by name and text, and the only such, are paired by lookup. Then the tree is
walked from the top: the children of a pair that are still free are paired by an optimal assignment
(`envs.assignment`). What is left has moved far: it is assigned by tag, and only if it is nearly the
same. Groups are cut into blocks, so the work grows with the number of nodes and not with its
square.

Pages that have hardly a text in common are unrelated: there only equal texts are paired, so that
chance likeness is no merit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from envs.assignment import best_pairs
from envs.rewards.chromiumrl.greedy import ACCEPT, BOX_WEIGHT, TAG_WEIGHT, TEXT_WEIGHT, Matching
from envs.rewards.chromiumrl.pairs import overlaps, word_similarities
from envs.rewards.chromiumrl.view import View

BLOCK = 64
"""Most nodes of a side in one assignment: 64 x 64 takes 2 ms."""
ACCEPT_SIBLING = 0.25
"""Least likeness of siblings: the same tag in about the same place, or some equal words, are
enough."""
SAME_ATTRIBUTES, ORDER = 0.1, 0.001
"""Break ties: equal attributes first, then the same place among the siblings."""
RELATED, TEXTS_TO_TELL = 0.1, 5
"""Share of common texts from which two pages are related, and how many texts each needs for the
question to make sense."""

Key = tuple[object, ...]


def match_optimally(reference: View, live: View, same_document: bool = False) -> tuple[Matching, bool]:
    """The pairs, and whether the pages are unrelated.

    Args:
        reference: The page as it should be, or was. live: The page as it is.
        same_document: Both are of one document, so equal identities are the same node; what is left
            may have been rendered anew.
    """
    matching = Matching()
    partner: dict[int, int] = {}
    if same_document:
        _by_key(reference, live, partner, lambda seen, index: _identity(seen, index))
    unrelated = not partner and not _related(reference, live)
    _by_key(reference, live, partner, _text_key if unrelated else _name_key)
    if not unrelated:
        _top_down(reference, live, partner, matching)
        _leftovers(reference, live, partner, matching)
    matching.pairs = sorted(partner.items())
    return matching, unrelated


def _identity(seen: View, index: int) -> Key | None:
    identity = seen.nodes[index].identity
    return None if identity is None else (identity,)


def _text_key(seen: View, index: int) -> Key | None:
    return (seen.nodes[index].tag, seen.texts[index]) if seen.texts[index] else None


def _name_key(seen: View, index: int) -> Key | None:
    read = seen.nodes[index].attributes.get
    names = (read("id", ""), read("name", ""), read("aria-label", ""))
    return (
        (seen.nodes[index].scope, seen.nodes[index].tag, *names, seen.texts[index])
        if any(names) or seen.texts[index]
        else None
    )


def _by_key(reference: View, live: View, partner: dict[int, int], key: Callable[[View, int], Key | None]) -> None:
    """Pair what a key names once on each side."""
    taken = set(partner.values())
    first = _once(reference, set(partner), key)
    second = _once(live, taken, key)
    partner.update((index, second[name]) for name, index in first.items() if name in second)


def _once(seen: View, taken: set[int], key: Callable[[View, int], Key | None]) -> dict[Key, int]:
    where: dict[Key, list[int]] = {}
    for index in range(len(seen.nodes)):
        if index not in taken and (name := key(seen, index)) is not None:
            where.setdefault(name, []).append(index)
    return {name: places[0] for name, places in where.items() if len(places) == 1}


def _related(reference: View, live: View) -> bool:
    first, second = (
        Counter(filter(None, (_text_key(seen, index) for index in range(len(seen.nodes)))))
        for seen in (reference, live)
    )
    total = first.total() + second.total()
    if min(first.total(), second.total()) < TEXTS_TO_TELL:
        return True
    return 2 * (first & second).total() / total >= RELATED


def _top_down(reference: View, live: View, partner: dict[int, int], matching: Matching) -> None:
    first, second = _children(reference), _children(live)
    taken = set(partner.values())
    _align(reference, live, first[-1], second[-1], partner, taken, matching)
    for index in range(len(reference.nodes)):  # parents come first, so a pair made on the way is met later
        if index in partner:
            _align(reference, live, first.get(index, []), second.get(partner[index], []), partner, taken, matching)


def _children(seen: View) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {-1: []}
    for index, parent in enumerate(seen.parents):
        children.setdefault(parent, []).append(index)
    return children


def _align(
    reference: View,
    live: View,
    first: Sequence[int],
    second: Sequence[int],
    partner: dict[int, int],
    taken: set[int],
    matching: Matching,
    accept: float = ACCEPT_SIBLING,
) -> None:
    """Assign free nodes of two groups to one another, block by block."""
    first, second = [a for a in first if a not in partner], [b for b in second if b not in taken]
    if not first or not second:
        return
    blocks = -(-max(len(first), len(second)) // BLOCK)
    for block in range(blocks):
        some = first[block * len(first) // blocks : (block + 1) * len(first) // blocks]
        others = second[block * len(second) // blocks : (block + 1) * len(second) // blocks]
        for a, b in _assign(reference, live, some, others, accept, matching):
            partner[a] = b
            taken.add(b)


def _assign(
    reference: View, live: View, first: Sequence[int], second: Sequence[int], accept: float, matching: Matching
) -> list[tuple[int, int]]:
    if not first or not second:
        return []
    matching.comparisons += len(first) * len(second)
    score = TEXT_WEIGHT * word_similarities(
        [reference.deep_texts[a] for a in first], [live.deep_texts[b] for b in second]
    )
    score += BOX_WEIGHT * overlaps([reference.boxes[a] for a in first], [live.boxes[b] for b in second])
    tags = [[reference.nodes[a].tag == live.nodes[b].tag for b in second] for a in first]
    same_tag = np.array(tags, dtype=np.float64)
    score += TAG_WEIGHT * same_tag
    possible = (score > accept) & (same_tag > 0)
    score += SAME_ATTRIBUTES * np.array(
        [[reference.attributes[a] == live.attributes[b] for b in second] for a in first]
    )
    places = np.arange(len(first))[:, None] / len(first) - np.arange(len(second))[None] / len(second)
    pairs = best_pairs(np.where(possible, score - ORDER * np.abs(places), 0.0))
    return [(first[row], second[column]) for row, column in pairs if possible[row, column]]


def _leftovers(reference: View, live: View, partner: dict[int, int], matching: Matching) -> None:
    """Assign nodes with text that moved to another parent, by tag."""
    taken = set(partner.values())
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for side, (seen, used) in enumerate(((reference, set(partner)), (live, taken))):
        for index, node in enumerate(seen.nodes):
            if index not in used and seen.deep_texts[index]:
                groups.setdefault(node.tag, ([], []))[side].append(index)
    for first, second in groups.values():
        _align(reference, live, first, second, partner, taken, matching, ACCEPT)

"""DOM similarity between a page and a reference page.

DOM similarity of a page with a reference: 0.30 structural + 0.30 text + 0.20 layout + 0.20 style
(facts sections 2.5, 2.6).

The four are taken over the regions that changed: changed nodes are put together by the first five
segments of their paths, a region is what lies under the longest common path of such a cluster, and
regions count by how many changed paths they have. No change at all is 1.

Because only changed regions count, repairing one of two faults need not raise ``score``;
``page_score`` is over all nodes and has no such jumps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from envs.rewards.chromiumrl.assign import match_optimally
from envs.rewards.chromiumrl.greedy import Matching, match_greedily
from envs.rewards.chromiumrl.pairs import PROPERTIES, box_overlap, style_similarity, word_similarity
from envs.rewards.chromiumrl.records import DomSnapshot
from envs.rewards.chromiumrl.view import Mode, Path, View, view
from envs.types import JudgeError, RewardPart
from envs.types.record import Record

WEIGHTS = {"structural": 0.3, "text": 0.3, "layout": 0.2, "style": 0.2}
SEGMENTS = 5
"""Segments of a path that put changed nodes into one cluster."""
SAME_PLACE = 0.95
"""Overlap below which a box has changed."""
NEVER_CHANGED = frozenset({"html", "body", "head"})
"""Elements that do not count as changed themselves."""
LISTED = 10
"""Regions that the result names."""

Parts = dict[str, float | None]


class DomSimilarity(Record):
    """Likeness of a live page to its reference."""

    mode: Mode
    structural: float | None
    text: float | None
    layout: float | None
    style: float | None
    """Each in [0, 1]; ``None`` where there was nothing of the kind to compare (`native` only)."""
    score: float
    """Weighted mean of the four over the changed regions."""
    page_score: float
    """The same over the whole page."""
    cross_document: bool
    """The pages are unrelated: only equal texts were paired. Always false in `chromiumrl`."""
    matched: int
    changed: int
    inserted: int
    deleted: int
    regions: tuple[str, ...]
    """Common paths of the regions, the largest first, at most `LISTED`."""
    comparisons: int
    """Pairs of nodes that were compared to find partners."""

    def part(self, weight: float = 1.0) -> RewardPart:
        """Make the part of a reward bundle named ``dom_similarity``."""
        four = ", ".join(
            f"{name} {'not comparable' if value is None else format(value, '.3f')}"
            for name, value in ((name, getattr(self, name)) for name in WEIGHTS)
        )
        seen = (
            f"{self.mode}: {four}; {self.matched} nodes matched, {self.changed} changed, {self.inserted} inserted, "
            f"{self.deleted} deleted; whole page {self.page_score:.3f}"
        )
        seen += "; unrelated pages" if self.cross_document else ""
        seen += f"; in {', '.join(self.regions)}" if self.regions else ""
        return RewardPart(name="dom_similarity", value=self.score, weight=weight, evidence=seen)


def dom_similarity(reference: DomSnapshot, live: DomSnapshot, mode: Mode = "native") -> DomSimilarity:
    """Compare a page with its reference.

    Raises:
        JudgeError: the reference has no nodes: everything would be an insertion, and nothing could
            be judged.
    """
    if not reference.nodes:
        raise JudgeError(f"DOM similarity: the reference {reference.url!r} has no nodes; take its snapshot again")
    one_document = reference.document != "" and reference.document == live.document
    comparison = compare_views(view(reference, mode), view(live, mode), mode, one_document)
    regions = _regions(comparison)
    if regions:
        weighted = [(weight, _parts(comparison, inside)) for _, weight, inside in regions]
        parts = {name: _mean([(weight, part[name]) for weight, part in weighted]) for name in WEIGHTS}
    else:
        parts = {name: 1.0 for name in WEIGHTS}
    matching = comparison.matching
    return DomSimilarity(
        mode=mode,
        **parts,
        score=_score(parts),
        page_score=_score(_parts(comparison, lambda _seen, _at: True)),
        cross_document=comparison.unrelated,
        matched=len(matching.pairs),
        changed=len(comparison.changed),
        inserted=len(comparison.inserted),
        deleted=len(comparison.deleted),
        regions=tuple(name for name, _, _ in regions[:LISTED]),
        comparisons=matching.comparisons,
    )


@dataclass(slots=True)
class Comparison:
    """Two views, their pairs, and what differs."""

    reference: View
    live: View
    native: bool
    matching: Matching
    unrelated: bool
    deleted: list[int]
    inserted: list[int]
    changed: list[tuple[int, int]]
    """Pairs with a difference of text, attributes, layout or style."""
    paired: frozenset[tuple[int, int]]
    """The pairs, to ask whether two nodes are one."""


def compare_views(reference: View, live: View, mode: Mode, same_document: bool) -> Comparison:
    """Find the pairs of two views and those that differ."""
    if mode == "native":
        matching, unrelated = match_optimally(reference, live, same_document)
    else:
        matching, unrelated = match_greedily(reference, live), False
    deleted, inserted = matching.rest(reference, live)
    comparison = Comparison(
        reference, live, mode == "native", matching, unrelated, deleted, inserted, [], frozenset(matching.pairs)
    )
    comparison.changed = [
        (a, b) for a, b in matching.pairs if reference.nodes[a].tag not in NEVER_CHANGED and _differs(comparison, a, b)
    ]
    return comparison


def attribute_changes(reference: Mapping[str, str], live: Mapping[str, str]) -> list[str]:
    """Names of attributes that differ; live state that only one side knows does not, nor does
    ``style``, which is computed."""
    return sorted(
        name
        for name in {*reference, *live} - {"style"}
        if reference.get(name) != live.get(name)
        and not (name.startswith("live:") and (name not in reference or name not in live))
    )


def style_changes(reference: Mapping[str, str], live: Mapping[str, str], native: bool) -> list[str]:
    """List those of the 19 properties that differ; in `native` only those that both sides know."""
    names = [name for name in PROPERTIES if not native or (name in reference and name in live)]
    return [name for name in names if reference.get(name, "") != live.get(name, "")]


def _differs(of: Comparison, a: int, b: int) -> bool:
    reference, live = of.reference, of.live
    text = reference.texts[a] != live.texts[b] if of.native else word_similarity(reference.texts[a], live.texts[b]) < 1
    return (
        text
        or box_overlap(reference.boxes[a], live.boxes[b]) < SAME_PLACE
        or reference.nodes[a].tag != live.nodes[b].tag
        or bool(attribute_changes(reference.attributes[a], live.attributes[b]))
        or bool(style_changes(reference.styles[a], live.styles[b], of.native))
    )


Inside = Callable[[View, int], bool]


def _regions(of: Comparison) -> list[tuple[str, int, Inside]]:
    """(common path, changed paths, whether a node of a view is in it), the largest first."""
    changed = [(of.reference, a) for a, _ in of.changed]
    changed += [(of.reference, a) for a in of.deleted] + [(of.live, b) for b in of.inserted]
    clusters: dict[Path, list[tuple[View, int]]] = {}
    for seen, index in changed:
        scopes = len(seen.nodes[index].scope)
        clusters.setdefault(seen.paths[index][: scopes + SEGMENTS], []).append((seen, index))
    regions = []
    for members in clusters.values():
        if of.native:
            path = _common([seen.paths[index] for seen, index in members])
            regions.append(("/" + "/".join(path), len(members), _under(path)))
        else:
            prefix = "".join(_common([tuple(seen.strings[index]) for seen, index in members]))  # by characters
            regions.append((prefix, len(members), _beginning(prefix)))
    return sorted(regions, key=lambda region: (-region[1], region[0]))


def _under(path: Path) -> Inside:
    return lambda seen, index: seen.paths[index][: len(path)] == path


def _beginning(prefix: str) -> Inside:
    """ChromiumRL's test: of characters, so that a prefix may end inside of a segment."""
    return lambda seen, index: seen.strings[index].startswith(prefix)


def _common(paths: Sequence[Path]) -> Path:
    """The longest common prefix."""
    first, last = min(paths), max(paths)
    length = next(
        (index for index, (x, y) in enumerate(zip(first, last, strict=False)) if x != y), min(len(first), len(last))
    )
    return first[:length]


def _parts(of: Comparison, inside: Inside) -> Parts:
    """The four similarities of one region."""
    if of.native:
        return _native_parts(of, inside)
    reference, live = of.reference, of.live
    pairs = [(a, b) for a, b in of.matching.pairs if inside(reference, a)]
    sizes = [sum(inside(seen, index) for index in range(len(seen.nodes))) for seen in (reference, live)]
    texts = [word_similarity(reference.texts[a], live.texts[b]) for a, b in pairs]
    boxes = [box_overlap(reference.boxes[a], live.boxes[b]) for a, b in pairs]
    styles = [style_similarity(reference.styles[a], live.styles[b], native=False) for a, b in pairs]
    return {
        "structural": min(1.0, len(pairs) / max(1, *sizes)),
        **{
            name: math.fsum(values) / len(values) if values else 1.0
            for name, values in (("text", texts), ("layout", boxes), ("style", styles))
        },
    }


def _native_parts(of: Comparison, inside: Inside) -> Parts:
    """Compute the parts as above; a node without a partner counts as 0, one without text, box or
    style is left out."""
    reference, live = of.reference, of.live
    pairs = [(a, b) for a, b in of.matching.pairs if inside(reference, a) or inside(live, b)]
    deleted = [a for a in of.deleted if inside(reference, a)]
    inserted = [b for b in of.inserted if inside(live, b)]
    has: dict[str, Inside] = {
        "structural": lambda _seen, _at: True,
        "text": lambda seen, index: bool(seen.texts[index]),
        "layout": lambda seen, index: seen.boxes[index] is not None,
        "style": lambda seen, index: bool(seen.styles[index]),
    }
    alike: dict[str, Callable[[int, int], float]] = {
        "structural": lambda a, b: _structure(of, a, b),
        "text": lambda a, b: word_similarity(reference.texts[a], live.texts[b]),
        "layout": lambda a, b: box_overlap(reference.boxes[a], live.boxes[b]),
        "style": lambda a, b: style_similarity(reference.styles[a], live.styles[b], native=True),
    }
    parts: Parts = {}
    for name, takes_part in has.items():
        values = [alike[name](a, b) for a, b in pairs if takes_part(reference, a) or takes_part(live, b)]
        alone = max(sum(takes_part(reference, a) for a in deleted), sum(takes_part(live, b) for b in inserted))
        parts[name] = math.fsum(values) / (len(values) + alone) if len(values) + alone else None
    return parts


def _structure(of: Comparison, a: int, b: int) -> float:
    """Half for the tag, half for the share of attributes and live state that agree."""
    first, second = of.reference.attributes[a], of.live.attributes[b]
    names = {*first, *second} - {"style"}
    agree = 1.0 - len(attribute_changes(first, second)) / len(names) if names else 1.0
    return (float(of.reference.nodes[a].tag == of.live.nodes[b].tag) + agree) / 2


def _mean(values: Sequence[tuple[float, float | None]]) -> float | None:
    known = [(weight, value) for weight, value in values if value is not None]
    return math.fsum(w * v for w, v in known) / math.fsum(w for w, _ in known) if known else None


def _score(parts: Parts) -> float:
    """Weighted mean of the parts that there are; a page without any node to compare is 1 only if
    nothing differs."""
    total = _mean([(WEIGHTS[name], value) for name, value in parts.items()])
    return min(1.0, max(0.0, 1.0 if total is None else total))

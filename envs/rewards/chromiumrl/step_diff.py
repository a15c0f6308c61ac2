"""DOM diff of one step, in W8's schema, as evidence for judges and rubrics.

What one step changed in the DOM, as evidence for a judge or a rubric: the names of W8's DOM diff,
schema v1.0 (facts section 2.5).

``changed`` has one entry per node and kind: ``text``, ``visibility``, ``moved``, ``attr:NAME``,
``style:PROPERTY``; live form values are ``attr:value``, ``attr:checked``, ``attr:selected`` with
``source`` ``prop``. What follows from something else is in ``flagged_changes``: what was pushed by
a neighbour (``reflow``), and scrolling (``scroll``), which is one entry for what was scrolled and
not one per node.

When the step led to another document, nodes have no identity to compare: the texts that came and
went and the new page's controls are given instead.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from envs.rewards.chromiumrl.records import DomSnapshot
from envs.rewards.chromiumrl.similarity import Comparison, attribute_changes, compare_views, style_changes
from envs.rewards.chromiumrl.view import View, view
from envs.types.record import Record

SCHEMA = "1.0"
MAX_ENTRIES = 200
"""Entries of a list; `DiffStats` counts what is left out."""
MAX_DIFF_TEXT = 240
"""Characters of a text."""
MAX_ACTIONS = 10
"""Controls of a new document."""
STILL = 1.0
"""CSS pixels that a box may move without having moved: rounding."""
GEOMETRY = frozenset({"width", "height"})
"""Computed styles that follow the layout, unless the node's own ``style`` or ``class`` changed."""
CONTROLS = frozenset({"a", "button", "input", "select", "textarea", "summary"})


class DiffNode(Record):
    """A node, or the top of a subtree, that came or went."""

    path: str
    """Scope and xpath: in the new page if added, in the old one if removed."""
    tag: str
    text: str
    """Text of the subtree, shortened."""
    nodes: int
    """Elements of the subtree."""


class DiffChange(Record):
    """One change of one node that is on both pages."""

    path: str
    """Path in the new page."""
    tag: str
    kind: str
    before: str
    after: str
    source: Literal["dom", "prop"] = "dom"
    """``prop``: live form state, which no attribute shows."""
    flag: str | None = None
    """Reason why it is no change of its own: ``reflow`` or ``scroll``."""


class TextDelta(Record):
    """Texts of two documents that the other does not have, in page order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


class DiffStats(Record):
    """Totals by list, and how many entries of each were left out."""

    totals: dict[str, int]
    truncated: dict[str, int]


class StepDiff(Record):
    """The difference between the page before and after a step."""

    schema_version: str = SCHEMA
    cross_document: bool
    added: tuple[DiffNode, ...] = ()
    removed: tuple[DiffNode, ...] = ()
    changed: tuple[DiffChange, ...] = ()
    flagged_changes: tuple[DiffChange, ...] = ()
    text_delta: TextDelta | None = None
    """Difference of the texts of two documents; ``None`` within one document."""
    top_actions: tuple[str, ...] = ()
    """Controls of a new document, ``tag: text``."""
    stats: DiffStats


def step_diff(before: DomSnapshot, after: DomSnapshot) -> StepDiff:
    """Compare the page before and after a step; frames, shadow roots and live form state
    included."""
    old, new = view(before, "native"), view(after, "native")
    known = bool(before.document and after.document)
    comparison = compare_views(old, new, "native", known and before.document == after.document)
    if before.document != after.document if known else comparison.unrelated:
        return _across(old, new)
    moved = _moved(comparison)
    changes = [
        change for a, b in comparison.matching.pairs for change in (*_changes(comparison, a, b), *moved.get(a, ()))
    ]
    lists: dict[str, list[DiffNode] | list[DiffChange]] = {
        "added": _tops(new, comparison.inserted),
        "removed": _tops(old, comparison.deleted),
        "changed": [change for change in changes if change.flag is None],
        "flagged_changes": [change for change in changes if change.flag is not None],
    }
    kept = {name: tuple(entries[:MAX_ENTRIES]) for name, entries in lists.items()}
    return StepDiff.model_validate({"cross_document": False, **kept, "stats": _stats(lists)})


def _stats(lists: dict[str, list[DiffNode] | list[DiffChange]] | dict[str, list[str]]) -> DiffStats:
    totals = {name: len(entries) for name, entries in lists.items()}
    return DiffStats(totals=totals, truncated={name: max(0, total - MAX_ENTRIES) for name, total in totals.items()})


def _across(old: View, new: View) -> StepDiff:
    """Another document: by texts."""
    first, second = (Counter(filter(None, seen.texts)) for seen in (old, new))
    lists = {"added": list((second - first).keys()), "removed": list((first - second).keys())}
    added, removed = (
        tuple(text[:MAX_DIFF_TEXT] for text in lists[name][:MAX_ENTRIES]) for name in ("added", "removed")
    )
    controls = [index for index, node in enumerate(new.nodes) if node.tag in CONTROLS and new.boxes[index] is not None]
    return StepDiff(
        cross_document=True,
        text_delta=TextDelta(added=added, removed=removed),
        top_actions=tuple(
            f"{new.nodes[index].tag}: {_label(new, index)[:MAX_DIFF_TEXT]}" for index in controls[:MAX_ACTIONS]
        ),
        stats=_stats({**lists, "top_actions": [new.nodes[index].tag for index in controls]}),
    )


def _label(seen: View, index: int) -> str:
    read = seen.nodes[index].attributes.get
    return seen.deep_texts[index] or read("aria-label") or read("placeholder") or read("name") or read("id", "")


def _path(seen: View, index: int) -> str:
    return "".join(f"{scope} > " for scope in seen.nodes[index].scope) + seen.strings[index]


def _tops(seen: View, alone: list[int]) -> list[DiffNode]:
    """The subtrees without a partner; each once, at its top."""
    tops: dict[int, int] = {}  # node -> top of its subtree
    sizes: Counter[int] = Counter()
    for index in alone:
        tops[index] = tops.get(seen.parents[index], index)
        sizes[tops[index]] += 1
    return [
        DiffNode(
            path=_path(seen, index), tag=seen.nodes[index].tag, text=_shown(seen, index)[:MAX_DIFF_TEXT], nodes=count
        )
        for index, count in sizes.items()
    ]


def _shown(seen: View, index: int) -> str:
    return seen.deep_texts[index] or seen.texts[index]


def _changes(of: Comparison, a: int, b: int) -> list[DiffChange]:
    """Text, visibility, attributes and styles of one pair, and its own scrolling."""
    old, new = of.reference, of.live
    changes: list[DiffChange] = []

    def note(
        kind: str, before: str, after: str, source: Literal["dom", "prop"] = "dom", flag: str | None = None
    ) -> None:
        changes.append(
            DiffChange(
                **{"path": _path(new, b), "tag": new.nodes[b].tag, "kind": kind, "source": source, "flag": flag},
                **{"before": before[:MAX_DIFF_TEXT], "after": after[:MAX_DIFF_TEXT]},
            )
        )

    first, second = old.nodes[a], new.nodes[b]
    typed = "value" in first.state and "value" in second.state
    if typed and first.state["value"] != second.state["value"]:
        note("attr:value", first.state["value"], second.state["value"], "prop")
    elif not typed and old.texts[a] != new.texts[b]:
        note("text", old.texts[a], new.texts[b])
    seen, shows = _visible(old, a), _visible(new, b)
    if seen != shows and _inherits(of, a, b) != (seen, shows):
        note("visibility", _word(seen), _word(shows))
    for name in attribute_changes(old.attributes[a], new.attributes[b]):
        live = name.startswith("live:")
        before, after = old.attributes[a].get(name, ""), new.attributes[b].get(name, "")
        note(f"attr:{name.removeprefix('live:')}", before, after, "prop" if live else "dom")
    if seen and shows:
        for name in style_changes(old.styles[a], new.styles[b], native=True):
            if not _inherited_style(of, a, b, name):
                flag = "reflow" if name in GEOMETRY and not _restyled(of, a, b) else None
                note(f"style:{name}", old.styles[a][name], new.styles[b][name], "dom", flag)
    if first.scroll != second.scroll:
        note("scroll", str(first.scroll), str(second.scroll), "prop", "scroll")
    return changes


def _visible(seen: View, index: int) -> bool:
    style, box = seen.styles[index].get, seen.boxes[index]
    return (
        box is not None
        and style("display") != "none"
        and style("visibility", "visible") == "visible"
        and style("opacity") != "0"
    )


def _word(visible: bool) -> str:
    return "visible" if visible else "hidden"


def _inherits(of: Comparison, a: int, b: int) -> tuple[bool, bool] | None:
    """The parents' visibility if they are a pair: a subtree is reported once."""
    above, over = of.reference.parents[a], of.live.parents[b]
    return (_visible(of.reference, above), _visible(of.live, over)) if (above, over) in of.paired else None


def _inherited_style(of: Comparison, a: int, b: int, name: str) -> bool:
    """True if the parents changed in the same way."""
    above, over = of.reference.parents[a], of.live.parents[b]
    if (above, over) not in of.paired:
        return False
    mine = (of.reference.styles[a][name], of.live.styles[b][name])
    return mine == (of.reference.styles[above].get(name), of.live.styles[over].get(name))


def _restyled(of: Comparison, a: int, b: int) -> bool:
    first, second = of.reference.attributes[a], of.live.attributes[b]
    return any(first.get(name) != second.get(name) for name in ("style", "class"))


def _moved(of: Comparison) -> dict[int, list[DiffChange]]:
    """Moves of boxes and of nodes, by the old position: to another parent, to another place among
    the siblings, or on the page.

    Places are relative to the parent, so what merely moves with it has not moved.
    """
    old, new = of.reference, of.live
    pushed = _pushed(of)
    moves: dict[int, list[DiffChange]] = {}
    for a, b in of.matching.pairs:
        above, over = old.parents[a], new.parents[b]
        reparented = (above >= 0 or over >= 0) and (above, over) not in of.paired
        places = _place(old, a), _place(new, b)
        both = places[0] is not None and places[1] is not None
        displaced = both and any(abs(x - y) > STILL for x, y in zip(*places, strict=True))  # type: ignore[arg-type]
        if reparented or displaced:
            flag = "reflow" if not reparented and a in pushed and not _restyled(of, a, b) else None
            before, after = (str(places[0]), str(places[1])) if both else (_path(old, a), _path(new, b))
            change = DiffChange(
                **{"path": _path(new, b), "tag": new.nodes[b].tag, "kind": "moved", "flag": flag},
                **{"before": before, "after": after},
            )
            moves[a] = [change]
    return moves


def _place(seen: View, index: int) -> tuple[float, float] | None:
    """Top left corner relative to the parent's."""
    box, parent = seen.boxes[index], seen.parents[index]
    above = seen.boxes[parent] if parent >= 0 else None
    if box is None:
        return None
    return (box[0], box[1]) if above is None else (box[0] - above[0], box[1] - above[1])


def _pushed(of: Comparison) -> set[int]:
    """Old nodes with a sibling that came, went, or changed its size: their displacement may be its
    doing."""
    old, new = of.reference, of.live
    disturbed = {old.parents[a] for a in of.deleted if old.boxes[a] is not None}
    partner = {b: a for a, b in of.matching.pairs}
    disturbed |= {partner.get(new.parents[b], -1) for b in of.inserted if new.boxes[b] is not None}
    resized: dict[int, set[int]] = {}
    for a, b in of.matching.pairs:
        if (old.boxes[a] or (0, 0, 0, 0))[2:] != (new.boxes[b] or (0, 0, 0, 0))[2:]:
            resized.setdefault(old.parents[a], set()).add(a)
    return {a for a, _ in of.matching.pairs if old.parents[a] in disturbed or resized.get(old.parents[a], set()) - {a}}

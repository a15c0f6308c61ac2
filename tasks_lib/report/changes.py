"""Changes that a step made in a document, as rows and as text.

Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from envs.rewards import MAX_DIFF_TEXT, DiffChange, DiffNode, StepDiff

LISTS = {"added": "added", "removed": "removed", "changed": "changed", "flagged_changes": "as a consequence"}
"""Lists of a diff within one document, with their descriptions."""
TEXTS = {"added": "new texts", "removed": "gone texts", "top_actions": "controls"}
"""Lists of a diff to another document, with their descriptions."""


def change_words(diff: StepDiff) -> str:
    """Return all totals in a line, of recorded and unrecorded changes: ``2 added, 1 changed``."""
    names = TEXTS if diff.cross_document else LISTS
    counts = [f"{diff.stats.totals[key]:,} {name}" for key, name in names.items() if diff.stats.totals.get(key)]
    return ", ".join(["another document", *counts] if diff.cross_document else counts) or "nothing"


def change_rows(diff: StepDiff) -> Iterator[tuple[str, str, str, str]]:
    """Yield (what, where, before, after) of each change.

    Consequences are only counted, by their cause.
    """
    yield from (_node("added", node, "", node.text) for node in diff.added)
    yield from (_node("removed", node, node.text, "") for node in diff.removed)
    yield from (_change(change) for change in diff.changed)
    for flag, count in sorted(Counter(change.flag or "" for change in diff.flagged_changes).items()):
        yield "as a consequence", "", "", f"{count:,} by {flag}"
    if diff.text_delta is not None:
        yield from (("new text", "", "", _text(text)) for text in diff.text_delta.added)
        yield from (("gone text", "", _text(text), "") for text in diff.text_delta.removed)
    yield from (("control", "", "", _text(control)) for control in diff.top_actions)


def _node(what: str, node: DiffNode, before: str, after: str) -> tuple[str, str, str, str]:
    size = f" ({node.nodes:,} nodes)" if node.nodes > 1 else ""
    return what, f"{node.path}{size}", _text(before), _text(after)


def _change(change: DiffChange) -> tuple[str, str, str, str]:
    live = " (live)" if change.source == "prop" else ""
    return f"{change.kind}{live}", change.path, _text(change.before), _text(change.after)


def _text(text: str) -> str:
    """Mark a text that may be cut. A diff keeps only its beginning, and not its length."""
    return f"{text}… (no more was recorded)" if len(text) >= MAX_DIFF_TEXT else text

"""A step diff in a few lines of text, for a judge."""

from __future__ import annotations

from collections.abc import Iterator

from envs.rewards.chromiumrl.step_diff import DiffChange, DiffNode, StepDiff

MAX_CHARS = 1500
"""Characters for one step, about 400 tokens: a menu that opens takes ten lines, and what is left
out is said."""

SHOWN = 80
"""Characters of a text or value."""

NOTHING = "nothing"


def describe_diff(diff: StepDiff, most: int = MAX_CHARS) -> str:
    """Describe the changes of a step, one a line, in at most ``most`` characters (and a line that
    counts the rest)."""
    lines = list(_lines(diff))
    kept, length = 0, 0
    while kept < len(lines) and length + len(lines[kept]) < most:
        length += len(lines[kept]) + 1
        kept += 1
    rest = len(lines) - kept + sum(diff.stats.truncated.values())
    return "\n".join([*lines[:kept], *([f"and {rest} more"] if rest else [])]) or NOTHING


def _lines(diff: StepDiff) -> Iterator[str]:
    if diff.cross_document:
        yield "another document is shown"
        if diff.text_delta is not None:
            yield from (f"new text: {_short(text)}" for text in diff.text_delta.added)
            yield from (f"gone text: {_short(text)}" for text in diff.text_delta.removed)
        yield from (f"control: {_short(control)}" for control in diff.top_actions)
        return
    yield from (_node("added", node) for node in diff.added)
    yield from (_node("removed", node) for node in diff.removed)
    yield from (_change(change) for change in diff.changed)
    if diff.flagged_changes:
        flags = [change.flag or "" for change in diff.flagged_changes]
        counts = ", ".join(f"{flags.count(flag)} by {flag}" for flag in sorted(set(flags)))
        yield f"as a consequence: {counts}"


def _node(what: str, node: DiffNode) -> str:
    size = f" ({node.nodes} elements)" if node.nodes > 1 else ""
    return f"{what} {node.tag}{size}: {_short(node.text)}"


def _change(change: DiffChange) -> str:
    name = change.path.rpartition("/")[2]
    return f"{change.kind} of {name}: {_short(change.before)} -> {_short(change.after)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line[:SHOWN]}…"' if len(line) > SHOWN else f'"{line}"'

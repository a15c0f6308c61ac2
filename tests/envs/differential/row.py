"""Small pages and what is done on them. A step is a verb, the ``data-t`` of its target and what
else it needs (`Step`)."""

from __future__ import annotations

from dataclasses import dataclass

Step = tuple[str, ...]
"""``click NAME``, ``double NAME``, ``triple NAME``, ``right NAME``, ``hover NAME``, ``type NAME
TEXT`` (into an emptied field), ``press KEY``, ``drag FROM TO``, ``select NAME LABEL…``, ``check
NAME``, ``uncheck NAME``, ``scroll NAME``, ``upload NAME``, ``accept [TEXT]`` and ``dismiss`` (the
dialog that is open), ``acknowledge`` (an alert, which ours does by itself), ``back``, ``forward``,
``wait SECONDS``."""


@dataclass(frozen=True)
class Row:
    """A page and what is done there."""

    name: str
    body: str
    steps: tuple[Step, ...]
    tolerance: int = 0
    """By how much numbers may differ: counts of what time makes."""
    error: str = ""
    """Of ours, where the page is right and the policy is to know more."""


def row(name: str, body: str, *steps: str, tolerance: int = 0, error: str = "") -> Row:
    """``steps`` are written with `|` between their parts."""
    return Row(name, body, tuple(tuple(step.split("|")) for step in steps), tolerance, error)


HEARD = "<script>for (const kind of ['input', 'change', 'focusout']) addEventListener(kind, e => say(kind + ' ' + e.target.dataset.t), true)</script>"
"""Names of a form's events; of ``input`` the last says what there was."""

"""Oracles for the pages of an e-mail program."""

from __future__ import annotations

from collections.abc import Sequence

from envs.bundled.oracles.clicking import email_icon, email_rows
from envs.bundled.oracles.parts import Oracle, click, fill, labelled, quoted, spot, tagged, wanted
from envs.types import Action, Click, Invalid, Observation, Scroll

SCROLL_AMOUNT = 0.5
"""Scroll amount in viewport heights: the list shows under four rows, and a scroll is a step."""


def mail(seen: Observation, history: Sequence[Action]) -> Action:
    """Scroll to the e-mail of the named sender, then delete, mark, answer or forward it."""
    field = next(iter(tagged(seen, "textarea" if "reply" in seen.instruction else "input")), None)
    if field is not None:
        to = wanted(seen, r"forward that email to (.+)\.$")
        return fill(seen, [(field, to or quoted(seen)[0])], _send(seen))
    answer = labelled(seen, "Reply" if "reply" in seen.instruction else "Forward", "item")
    if answer is not None:
        return Click(element=answer.index)
    rows = email_rows(seen)
    # Any of them may do for other actions; of a forwarded one the page compares the text.
    if "forward" in seen.instruction and len(rows) > 1:
        return Invalid(
            reason=f"{len(rows)} e-mails in view are by that sender, and {seen.instruction!r} does not say which"
        )
    action = email_icon(seen, history) if "icon" in seen.instruction else click(seen, rows[0] if rows else None)
    down = Scroll(at=spot(seen, seen.viewport[0] / 2, seen.viewport[1] * 0.6), amount=SCROLL_AMOUNT)
    return down if isinstance(action, Invalid) else action


def _send(seen: Observation) -> Action:
    """Click the icon in the upper right corner, which sends."""
    icons = [item for item in tagged(seen, "item") if not item.text]
    return click(seen, max(icons, key=lambda icon: icon.box[0]) if icons else None)


MAIL: dict[str, Oracle] = {
    "email-inbox": mail,
    "email-inbox-forward": mail,
    "email-inbox-noscroll": mail,
    "email-inbox-reply": mail,
    "email-inbox-star-reply": mail,
}
"""Oracles of the inbox's kinds."""

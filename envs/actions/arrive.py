"""Moves the mouse to a target and lets the page react before a click.

A person's hand takes a moment between the two, in which a page exchanges pictures, opens menus or
moves things. The page's clock stands still between steps, so a page that reacts to the mouse is
given that moment here, and its target is located again. If no script runs and no style changes, the
press follows at once. Chromium's own counters tell this (scripts, styles and layouts of all
frames).
"""

from __future__ import annotations

from dataclasses import replace

from envs.actions import pointer
from envs.actions.context import ActionContext
from envs.actions.dom_queries import Nodes
from envs.actions.errors import ActionError
from envs.actions.locate import Spot, locate
from envs.actions.validate import handle_name
from envs.types import ErrorCode
from envs.types.actions import MaybeTarget

HOVER_MS = 300.0
"""Virtual milliseconds between the arrival over a target and the press, if the page reacts. Menus
that open on hover wait 100 to 300."""

HOVER_SECONDS = 4.0
"""Real seconds for that wait. With the time to stop a script or a load it ends within the deadline
of an action."""

MAX_ARRIVALS = 3
"""Maximum number of places of one target that the mouse follows it to."""

WORK = ("ScriptDuration", "LayoutCount", "RecalcStyleCount")
"""Counters of ``Performance.getMetrics`` that do not change while a page does nothing."""


async def move_to_target(context: ActionContext, nodes: Nodes, target: MaybeTarget, spot: Spot) -> Spot | ActionError:
    """Move the mouse to a spot of the target.

    Returns:
        The spot after the page has reacted, with the mouse over it.
    """
    for _ in range(MAX_ARRIVALS):
        if not await _reacts(context, nodes, spot):
            return spot
        settled = await context.clock.settle(HOVER_MS, seconds=HOVER_SECONDS)
        if not settled.complete:
            what = "the page did not come to rest with the mouse over it"
            return ActionError(ErrorCode.TIMEOUT, what, "wait, or use something else")
        if spot.handle is None:
            return replace(spot, hit=None)
        hit = await nodes.hit_at(spot.point)
        if hit is not None and await nodes.is_hit(spot.handle.backend_node_id, hit):
            return replace(spot, hit=hit)
        moved = await locate(context, nodes, target)
        if isinstance(moved, ActionError):
            return moved
        spot = moved
    assert spot.handle is not None
    return ActionError(
        ErrorCode.OFF_SCREEN, f"{handle_name(spot.handle)} moves away from the mouse", "use something else"
    )


async def _reacts(context: ActionContext, nodes: Nodes, spot: Spot) -> bool:
    """Move the mouse, and return True if the page reacts to it."""
    before, changed = await nodes.counters(), False
    await pointer.move_at_once(context.cdp, *spot.point)
    if spot.hit is None or not spot.hit.in_own_frame:
        # The event behind the move computes the styles of the page's own frame. Those of another
        # frame come with the next picture, or with a hit test there (Chromium 156).
        hit = await nodes.hit_at(spot.point, spot.hit)
        changed = spot.hit is not None and hit is not None and hit.node != spot.hit.node
    after = await context.clock.counters()
    return changed or not before or any(before.get(counter) != after.get(counter) for counter in WORK)

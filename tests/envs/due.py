"""Pages on which something is due inside an action, and what they must say after it. The page's own
state decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envs.cdp import Cdp
from envs.types import Action
from tests.builders import page_task

SIDE = 448
"""Of a static site's viewport, in CSS pixels."""

Row = tuple[str, list[Action], Any]
"""A page, what is done on it, and what its ``state()`` must say then."""


def at(x: float, y: float) -> tuple[float, float]:
    """A point in thousandths of the viewport."""
    return (1000 * x / SIDE, 1000 * y / SIDE)


def script(code: str, state: str) -> str:
    """A script of a page, and what the page says of itself."""
    return f"<script>{code}; window.state = () => {state};</script>"


async def _state(cdp: Cdp) -> Any:
    answer = await cdp.send("Runtime.evaluate", {"expression": "state()", "returnByValue": True})
    return answer["result"].get("value", answer["result"].get("description"))


async def wrong(rows: Mapping[str, Row], pages: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """The rows whose page says something else than it must: what it says, and the errors of the
    actions."""
    missed = {}
    bodies = {f"{number}.html": body for number, (body, _, _) in enumerate(rows.values())}
    async with pages(bodies, screenshots=False, inspect=_state, **options) as (pool, site), pool.lease(site) as session:
        for number, (name, (_, actions, wanted)) in enumerate(rows.items()):
            result = await session.reset(page_task(f"/{number}.html"), 0)
            errors = []
            for action in actions:
                result = await session.step(action)
                errors += [result.observation.error] * (result.observation.error is not None)
            if result.inspected != wanted:
                missed[name] = (result.inspected, *errors)
    return missed

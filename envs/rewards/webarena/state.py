"""REAL's checks of a site's state, the JSON that its ``/finish`` page shows.

The sites of REAL keep what was done in the browser, so their page is read with the episode's own
storage. A check is a JMESPath query, or a script of the package agisdk (`state_scripts`). A query
that fails on the state does not hold, as in the benchmark; a page that shows no state makes its
checks unavailable, where the benchmark raises, and so does a script without a verdict.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import orjson

from envs.rewards.webarena.program import PageAccess
from envs.rewards.webarena.state_scripts import NoVerdictError, grade_state, lacking_script
from envs.types import BrowserError, ConfigError, SiteError
from envs.types.evidence import PageText
from envs.types.webarena import EvalType, StateCheck, WebArenaEval

STATE = "document.querySelector('pre')?.innerText ?? null"
"""JavaScript expression of the text that the page shows."""
MAX_VALUE = 10_000
"""Characters of a query's result that are kept, unless it is the one that is expected."""
MAX_SHOWN = 160
"""Characters of a result that go into evidence."""
NEEDS_JMESPATH = "the package jmespath, where the browsers run: pip install jmespath"


def lacking_state(evaluators: WebArenaEval) -> str:
    """Name what the checks of a state can never have in this process; empty if nothing."""
    checks = evaluators.state if EvalType.STATE_MATCH in evaluators.eval_types else ()
    if any(check.query for check in checks) and importlib.util.find_spec("jmespath") is None:
        return NEEDS_JMESPATH
    return next(filter(None, (lacking_script(check.script) for check in checks if check.script)), "")


async def read_state(evaluators: WebArenaEval, page: PageAccess, home: str) -> tuple[PageText, ...]:
    """Return the result of each check as JSON, in their order; empty where the task has none.

    Args:
        home: Address of the task's site.

    Raises:
        ConfigError: jmespath, or a script, is not installed.
    """
    if EvalType.STATE_MATCH not in evaluators.eval_types:
        return ()
    address = home.rstrip("/") + evaluators.state_page
    if lacking := lacking_state(evaluators):
        raise ConfigError(f"checks of a site's state need {lacking}")
    try:
        await page.goto(address)
        shown = await page.evaluate(STATE)
        state = orjson.loads(shown if isinstance(shown, str) else "")
    except (BrowserError, SiteError) as error:
        trouble = f"{type(error).__name__}: {error}"
    except orjson.JSONDecodeError:
        trouble = f"{address} shows no state; expected a <pre> with JSON"
    else:
        return tuple([await _read(check, state, address) for check in evaluators.state])
    return tuple(PageText(address=address, trouble=trouble) for _ in evaluators.state)


def compare_state(check: StateCheck, seen: PageText) -> tuple[float | None, str]:
    """Return 1 or 0, and the evidence; ``None`` if nothing was seen. Pure."""
    if seen.trouble:
        return None, seen.trouble
    result = orjson.loads(seen.text)
    asked = check.query or check.script
    what = f"{check.description} ({asked})" if check.description else asked
    if "failed" in result:
        return 0.0, f"{what}: {result['failed']}"
    held = result["value"] == check.expected
    shown = orjson.dumps(result["value"]).decode()[:MAX_SHOWN]
    return float(held), f"{what}: {shown} {'is' if held else 'is not'} {orjson.dumps(check.expected).decode()}"


async def _read(check: StateCheck, state: object, address: str) -> PageText:
    if not check.script:
        return PageText(address=address, text=_result(check, state))
    try:
        return PageText(address=address, text=orjson.dumps({"value": await grade_state(check.script, state)}).decode())
    except NoVerdictError as error:
        return PageText(address=address, trouble=str(error))


def _result(check: StateCheck, state: object) -> str:
    jmespath: Any = importlib.import_module("jmespath")
    try:
        value = jmespath.search(check.query, state)
        text = orjson.dumps({"value": value}).decode()
    except (ValueError, TypeError, AttributeError) as error:  # a bad query, and one that the state does not fit
        return orjson.dumps({"failed": " ".join(str(error).split())[:MAX_SHOWN]}).decode()
    if len(text) > MAX_VALUE and value != check.expected:
        return orjson.dumps({"failed": f"the result has {len(text)} characters: {text[:MAX_SHOWN]}"}).decode()
    return text

"""Actions on a tab's history and on the tabs; they begin here, and the session settles them."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from envs.actions.context import ActionContext, Effect
from envs.actions.errors import ActionError, shorten
from envs.cdp.messages import BAD_URL, send_unless
from envs.types import Back, CloseTab, ErrorCode, Forward, Goto, NewTab, Refresh, SwitchTab

BLANK = "about:blank"

REFUSALS = (
    "ERR_BLOCKED",
    "ERR_NAME_NOT_RESOLVED",
    "ERR_TUNNEL_CONNECTION_FAILED",
    "ERR_PROXY",
    "ERR_UNSAFE_PORT",
    "ERR_ADDRESS_UNREACHABLE",
    "ERR_DISALLOWED_URL_SCHEME",
)
"""Network errors of the egress rules: the way out is closed, while the other side may be fine."""


def checked_url(url: str, current: str, context: ActionContext) -> str | ActionError:
    """Return the whole address to load.

    Relative ones are taken from the current page, and ``http://`` is put before a bare host. Only
    http and https are allowed: ``file:``, ``javascript:``, ``data:`` and the browser's own pages
    are refused, as are hosts that the task may not reach.
    """
    url = url.strip()
    if url == BLANK:
        return url
    if url.startswith(("/", "?", "#", "./", "../")):
        url = urljoin(current, url)
    elif "://" not in url and not url.partition(":")[0].isalpha():
        url = f"http://{url}"
    elif "://" not in url and url.partition(":")[2].partition("/")[0].isdigit():
        url = f"http://{url}"  # localhost:8000/path
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return ActionError(ErrorCode.BAD_ACTION, f"{shorten(url)!r} is no address")
    if parts.scheme not in ("http", "https"):
        return ActionError(
            ErrorCode.BLOCKED_HOST, f"{shorten(url)!r} is no web address", "only http and https are open"
        )
    if not usable:
        return ActionError(ErrorCode.BAD_ACTION, f"{shorten(url)!r} is no address")
    if not context.allowed(url):
        return ActionError(
            ErrorCode.BLOCKED_HOST, f"{shorten(parts.netloc)} is not open to this task", "stay on its sites"
        )
    return url


async def goto(context: ActionContext, action: Goto) -> Effect | ActionError:
    """Begin to load an address.

    An answer of any status is a page. No answer is an error, and the tab shows the browser's own
    page for it.
    """
    url = checked_url(action.url, (await _history(context))[1], context)
    if isinstance(url, ActionError):
        return url
    await context.clock.begin()
    begun = await send_unless(BAD_URL, context.cdp, "Page.navigate", {"url": url, "transitionType": "typed"})
    if begun is None:
        return ActionError(ErrorCode.BAD_ACTION, f"{shorten(url)!r} is no address")
    failed = begun.get("errorText", "")
    if not failed or failed == "net::ERR_ABORTED":  # a download or an empty answer: the page stays
        return Effect()
    if any(refusal in failed for refusal in REFUSALS):
        return ActionError(
            ErrorCode.BLOCKED_HOST, f"{shorten(url)} cannot be reached ({failed})", "stay on the task's sites"
        )
    return ActionError(
        ErrorCode.NAVIGATION_FAILED, f"{shorten(url)} does not answer ({failed})", "go back or try again"
    )


async def through_history(context: ActionContext, action: Back | Forward | Refresh) -> Effect | ActionError:
    """Begin to go back or forward, or to load the page again."""
    if isinstance(action, Refresh):
        await context.cdp.send("Page.reload")
        return Effect()
    entries, _, place = await _history(context)
    place += 1 if isinstance(action, Forward) else -1
    # The first entry is the empty tab that the episode began with.
    if not 0 <= place < len(entries) or (isinstance(action, Back) and place == 0 and entries[0]["url"] == BLANK):
        return ActionError(ErrorCode.NO_HISTORY, f"there is no page to go {action.type} to")
    await context.cdp.send("Page.navigateToHistoryEntry", {"entryId": entries[place]["id"]})
    return Effect()


async def use_tabs(context: ActionContext, action: NewTab | SwitchTab | CloseTab) -> Effect | ActionError:
    """Open, show or close a tab."""
    if isinstance(action, NewTab):
        url = None if action.url is None else checked_url(action.url, (await _history(context))[1], context)
        if isinstance(url, ActionError):
            return url
        await context.tabs.new_tab(url)
        return Effect()
    numbers = context.tabs.tab_numbers
    tab = context.tabs.active_number if action.tab is None else action.tab
    if tab not in numbers:
        listed = ", ".join(map(str, numbers))
        return ActionError(ErrorCode.NO_SUCH_TAB, f"there is no tab {tab}", f"the open ones are {listed}")
    if isinstance(action, SwitchTab):
        await context.tabs.switch_tab(tab)
    elif len(numbers) == 1:
        return ActionError(ErrorCode.BAD_ACTION, "the last tab stays open", "end the episode with answer or terminate")
    else:
        await context.tabs.close_tab(tab)
    return Effect()


async def _history(context: ActionContext) -> tuple[list[dict[str, object]], str, int]:
    """Return the entries of the tab's history, the current address, and its place among them."""
    answer = await context.cdp.send("Page.getNavigationHistory")
    place = int(answer["currentIndex"])
    return answer["entries"], str(answer["entries"][place]["url"]), place

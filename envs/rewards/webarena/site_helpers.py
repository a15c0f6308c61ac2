"""WebArena's ``func:`` helpers that a run can call, and what they lack.

The ``func:`` helpers of one run: those that need no site, the shop's and GitLab's; and what a
configuration lacks for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from envs.rewards.webarena import members
from envs.rewards.webarena.helpers import HELPERS, Helper, UnknownHelper, read_helper_call
from envs.rewards.webarena.page_helpers import PAGE_HELPERS
from envs.rewards.webarena.shop import ADMIN, NAMES, NEEDS_ADDRESS, NEEDS_LOGIN, SITE, Shop
from envs.types.near import near
from envs.types.webarena import PLACEHOLDER, PageCheck, WebArenaEval

KNOWN = frozenset({*HELPERS, *PAGE_HELPERS, members.NAME, *NAMES})
"""Names of all helpers of the benchmark."""


def site_helpers(addresses: Mapping[str, str], logins: Mapping[str, str]) -> Mapping[str, Helper]:
    """Return all helpers of the benchmark, by name.

    Call it once for a worker: the shop's helpers keep its token.

    Args:
        addresses: Addresses of sites by name (``tasks.addresses``).
        logins: Files by the names of their sites, and ``shopping_site_admin`` (``tasks.logins``).
            Read when they are needed.

    Raises:
        ConfigError: The shop's address is none that a site may have.
    """
    shop = Shop(addresses.get(SITE, ""), logins.get(ADMIN, ""))
    return {**HELPERS, **PAGE_HELPERS, members.NAME: members.project_member_role, **shop.helpers}


def unknown_helper(evaluators: WebArenaEval) -> str:
    """A ``func:`` program of a check that calls no helper of the benchmark; empty if there is none.
    Pure."""
    checks = evaluators.program_html
    for program in (source for check in checks for source in (check.url, check.locator) if source.startswith("func:")):
        try:
            name, _ = read_helper_call(program)
        except UnknownHelper:
            return program
        if name not in KNOWN:
            return name
    return ""


def lacking(check: PageCheck, addresses: Mapping[str, str], logins: Mapping[str, str]) -> str:
    """Name what a page's check can never have in this configuration, with the key to set; empty if
    nothing. Pure.

    Args:
        check: The check with the addresses of sites put in (`placed`).
    """
    if (placeholder := PLACEHOLDER.search(check.url)) is not None:
        return f"the address of {placeholder.group()}: set tasks.addresses.{placeholder.group().strip('_').lower()}=http://…"
    for program in (check.url, check.locator):
        if not program.startswith("func:"):
            continue
        try:
            name, _ = read_helper_call(program)
        except UnknownHelper as error:
            return f"a helper that can be called: {error}"
        if name not in KNOWN:
            return f"the helper {name!r}, which is not known; {near(name, KNOWN)}there are {', '.join(sorted(KNOWN))}"
        if name in NAMES:
            if SITE not in addresses:
                return NEEDS_ADDRESS
            if ADMIN not in logins:
                return NEEDS_LOGIN
    return ""

"""Reads a GitLab member's role from the page, as WebArena's check does."""

from __future__ import annotations

import json
from typing import Protocol
from urllib.parse import urlsplit

from envs.types import PageScriptError, SiteError

NAME = "gitlab_get_project_memeber_role"
"""Name of the helper, in the benchmark's spelling."""
SIGN_IN = "/users/sign_in"
"""Path to which GitLab redirects visitors without a log-in."""

_ROLE = """(() => {
  const accounts = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const row = accounts.find((each) => each.outerText.trim() === %s)?.closest("tr");
  return row?.querySelector("td.col-max-role span")?.outerText.trim() ?? "";
})()"""


class ScriptPage(Protocol):
    """A page, as `envs.rewards.webarena.PageAccess`."""

    async def url(self) -> str: ...
    async def evaluate(self, expression: str) -> object: ...


async def project_member_role(page: ScriptPage, account_name: str) -> str:
    """The role of an account on the page of a project's members; empty if it is no member, or if
    this is no such page.

    The benchmark counts accounts and roles of the whole page and takes those of one number; this
    takes the role of the account's row.

    Raises:
        SiteError: the page asks for a log-in.
        BrowserError: the browser failed.
    """
    if not isinstance(account_name, str):
        raise SiteError(f"{NAME}: the name of an account is asked for; expected a text")
    shown = urlsplit(await page.url())
    if shown.path.rstrip("/").endswith(SIGN_IN):
        raise SiteError(
            f"GitLab shows its log-in and not the members: set tasks.logins.gitlab to a file with a log-in's cookies, or renew it "
            f"({shown.scheme}://{shown.netloc}{shown.path})"
        )
    try:
        return str(await page.evaluate(_ROLE % json.dumps(f"@{account_name}")))
    except PageScriptError:
        return ""

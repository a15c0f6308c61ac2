"""Records a site: a browser visits it, and its requests and answers become an HTTP archive.

::

    async def record(page):
        await page.goto("/")
        await page.get_by_role("link", name="Lamps").click()

The browser reaches the named hosts alone, through the egress proxy. The archive holds no header of
a request; forms that the script sends and cookies that answers set are in it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from envs.atomic import open_atomic
from envs.egress import AllowList
from envs.egress.message import ERROR_HEADER
from envs.sites.base import VIEWPORT
from envs.sites.mirror.har import Recording, read_har
from envs.sites.scripted_browser import find_script, open_scripted_browser, script_errors
from envs.types import SiteError
from envs.types.extensions import Extensions
from envs.types.paths import AnyPath

if TYPE_CHECKING:
    from playwright.async_api import Page

SCRIPTS: Extensions[Any] = Extensions("recording script", "rollwright.recordings", {})
"""Scripts by name; ``module:function`` names one of your own."""


@dataclass(frozen=True)
class RecordedVisit:
    """Result of a visit."""

    recording: Recording
    refused: tuple[str, ...]
    """Hosts that its pages asked for and that were not named."""


async def record_site(
    address: str,
    out: AnyPath,
    *,
    hosts: tuple[str, ...] = (),
    paths: tuple[str, ...] = (),
    script: str = "",
) -> RecordedVisit:
    """Visit a site and write its answers to ``out``, an HTTP archive that replaces an older one.

    Args:
        address: Origin of the site.
        hosts: Further origins that its pages may reach.
        paths: Paths that are visited in turn; ``/`` if neither paths nor a script is given.
        script: A Playwright function that is run after them, as ``module:function``.

    Raises:
        ConfigError: An origin or the script is wrong.
        SiteError: The site does not answer, or the script failed.
    """
    visit = find_script(SCRIPTS, script) if script else None
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.har"
        async with open_scripted_browser(
            AllowList.of(address, *hosts),
            base_url=address,
            viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]},
            record_har_path=draft,
            record_har_content="embed",
            service_workers="block",
        ) as (context, listener):
            page = await context.new_page()
            for path in paths or (() if visit else ("/",)):
                await _go_to(page, path)
            if visit:
                with script_errors(f"recording script {script}"):
                    await visit(page)
                    await page.wait_for_load_state("networkidle")
            await context.close()  # which writes the archive
        archive = orjson.loads(draft.read_bytes())
        refused = tuple(sorted({host for _, host in listener.refused}))
    for entry in archive["log"]["entries"]:  # a replay needs none of these secrets
        entry["request"] |= {"headers": [], "cookies": []}
    with open_atomic(Path(out)) as file:
        file.write(orjson.dumps(archive, option=orjson.OPT_INDENT_2))
    return RecordedVisit(read_har(Path(out)), refused)


async def _go_to(page: Page, path: str) -> None:
    with script_errors(f"{path} cannot be recorded"):
        answer = await page.goto(path, wait_until="networkidle")
    if answer is not None and ERROR_HEADER in answer.headers:
        raise SiteError(f"{path} cannot be recorded: {await answer.text()}")

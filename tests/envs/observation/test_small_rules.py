"""The rules that the shipped policy was trained on: what they show of MiniWoB pages stays as it was
recorded."""

from __future__ import annotations

import json
from pathlib import Path

from envs.browser import BrowserPool
from envs.sites import make_site
from envs.sites.miniwob import import_tasks
from envs.types import Element

RECORDED: dict[str, list[str]] = json.loads((Path(__file__).parent / "small_rules.json").read_text(encoding="utf-8"))
"""Lines of the prompt by kind of task, at seed 1, recorded on 2026-11-24 before `full` learned more
states."""


def line(element: Element) -> str:
    """As the policy's prompt writes an element; written out here so that a change of either is
    seen."""
    tag = "textbox" if element.tag == "input" else element.tag
    value = "***" if element.tag == "password" else element.value
    checked = "checked " if element.checked else ""
    return f'[{element.index}] {checked}{tag} "{element.text}"' + (f' value "{value}"' if element.value else "")


async def test_the_small_rules_show_what_they_did() -> None:
    tasks = {task.kind: task for task in import_tasks()}

    site = make_site(tasks["click-test"].site)
    await site.start()
    try:
        async with BrowserPool() as pool, pool.lease(site) as session:
            seen = {kind: list((await session.reset(tasks[kind], 1)).observation.elements) for kind in RECORDED}
    finally:
        await site.close()
    assert {kind: [line(element) for element in elements] for kind, elements in seen.items()} == RECORDED
    everything = [element for elements in seen.values() for element in elements]
    assert not any(element.states or element.written or element.more_options for element in everything)

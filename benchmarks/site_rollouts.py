"""The part of `benchmarks.sites` about whole rollouts: a site for each episode against one static
page that all episodes share.

Both arms have the page `PAGE` of the shop with its styles, scripts and pictures, the shipped policy
with short answers, the same actions, browser, grading and files. One arm has a server of its own
for each episode, which makes the page. The other has a copy of what it made, in a folder. The arms
take turns.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

from benchmarks import Figure
from envs.sites import RecipeSite, StaticSite, find_recipe
from envs.types import WebTask
from tasks_lib.config import EvaluateConfig, resolve, resolve_path
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker.rollout_worker import RolloutWorker
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.records.groups import GroupSpec

PAGE = "/basket/"
ROUNDS, GROUPS, GROUP_SIZE, STEPS = 6, 4, 6, 5
"""Turns of each arm; groups of a turn, which are played side by side; episodes of a group, and
their steps."""
TOKENS = 4
"""Of an answer: the model on two cores is not to hide what the site takes."""
SHARED = f"{__name__}:shared_page"
FOLDER = "ROLLWRIGHT_BENCHMARK_PAGE"
"""Environment variable with the folder of the copied page."""
_PARTS = re.compile(r"""(?:src|href)=["'](/(?:static|media)/[^"'?#]+)|url\(["']?([^"')?#:]+)""")
"""Addresses of a page's parts, in HTML and in styles."""


def shared_page() -> StaticSite:
    """The copied page as a site."""
    return StaticSite(SHARED, os.environ[FOLDER], viewport=find_recipe("oscar").viewport)


def type_a_word(text: str) -> Mapping[str, Any]:
    """The same action for all that the policy writes: a word for the search of the page."""
    return {"type": "type", "element": 5, "text": "lamp"}


def figures() -> list[Figure]:
    """Rates of both arms in one worker."""
    config: EvaluateConfig = resolve(
        EvaluateConfig,
        {
            "run_id": "sites",
            "policy": {"max_new_tokens": TOKENS},
            "rollout": {"concurrency": GROUPS, "repeats": 0, "parser": f"{__name__}:type_a_word"},
        },
    )
    rates: dict[str, list[float]] = {"oscar": [], SHARED: []}
    worker = RolloutWorker()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = f"{folder}/page"
        asyncio.run(_copy_page(Path(folder, "page")))
        store = RunStore(Path(folder, "run"))
        store.publish_policy(0, resolve_path(config.policy.checkpoint), {})
        rollouts = Rollouts(store, config.policy, config.rollout, seed=0)
        worker.setup(None)
        try:
            for number in range(ROUNDS + 1):
                for arm, (site, seen) in enumerate(rates.items()):
                    groups = [
                        GroupSpec(
                            group_id=f"i{number:06d}-g{2 * group + arm:04d}", task=_task(site), seeds=(0,) * GROUP_SIZE
                        )
                        for group in range(GROUPS)
                    ]
                    begun = time.perf_counter()
                    worker.roll_out(rollouts.request(groups, 0))
                    seconds = time.perf_counter() - begun
                    played = [one for group in groups for one in read_group(store, group.group_id).episodes]
                    right = [one.score == 1 and one.steps == STEPS and not one.action_errors for one in played]
                    assert all(right), played
                    if number:  # the first turn starts browsers and sites
                        seen.append(len(played) / seconds)
        finally:
            worker.teardown(None)
            del os.environ[FOLDER]
    ratios = [own / shared for own, shared in zip(rates["oscar"], rates[SHARED], strict=True)]
    return [
        Figure("rollouts, a site for each episode / one static page", statistics.median(ratios), "ratio", ">= 0.9"),
        Figure("rollouts with a site for each episode", statistics.median(rates["oscar"]), "episodes/s", ""),
    ]


def _task(site: str) -> WebTask:
    fact = {"id": "there", "type": "url", "url": PAGE}
    return WebTask.model_validate(
        {
            "task_id": "rollouts/there",
            "site": site,
            "kind": "rollouts",
            "path": PAGE,
            "instruction": "Write lamp into the search.",
            "difficulty": 1,
            "horizon": STEPS,
            "seeds": {"train": {"start": 0, "stop": 1}},
            "rubric": {"fact_groups": [{"name": "there", "facts": [fact]}]},
        }
    )


async def _copy_page(folder: Path) -> None:
    """Write the page of an instance and all parts of it into a folder."""
    site = RecipeSite(find_recipe("oscar"))
    await site.start()
    try:
        cookies = [*site.server_of(await site.launch()).headers.values()]
        cookies += [f"{one['name']}={one['value']}" for one in site.cookies]
        headers = {"cookie": "; ".join(cookies)}
        async with httpx.AsyncClient(base_url=site.origin, headers=headers, trust_env=False, timeout=60) as client:
            paths = [PAGE]
            for path in paths:  # grows
                answer = await client.get(path)
                if answer.status_code == 404 and path != PAGE:
                    continue  # it is missing in the shop too
                answer.raise_for_status()
                place = folder / (f"{path}index.html" if path.endswith("/") else path).lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(answer.content)
                if answer.headers["content-type"].startswith(("text/html", "text/css")):
                    parts = [urljoin(path, match[1] or match[2]) for match in _PARTS.finditer(answer.text)]
                    paths += [part for part in dict.fromkeys(parts) if part not in paths]
    finally:
        await site.close()

"""Pages on another device, and with seeded random numbers, as a run's configuration asks for
them."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from PIL import Image

from envs.browser import Device, PageStep
from envs.types import Click, WebTask
from tasks_lib.config import RolloutConfig
from tasks_lib.worker.requests import pool_options
from tests.builders import page_task
from training.config import PolicyConfig

PAGE = """<meta name="viewport" content="width=device-width"><p id="said"></p><button>go</button>
<script>
const drawn = Array.from(crypto.getRandomValues(new Uint8Array(4))).join("-") + " " + Math.random();
said.textContent = [innerWidth, devicePixelRatio, navigator.maxTouchPoints > 0, navigator.userAgent, drawn].join(" / ");
document.querySelector("button").onclick = event => { said.textContent = "clicked " + event.isTrusted; };
</script>"""

TELEPHONE = Device(width=390, height=844, scale=2, mobile=True, user_agent="telephone/1")


def shown(pages: Any, task: WebTask, **rollout: Any) -> tuple[PageStep, PageStep]:
    """What an episode sees of the page, first and after a click in the middle of its button."""

    async def run() -> tuple[PageStep, PageStep]:
        given = pool_options(RolloutConfig(**rollout), PolicyConfig())
        options = {name: getattr(given, name) for name in ("device", "page_seed")}
        async with pages({"index.html": PAGE}, **options) as (pool, site), pool.lease(site) as session:
            first = await session.reset(task, 0)
            (button,) = (element for element in first.observation.elements if element.tag == "button")
            x, y, width, height = button.box
            wide, high = first.observation.viewport
            spot = (round(1000 * (x + width / 2) / wide), round(1000 * (y + height / 2) / high))
            return first, await session.step(Click(at=spot))

    return asyncio.run(run())


def test_a_telephone(pages: Any) -> None:
    first, clicked = shown(pages, page_task("/index.html"), device=TELEPHONE)
    assert "390 / 2 / true / telephone/1" in first.observation.text
    assert first.observation.viewport == (390, 844)
    assert Image.open(io.BytesIO(first.screenshot)).size == (780, 1688)
    assert "clicked true" in clicked.observation.text


def test_seeded_random_numbers(pages: Any) -> None:
    task = page_task("/index.html")
    texts = [shown(pages, task, page_seed=seed)[0].observation.text for seed in (1, 1, 2)]
    free = [shown(pages, task)[0].observation.text for _ in range(2)]
    assert texts[0] == texts[1] and len({*texts, *free}) == 4

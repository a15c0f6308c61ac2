"""Reset and step: determinism, errors that the policy sees, isolation, egress."""

from __future__ import annotations

import asyncio
import hashlib
import io
from typing import Any

import pytest
from PIL import Image

from envs.browser import BrowserPool, PageStep
from envs.bundled.oracles import oracle_action
from envs.cdp.json_format import read
from envs.sites import Site
from envs.types import Action, BrowserError, Click, Invalid, Select, Type, WebTask
from tests.builders import page_task

DETERMINISM_KINDS = (
    "click-tab",
    "click-collapsible",
    "enter-text",
    "click-checkboxes",
    "choose-list",
    "click-dialog-2",
)


def print_of(frame: PageStep) -> tuple[str, str, str]:
    """All that an episode can see of a frame (the port of the site aside)."""
    seen = frame.observation.model_copy(update={"url": ""})
    return seen.model_dump_json(), hashlib.sha256(frame.screenshot).hexdigest(), str(frame.page_facts)


async def play(pool: BrowserPool, site: Site, task: WebTask, seed: int) -> list[tuple[str, str, str]]:
    async with pool.lease(site) as session:
        frames = [await session.reset(task, seed)]
        history: list[Action] = []
        while not frames[-1].done and len(history) < task.horizon:
            history.append(oracle_action(task.kind, frames[-1].observation, history))
            frames.append(await session.step(history[-1]))
    return [print_of(frame) for frame in frames]


def test_same_seed_and_actions_give_the_same_pixels_and_rewards(
    miniwob: Any, miniwob_tasks: dict[str, WebTask]
) -> None:
    async def run() -> tuple[Any, Any]:
        tasks = [miniwob_tasks[kind] for kind in DETERMINISM_KINDS]
        async with miniwob(max_sessions=6) as (pool, site):
            # First crowded, on pages that then carry the traces of another episode; then alone, in
            # another browser.
            await asyncio.gather(*(play(pool, site, task, 7) for task in tasks))
            crowded = await asyncio.gather(*(play(pool, site, task, 100_001) for task in tasks))
        async with miniwob(max_sessions=1) as (pool, site):
            alone = [await play(pool, site, task, 100_001) for task in tasks]
        return crowded, alone

    crowded, alone = asyncio.run(run())
    for kind, one, other in zip(DETERMINISM_KINDS, crowded, alone, strict=True):
        assert one == other, kind


async def test_another_seed_gives_another_page(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    async with miniwob() as (pool, site):
        task = miniwob_tasks["click-button"]
        one = await play(pool, site, task, 1)
        other = await play(pool, site, task, 2)
    assert one[0] != other[0]


async def test_a_frame_is_whole(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    async with miniwob() as (pool, site), pool.lease(site) as session:
        first = await session.reset(miniwob_tasks["click-test"], 3)
        last = await session.step(Click(element=1))
    assert Image.open(io.BytesIO(first.screenshot)).size == first.observation.viewport == (168, 224)
    assert first.page_facts == {"raw_reward": 0, "done": False, "reason": ""} and first.point is None
    box, point = first.observation.elements[0].box, last.point
    assert point is not None and box[0] < point[0] < box[0] + box[2] and box[1] < point[1] < box[1] + box[3]
    assert last.done and last.page_facts["raw_reward"] == 1
    assert last.observation.instruction == "Click the button." and last.observation.elements == ()


@pytest.mark.parametrize(
    ("action", "code", "hint"),
    [
        (Click(element=9), "unknown_element", "choose 1 to 2"),
        (Type(element=2, text="x"), "not_editable", "is a button"),
        (Select(element=2, text="x"), "not_a_list", "is a button"),
        (Select(element=1, text="Atlantis"), "no_such_option", "'Atlantis'"),
        (Invalid(reason="no action found"), "invalid_action", "no action found"),
    ],
)
async def test_an_impossible_action_is_told_and_changes_nothing(
    miniwob: Any, miniwob_tasks: dict[str, WebTask], action: Action, code: str, hint: str
) -> None:
    async with miniwob() as (pool, site), pool.lease(site) as session:
        before = await session.reset(miniwob_tasks["choose-list"], 3)
        after = await session.step(action)
    error = after.observation.error
    assert error is not None and error.startswith(f"{code}: ") and hint in error
    assert after.observation.elements == before.observation.elements and after.screenshot == before.screenshot
    assert after.point is None and not after.done


EVENTS = """<input id=f value=old><select id=s><option>one<option>two<option>three</select>
<button onclick="document.title='x'">Go</button><a id=log href=#></a><script>
let heard = [];
for (const type of ["mousedown", "click", "keydown", "input", "change"])
  addEventListener(type, (e) => { heard.push(type + (e.isTrusted ? "" : "!")); log.textContent = [...new Set(heard)].join(" "); }, true);
</script>"""


async def test_events_are_trusted_and_typing_replaces(pages: Any) -> None:
    async with pages({"index.html": EVENTS}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        await session.step(Type(element=1, text="Grüße, 7%"))
        await session.step(Select(element=2, text="three"))
        field, chosen, _, log = (await session.step(Click(element=3))).observation.elements
    assert (field.tag, field.value) == ("input", "Grüße, 7%")
    assert (chosen.tag, chosen.value) == ("select", "three")
    assert "!" not in log.text and log.text.startswith("mousedown click")


CANARY = """<button>b</button><a href=#></a><script>
document.querySelector("a").textContent = document.cookie + "|" + (localStorage.getItem("k") || "");
document.cookie = "c=1"; localStorage.setItem("k", "v");
</script>x"""


async def test_each_episode_of_a_stateful_site_has_its_own_storage(pages: Any) -> None:
    task = page_task("/index.html")
    async with pages({"index.html": CANARY}) as (pool, site):
        seen = []
        for _ in range(2):
            async with pool.lease(site) as session:
                for _ in range(2):  # a second episode of one lease is fresh as well
                    frame = await session.reset(task, 0)
                    seen.append(frame.observation.elements[1].text)
        found = seen
    assert found == ["|"] * 4


EGRESS = """<a id=out href=#>waiting</a><script>
const urls = ["http://example.com/", "http://93.184.216.34/", "https://localhost.example/"];
Promise.allSettled(urls.map((u) => fetch(u))).then(
  (all) => { out.textContent = all.map((r) => r.status === "rejected" ? "no" : "OUT").join(" "); });
</script>"""


async def test_nothing_but_the_site_is_reached(pages: Any) -> None:
    async with pages({"index.html": EGRESS}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        found = result.observation.elements[0].text, sum(pool.metrics()["requests_refused"].values())
    assert found == ("no no no", 3)


HALVES = """<button title="x" onclick="this.textContent = 'b' + half">a</button><script>
const half = JSON.parse('"\\\\ud83d"');
document.title = "t" + half;
document.querySelector("button").title = half;
document.querySelector("button").setAttribute("data-half", half + "\\u{1f600}");
console.log(half);
</script>"""


async def test_half_a_surrogate_pair_is_read_as_the_replacement_character(pages: Any) -> None:
    """JavaScript's strings may have one, JSON's texts may not; the socket of all pages lives on."""

    async with pages({"index.html": HALVES}, signals=True) as (pool, site), pool.lease(site) as session:
        first = await session.reset(page_task("/index.html"), 0)
        assert first.observation.title == "t\ufffd" and first.observation.elements[0].text == "a"
        after = await session.step(Click(element=1))
        assert after.observation.elements[0].text == "b\ufffd"
        assert after.observation.model_validate_json(after.observation.model_dump_json()) == after.observation
        metrics = pool.metrics()
        assert metrics["disconnects"] == 0 and metrics["browsers"][0]["reconnects"] == 0


def test_only_the_half_is_replaced_in_a_message() -> None:
    raw = b'{"id":1,"result":{"a\\ud83d":["x\\ud83d\\ude00","\\ude00y\\ud83d",1.5,null,true]}}'
    assert read(raw) == {
        "id": 1,
        "result": {"a\ufffd": ["x\U0001f600", "\ufffdy\ufffd", 1.5, None, True]},
    }


def test_a_missing_page_is_a_browser_error(pages: Any) -> None:
    async def run() -> None:
        async with pages({"index.html": ""}) as (pool, site), pool.lease(site) as session:
            await session.reset(page_task("/nowhere.html"), 0)

    with pytest.raises(BrowserError, match=r"nowhere\.html is not there; correct the path"):
        asyncio.run(run())


def test_a_step_without_an_episode_is_a_browser_error(miniwob: Any) -> None:
    async def run() -> None:
        async with miniwob() as (pool, site), pool.lease(site) as session:
            await session.step(Click(element=1))

    with pytest.raises(BrowserError, match=r"call reset\(\) first"):
        asyncio.run(run())


async def test_each_piece_of_work_is_told_when_it_begins(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    told: list[str] = []
    async with miniwob() as (pool, site), pool.lease(site) as session:
        session.tell = told.append
        await session.reset(miniwob_tasks["click-test"], 3)
        assert list(dict.fromkeys(told)) == ["reset", "navigate", "settle", "observe", "screenshot"]
        told.clear()
        await session.step(Click(element=1))
        assert told == ["execute", "settle", "observe", "screenshot"]

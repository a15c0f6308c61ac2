"""What is read at the end of an episode: predicates that no page can fake or see, nodes with
styles, downloads."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from envs.browser import WebSession
from envs.browser import end_evidence as reading
from envs.browser.end_evidence import DownloadFolder, read_files
from envs.episodes import WebEpisode
from envs.rewards import GradingEvidence, grade_by_program
from envs.types import Answer, BrowserError, Click, Needs, Recorded, Scroll, StopReason, SwitchTab, WebTask, needs
from envs.types.evidence import Download
from tests.builders import make_rubric, page_task

HOSTILE = """
<script>
  const seen = [];
  window.probe = 7;
  for (const owner of [Document.prototype, Element.prototype, Array.prototype, Object.prototype])
    for (const name of ["querySelector", "querySelectorAll", "getElementById", "from", "hasOwnProperty", "filter", "some"])
      if (name in owner) Object.defineProperty(owner, name, {value: (...all) => { seen.push(name); return {textContent: "42"}; }});
  document.querySelector = () => ({textContent: "42"});
  Object.defineProperty(document, "title", {get: () => { seen.push("title"); return "Paid"; }});
  window.$ = window.$$ = () => ({textContent: "42"});
  setInterval(() => { if (seen.length) document.body.append("SEEN " + seen); }, 1);
</script>
<form name="querySelector"></form><img name="querySelectorAll">
<p id="total">17</p><p class="line" style="color: rgb(1, 2, 3)">a</p><p class="line" style="display: none">b</p>
<p id="wide" style="width: 120px">c</p>
<input id="box" type="checkbox" checked><div id="host"></div>
<iframe srcdoc="<p id='inner'>framed</p>"></iframe>
<script>host.attachShadow({mode: "closed"}).innerHTML = "<b id='deep' DATA-X='1'>deep</b>";</script>
"""

PREDICATES: dict[str, bool | str] = {
    "$('#total').textContent === '17'": True,
    "$('#total').textContent === '42'": False,
    "$$('.line').length === 2": True,
    "$('#box').checked // as it is now": True,
    "document.title === 't'": True,
    "$$('.line').map((line) => line.textContent).join() === 'a,b'": True,
    "getComputedStyle($('.line')).color === 'rgb(1, 2, 3)'": True,
    "/^1\\d$/.test($('#total').textContent)": True,
    "location.pathname === '/a.html'": True,
    "new URL(location.href).pathname === '/a.html'": "may only read",  # V8 does not know that it does nothing else
    "typeof probe === 'undefined'": True,  # the page's own variables are not there
    "$('#gone')?.textContent === '17'": False,
    "$('#gone').textContent === '17'": False,  # it throws: the policy may have removed it
    "JSON.parse($('#total').textContent + '{') === 1": False,  # a SyntaxError of the page's text, not of ours
    "JSON.parse('{') === $('#total').remove()": False,
    "$('#total').textContent": "expected true or false",
    "$('#total').remove() === undefined": "may only read",
    "($('#total').textContent = '42') === '42'": "may only read",
    "(document.title = 'x') === 'x'": "may only read",
    "(window.mark = 1) === 1": "may only read",
    "fetch('/x') && true": "may only read",
    "(() => { while (true); })()": "stopped after 1 s",
    "nonsense(": "SyntaxError",
    "undefined": "is undefined",
    "$('#total')": "expected true or false",
    "NaN": "NaN",
    "(() => { const a = {}; a.a = a; return a; })()": "",
    "'x'.repeat(20000)": "expected true or false",
    "['secret']": "is a list",
    "null": "is null",
    "({secret: 1})": "is an object",
    "$$('.line').length": "expected true or false",
}


def graded(rubric: Any, recorded: Recorded) -> list[tuple[float | None, str]]:
    evidence = GradingEvidence(**{name: getattr(recorded, name) for name in Recorded.model_fields})
    return [(part.value, part.evidence) for part in grade_by_program(rubric, evidence).parts]


async def ended(session: WebSession, task: WebTask) -> Recorded:
    await session.reset(task, 0)
    await session.step(Answer(text="done"))
    return await session.evidence(needs(task.rubric))


async def test_predicates_are_not_faked_not_seen_and_only_read(pages: Any) -> None:
    rubric = make_rubric(*({"type": "js", "expression": each} for each in PREDICATES))
    task = page_task("/a.html", rubric=rubric)

    async with pages({"a.html": HOSTILE}, max_sessions=1) as (pool, site), pool.lease(site) as session:
        first = await ended(session, task)
        again = await session.evidence(
            needs(make_rubric({"type": "js", "expression": "$('#total').textContent === '17'"}))
        )
        frame = await session.step(Click(element=1))
        text = frame.observation.text
    for (expression, wanted), (value, evidence) in zip(PREDICATES.items(), graded(rubric, first), strict=True):
        if isinstance(wanted, bool):
            assert value == float(wanted), (expression, evidence)
        else:
            assert value is None and wanted in evidence, (expression, value, evidence)
    assert first.scripts["$('#total').textContent"].model_dump() == {
        "value": None,
        "trouble": "the expression is a text; expected true or false",
        "threw": False,
        "stopped": False,
    }
    assert {type(told.value) for told in first.scripts.values()} == {bool, int, type(None)}
    assert max(len(told.trouble) for told in first.scripts.values()) < 200
    assert [told.value for told in again.scripts.values()] == [True]
    assert "SEEN" not in text
    assert first.dom is None and first.downloads is None and not first.absent


async def test_nodes_of_frames_and_shadow_trees_have_the_styles(pages: Any) -> None:
    facts: list[tuple[dict[str, Any], float]] = [
        ({"type": "dom_element_present", "selector": "body > p#total"}, 1),
        ({"type": "dom_element_present", "selector": "iframe > html #inner"}, 1),
        ({"type": "dom_element_present", "selector": "#host > #deep"}, 1),
        ({"type": "dom_element_present", "selector": "#gone"}, 0),
        ({"type": "dom_element_present", "selector": "p:nth-of-type(3).line"}, 1),
        ({"type": "dom_element_attribute_equals", "selector": "#deep", "attribute": "data-x", "expected_value": "1"}, 1),
        ({"type": "dom_element_style_property", "selector": ".line", "property": "color", "expected_value": "rgb(1, 2, 3)"}, 1),
        ({"type": "dom_element_style_property", "selector": ".line:nth-of-type(3)", "property": "display", "expected_value": "none"}, 1),
        ({"type": "dom_element_style_property", "selector": ".line:nth-of-type(3)", "property": "color", "expected_value": "rgb(0, 0, 0)"}, 0),
        ({"type": "dom_element_style_property", "selector": "#wide", "property": "width", "expected_value": "120px"}, 1),
    ]  # fmt: skip
    rubric = make_rubric(*(fact for fact, _ in facts))
    task = page_task("/a.html", rubric=rubric)

    async with pages({"a.html": HOSTILE}, max_sessions=1) as (pool, site), pool.lease(site) as session:
        recorded = await ended(session, task)
    for (fact, wanted), (value, evidence) in zip(facts, graded(rubric, recorded), strict=True):
        assert value == wanted, (fact, evidence)
    assert recorded.dom is not None and set(recorded.dom[0].styles or {}) == {"color", "display", "width"}
    assert Recorded.model_validate_json(recorded.model_dump_json(), strict=True) == recorded


async def test_of_a_large_page_the_first_elements_are_there(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_NODES", 12)
    body = """<p id="first">a</p><iframe srcdoc="<b></b><b></b>"></iframe><script>
      for (let at = 0; at < 20; at++) document.body.append(document.createElement("i")); </script><p id="last">b</p>"""
    rubric = make_rubric(*({"type": "dom_element_present", "selector": each} for each in ("#first", "#last", "b")))
    task = page_task("/a.html", rubric=rubric)

    async with pages({"a.html": body}, max_sessions=1) as (pool, site), pool.lease(site) as session:
        recorded = await ended(session, task)
    assert recorded.dom is not None and len(recorded.dom) == 12 and recorded.dom_cut and not recorded.absent
    assert [value for value, _ in graded(rubric, recorded)] == [1, None, 1]


DOWNLOADS = """<a href="/invoice.bin" download="../../bill 1.bin">One</a> <a href="/big.bin" download>Two</a>"""
BIG = b"0123456789" * 300_000


async def test_downloads_go_into_the_episodes_own_folder_and_are_gone_after_it(pages: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "invoice.bin").write_bytes(b"bytes")
    (tmp_path / "big.bin").write_bytes(BIG)
    digest = hashlib.sha256(BIG).hexdigest()
    rubric = make_rubric(
        {"type": "download", "name": "bill.1\\.bin$", "match": "regex", "min_bytes": 5},
        {"type": "download", "name": "big.bin", "sha256": digest},
        {"type": "download", "name": "other.bin"},
    )
    task = page_task("/a.html", rubric=rubric)

    async def episode(pool: Any, site: Any, clicks: int) -> tuple[Recorded, int]:
        async with pool.lease(site) as session:
            await session.reset(task, 0)
            for element in range(1, clicks + 1):
                await session.step(Click(element=element))
            return await session.evidence(needs(rubric)), len(list(kept.iterdir()))

    async with pages({"a.html": DOWNLOADS}, max_sessions=2, downloads=kept) as (pool, site):
        (both, _), (none, folders) = list(await asyncio.gather(episode(pool, site, 2), episode(pool, site, 0)))
    assert both.downloads is not None and none.downloads == ()
    assert {file.name: file.size for file in both.downloads} == {"_.._bill 1.bin": 5, "big.bin": len(BIG)}
    assert folders >= 1 and list(kept.iterdir()) == []
    assert [value for value, _ in graded(rubric, both)] == [1, 1, 0]
    assert [value for value, _ in graded(rubric, none)] == [0, 0, 0]
    assert not [path for path in tmp_path.parent.rglob("*bill*")]


class Asked:
    """Notes what the browser is asked."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self.said.append((params or {})["behavior"])
        return {}

    def on(self, event: Any, f: Any) -> None:
        raise AssertionError(event)


async def test_a_folder_that_the_disk_refuses_is_the_episodes_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrowserError, match=r"cannot be made: .*No such file"):
        DownloadFolder.make(Asked(), "c", tmp_path / "gone")
    folder = DownloadFolder.make(Asked(), "c", tmp_path)

    def full(_: Path) -> tuple[tuple[Download, ...], bool]:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("envs.browser.end_evidence.read_files", full)
        with pytest.raises(BrowserError, match=r"cannot be read: .*Input/output error"):
            await folder.read()
    await folder.remove()
    with pytest.raises(BrowserError, match=r"cannot be read: .*No such file"):
        await folder.read()
    await folder.remove()


def test_a_file_renamed_while_it_is_read_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Asked()
    folder, looked = DownloadFolder.make(browser, "c", tmp_path), list[Path]()

    def renamed(path: Path) -> tuple[tuple[Download, ...], bool]:
        looked.append(path)
        (path / "a.pdf").write_bytes(b"abc")
        if len(looked) == 1:
            raise FileNotFoundError(2, "No such file or directory", "Unconfirmed 7")
        return read_files(path)

    monkeypatch.setattr("envs.browser.end_evidence.read_files", renamed)

    async def run() -> tuple[tuple[Download, ...], bool]:
        await folder.allow()
        try:
            return await folder.read()
        finally:
            await folder.deny()
            await folder.remove()

    (file,), unfinished = asyncio.run(run())
    assert not unfinished
    assert (file.name, file.size, file.sha256) == ("a.pdf", 3, hashlib.sha256(b"abc").hexdigest())
    assert len(looked) == 2 and browser.said == ["allow", "deny"] and list(tmp_path.iterdir()) == []


async def test_a_file_that_does_not_arrive_in_time_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "DOWNLOAD_SECONDS", 0.0)
    (tmp_path / "here.pdf").write_bytes(b"abc")
    (tmp_path / "Unconfirmed 12.crdownload").write_bytes(b"ab")
    files, more = await DownloadFolder(Asked(), "c", tmp_path).read()
    rubric = make_rubric({"type": "download", "name": "here.pdf"}, {"type": "download", "name": "late.pdf"})
    recorded = Recorded(downloads=files, downloads_cut=more)
    assert [value for value, _ in graded(rubric, recorded)] == [1, None]


async def test_a_folder_that_went_away_fails_the_reset_and_not_the_next_one(pages: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    task = page_task("/a.html", rubric=make_rubric({"type": "download", "name": "a"}))

    async with pages({"a.html": "x"}, max_sessions=1, downloads=kept) as (pool, site):
        async with pool.lease(site) as session:
            with pytest.raises(BrowserError, match=r"downloads cannot be used: .*kept"):
                await session.reset(task, 0)
        kept.mkdir()
        async with pool.lease(site) as session:
            found = await ended(session, task)
    assert found.downloads == () and list(kept.iterdir()) == []


async def test_downloads_are_denied_without_a_fact_about_them(pages: Any, tmp_path: Path) -> None:
    (tmp_path / "invoice.bin").write_bytes(b"bytes")
    assert not needs(page_task("/a.html").rubric)

    async with pages({"a.html": DOWNLOADS}, max_sessions=1) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/a.html"), 0)
        await session.step(Click(element=1))
        recorded = await session.evidence(Needs(downloads=True))
    assert recorded.downloads is None and "not ours" in recorded.absent["downloads"]


async def test_an_open_dialog_does_not_keep_the_page_from_being_read(pages: Any) -> None:
    body = """<button onclick="document.title = confirm('Sure?') ? 'yes' : 'no'">Go</button>"""
    rubric = make_rubric(
        {"type": "js", "expression": "document.title === 'no'"}, {"type": "dom_element_present", "selector": "button"}
    )
    task = page_task("/a.html", rubric=rubric)

    async with pages({"a.html": body}, max_sessions=1) as (pool, site), pool.lease(site) as session:
        await session.reset(task, 0)
        frame = await session.step(Click(element=1))
        assert frame.observation.dialog
        found = await session.evidence(needs(rubric))
    assert [value for value, _ in graded(rubric, found)] == [1, 1]


def test_there_is_nothing_to_read_without_an_episode(pages: Any) -> None:
    async def run() -> None:
        async with pages({"a.html": "x"}, max_sessions=1) as (pool, site), pool.lease(site) as session:
            await session.evidence(Needs(dom=True))

    with pytest.raises(BrowserError, match="before the session is closed or reset"):
        asyncio.run(run())


FAR = "<div style='height: 3000px'>far</div>"
STEPS = {
    "a page": ("<p>first</p>", [], "first", 1.0),
    "below": (f"{FAR}<p>last</p>", [], "last", 1.0),
    "above": (f"<p>top</p>{FAR}", [Scroll(direction="down", amount=9)], "top", 1.0),
    "gone": (f"<button onclick='low.remove()'>B</button>{FAR}<p id=low>low</p>", [Click(element=1)], "low", 0.0),
    "ever": (f"<button onclick='low.remove()'>B</button>{FAR}<p id=low>low</p>", [Click(element=1)], "low", 1.0),
    "never": (f"<button onclick='low.remove()'>B</button>{FAR}<p id=low>low</p>", [Click(element=1)], "high", 0.0),
    "another tab": ("<a href='/other.html' target=_blank>B</a>", [Click(element=1)], "other", 1.0),
    "the first tab": (
        f"<a href='/other.html' target=_blank>B</a>{FAR}<p>mine</p>",
        [Click(element=1), SwitchTab(tab=1)],
        "mine",
        1.0,
    ),
    "behind a dialog": (f"<button onclick='confirm()'>B</button>{FAR}<p>last</p>", [Click(element=1)], "last", None),
}


@pytest.mark.parametrize("name", STEPS)
async def test_text_facts_are_about_the_page_that_is_shown_last(pages: Any, name: str) -> None:
    html, actions, text, wanted = STEPS[name]
    fact = {"type": "text", "text": text, "when": "ever" if name in ("ever", "never") else "end"}
    async with pages({"a.html": html, "other.html": f"{FAR}<p>other</p>"}) as (pool, site):
        for negate in (False, True):
            rubric = make_rubric({**fact, "negate": negate})
            task = page_task("/a.html", rubric=rubric, horizon=9)
            episode = WebEpisode(task, 0, repeats=0, stop_on_invalid=True)
            async with pool.lease(site) as session:
                await episode.begin(session)
                for action in actions:
                    await episode.act(action)
                    episode.record(action)
                if name != "behind a dialog":
                    await episode.act(Answer(text="done"))
                    episode.record(Answer(text="done"))
                episode.stop_reason = episode.stop_reason or StopReason.HORIZON
                episode._ended = episode.page
                await episode.read_end()
            found = grade_by_program(
                rubric,
                GradingEvidence.of(
                    episode.trajectory(episode_id="e", group_id="g", sample=0, policy_version=0, final_dom="")
                ),
            )
            assert found.parts[0].value == (wanted if wanted is None or not negate else 1 - wanted)
            assert episode.recorded is not None and not any(page.elements for page in episode.recorded.pages)

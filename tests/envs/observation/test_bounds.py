# ruff: noqa: E501 (pages of one case a line)
"""No page makes an observation larger than `MAX_CHARS`, and every cut is marked; what is typed is
no word of a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page

from envs.observation import FULL, Observer, Reading
from envs.observation.options import MAX_CHARS, MAX_OPTIONS, STATE_CHARS, TITLE_CHARS, URL_CHARS
from envs.rewards.evidence import GradingEvidence
from envs.rewards.page_text import Pages, Shown
from envs.types import Observation

LONG = 9_000


def strings(value: Any) -> Iterator[str]:
    """All texts of a dumped record, keys of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)


async def look(cdp: CDPSession, error: str | None = None, **changes: Any) -> Reading:
    observer = Observer(replace(FULL, **changes))
    return await observer.observe(cdp, viewport=(1280, 720), instruction="", error=error)


HOSTILE = """<body><style>* {font-size: 3px; margin: 0; padding: 0} button, input, select, a, textarea, progress {display: inline-block; overflow: hidden; white-space: nowrap; width: 24px; height: 9px}</style><script>
const long = (word) => (word + " ").repeat(LONG / (word.length + 1));
document.title = long("title");
const names = ["aria-label", "title", "placeholder", "alt", "name", "id", "aria-valuetext", "aria-description", "aria-sort", "aria-current", "min",
  "max", "step", "accept", "aria-placeholder", "aria-valuemin", "aria-errormessage", "aria-describedby", "role-description"];
for (let i = 0; i < 260; i++) {
  const made = document.createElement(["button", "input", "select", "a", "textarea", "progress"][i % 6]);
  for (const name of names) made.setAttribute(name, long(name));
  made.setAttribute("aria-invalid", "true"); made.setAttribute("href", "#" + long("link"));
  if (i % 12 == 1) made.type = "range";
  if (i % 6 == 0) made.disabled = true;
  if (i % 6 == 2) for (let o = 0; o < 120; o++) made.add(new Option(o + " option ".repeat(40)));
  else made.append(long("inner"));
  if (i % 6 == 1 && made.type != "range") made.value = long("value");
  document.body.append(made);
}
const picture = new Image(90, 20); picture.alt = long("alt"); document.body.append(picture, long("prose"));
</script>""".replace("LONG", str(LONG))


async def test_no_page_makes_an_observation_larger_than_its_bound(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> Reading:
        await page.goto("data:text/html," + "x" * LONG)
        address = (await look(cdp)).observation.url
        assert len(address) == URL_CHARS and address.endswith("…")
        await page.set_content(HOSTILE)
        return await look(cdp, error="why " * LONG)

    reading = await on_page("", script)
    seen = reading.observation
    assert sum(map(len, strings(seen.model_dump(exclude={"viewport"})))) <= MAX_CHARS
    assert len(seen.elements) == 200 and len(seen.text) <= 8_000 and sum(map(len, seen.words or ())) <= 8_000
    assert len(seen.title) == TITLE_CHARS and seen.title.endswith("…") and (seen.error or "").endswith("…")
    assert max(sum(map(len, element.states)) for element in seen.elements) <= STATE_CHARS
    lists = [element for element in seen.elements if element.tag == "select"]
    assert lists and {len(element.options) + element.more_options for element in lists} == {120}
    assert len(lists[0].options) == MAX_OPTIONS and all(len(option) <= 80 for option in lists[0].options)
    assert reading.handles[lists[0].index].options is not None
    assert len(reading.handles[lists[0].index].options or ()) == 120, "an action may choose any of them"
    cut = [element.text for element in seen.elements if element.tag in ("button", "link", "textarea")]
    assert cut and all(len(text) <= 80 and text.endswith("…") for text in cut)
    assert seen.text.count("[1] ") == 1, "a line that is too long is cut between its elements, not dropped"


FIELDS = """<button>Save</button><input aria-label=One><input aria-label=Two><textarea aria-label=Three></textarea>
<div id=edit contenteditable style='width:200px'>.</div><div contenteditable style='width:200px'><a href=# id=link>.</a></div><div role=textbox id=role>.</div><iframe id=design height=40></iframe><div id=host></div>
<label>Wrapped <span contenteditable id=inlabel>.</span><input type=checkbox></label>
<div onclick=1 style='width:200px'>Card <span contenteditable id=incard>.</span><input aria-label=Inner></div>
<div aria-labelledby=inlabel role=button>Named</div>
<div role=combobox id=combo>.</div><p id=saved></p><script>
host.attachShadow({mode: "open"}).innerHTML = "<div contenteditable style='width:200px'>.</div>";
design.contentDocument.designMode = "on";
const shadow = host.shadowRoot.firstChild;
window.type = (text) => { for (const field of document.querySelectorAll("input, textarea")) field.value = text;
  for (const at of [edit, link, role, inlabel, incard, combo, shadow, design.contentDocument.body]) at.textContent = text; };
</script>"""


@pytest.mark.parametrize("typed", ["Order confirmed", 'x" Order confirmed', 'Order confirmed" value "x'])
@pytest.mark.parametrize("listed", [200, 1, 0])
def test_what_is_typed_is_no_word_of_the_page_until_the_page_says_it(on_fields: Any, typed: str, listed: int) -> None:
    before, after = on_fields(typed, listed)

    def lines(page: Observation) -> str:
        pages = Pages(GradingEvidence(final=page, steps=(), answer=""))
        return "\n".join(pages.lines(Shown((page,), ()), True))

    assert "confirmed" not in lines(before)
    assert typed in lines(after), "saved and shown again, it is the page's word"
    assert before.words is not None and ("Save" in lines(before)) == (listed > 0 or "Save" in before.text)


@pytest.fixture(scope="module")
def cache() -> dict[tuple[str, int], tuple[Observation, Observation]]:
    return {}


@pytest.fixture
async def on_fields(
    anyio_backend: str, on_page: Any, cache: dict[tuple[str, int], tuple[Observation, Observation]]
) -> Any:
    """What is seen with a text typed into every kind of field, and when the page shows it too; all
    cases in one browser."""

    async def script(page: Page, cdp: CDPSession) -> None:
        for typed in ("Order confirmed", 'x" Order confirmed', 'Order confirmed" value "x'):
            await page.evaluate("type('x')" if typed.startswith("x") else "0")
            await page.evaluate("(text) => { saved.textContent = ''; type(text); }", typed)
            if typed.startswith("x"):
                await page.fill("[aria-label=One]", "x")  # cutting out its value leaves the rest of the other's
            befores = {listed: (await look(cdp, max_elements=listed)).observation for listed in (200, 1, 0)}
            await page.evaluate("(text) => { saved.textContent = text; }", typed)
            for listed, before in befores.items():
                cache[typed, listed] = before, (await look(cdp, max_elements=listed)).observation

    if not cache:
        await on_page(FIELDS, script)
    return lambda typed, listed: cache[typed, listed]

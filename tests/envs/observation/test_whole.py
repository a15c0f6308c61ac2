"""Facts read the words of a page: labels to their ends, and nothing that the rendering for the
policy adds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page

from envs.observation import FULL, SMALL, Observer
from envs.rewards import GradingEvidence, grade_by_program
from envs.types import Observation
from tests.builders import make_rubric

LONG = "word " * 60
PAGE = f"""<style>button, a, textarea {{width: 300px; height: 20px; overflow: hidden; display: block; white-space: nowrap}}</style>
<h2>Order confirmed</h2><h1><b>Thanks</b>, Ann</h1><img alt="A kettle" width=20 height=20 src="data:,">
<button id=ends>{LONG} button-end</button><a href=# aria-label="{LONG} name-end">{LONG} written-end</a>
<input placeholder="{LONG} holder-end"><textarea aria-label=Note>{LONG} value-end</textarea>
<button>Search for all the products…</button>"""
VAST = f"<button style='width:300px; height:20px; overflow:hidden'>{LONG * 8} vast-end</button>"
CROWD = f"""<style>button {{width: 40px; height: 20px; overflow: hidden; white-space: nowrap; font-size: 3px}}</style>
{"".join(f"<button>{LONG} number {at} it is</button>" for at in range(100))}"""
CHOICES = f"<select aria-label=Size><option>S<option>{LONG} choice-end</select>"


@pytest.fixture(scope="module")
def cache() -> dict[str, Observation]:
    return {}


@pytest.fixture
async def seen(anyio_backend: str, on_page: Any, cache: dict[str, Observation]) -> dict[str, Observation]:
    async def script(page: Page, cdp: CDPSession) -> None:
        views = {"vast": (VAST, FULL), "crowd": (CROWD, FULL), "choices": (CHOICES, FULL), "small": (PAGE, SMALL)}
        for name, (html, options) in views.items() | {("full", (PAGE, FULL))}:
            await page.set_content(f"<!DOCTYPE html><body>{html}")
            reading = await Observer(replace(options)).observe(cdp, viewport=(1280, 720), instruction="")
            cache[name] = reading.observation

    if not cache:
        await on_page("", script)
    return cache


def value(page: Observation, **fact: Any) -> float | None:
    """Of a fact on the page; ``None`` only if it is undecided."""
    rubric = make_rubric({"type": "text", **fact})
    bundle = grade_by_program(rubric, GradingEvidence(final=page))
    assert (bundle.parts[0].value is None) == bool(bundle.abstained)
    return bundle.parts[0].value


@pytest.mark.parametrize("end", ["button-end", "name-end", "written-end", "holder-end"])
def test_a_text_fact_is_decided_by_the_whole_label(seen: dict[str, Observation], end: str) -> None:
    page = seen["full"]
    for match, text in (("contains", end), ("regex", f"word {end}$"), ("exact", f"{LONG}{end}")):
        assert value(page, match=match, text=text) == 1.0
        assert value(page, match=match, text=text.replace("end", "END no")) == 0.0
    assert all(len(element.text) <= 80 and len(element.written) <= 80 for element in page.elements)
    assert end not in page.text, "the policy sees what it saw"


def test_element_facts_are_decided_by_the_whole_label_and_value(seen: dict[str, Observation]) -> None:
    for view, tag in (("full", "button"), ("small", "button")):
        query: dict[str, Any] = {"type": "element", "element": {"tag": tag, "text": "button-end", "match": "contains"}}
        assert value(seen[view], **query) == 1.0
        assert value(seen[view], **query | {"element": {"tag": tag, "text": "another-end", "match": "contains"}}) == 0.0
    held = {"type": "element_state", "element": {"tag": "textarea"}, "property": "value"}
    assert value(seen["full"], **held, equals=f"{LONG}value-end") == 1.0
    assert value(seen["full"], **held, equals=f"{LONG}value-end of another") == 0.0
    assert value(seen["full"], text="value-end") == 0.0, "what is typed is no word of the page"


def test_only_what_passes_the_bounds_is_undecided(seen: dict[str, Observation]) -> None:
    assert value(seen["vast"], text="vast-end") is None
    assert value(seen["vast"], text="x", match="exact") == 0.0
    assert value(seen["crowd"], text="number 0 it is") == 1.0
    assert value(seen["crowd"], text="number 99 it is") is None
    assert sum(len(each.whole.text) for each in seen["crowd"].elements if each.whole) <= 20_000
    assert value(seen["choices"], text="choice-end") is None and value(seen["choices"], text="S", match="exact") == 1.0


@pytest.mark.parametrize("text", ["Order confirmed", "Thanks", "A kettle"])
def test_a_text_fact_sees_no_sign_of_the_rendering(seen: dict[str, Observation], text: str) -> None:
    page = seen["full"]
    assert value(page, text=f"^{text}", match="regex") == 1.0
    for sign in ("#", "image"):
        assert sign in page.text and value(page, text=sign) == 0.0
    old = page.model_copy(update={"words": None})
    assert value(old, text="#") == 0.0 and value(old, text="^Order confirmed", match="regex") == 1.0

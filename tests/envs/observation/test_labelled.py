"""Every kind of interactive element, against the engine's own hit test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page

from envs.observation import Observer, Reading
from envs.observation.dom import Dom
from envs.observation.snapshot import capture, decode
from envs.observation.text_utils import rendered

VIEWPORT = (1280, 720)


@dataclass
class Seen:
    """A reading, the table behind it, and what the engine hits at each point."""

    reading: Reading
    dom: Dom
    hits: dict[int, int]

    def wanted(self, *verdicts: str) -> set[int]:
        """backendNodeIds of the elements that are labelled so."""
        nodes = self.dom.with_attribute("data-want")
        return {self.dom.backend[node] for node in nodes if self.dom.attribute(node, "data-want") in verdicts}

    def names(self, backends: set[int]) -> list[str]:
        """For messages."""
        nodes = [self.dom.backend.index(backend) for backend in sorted(backends)]
        return [f"{self.dom.name[node]} {rendered(self.dom, node)[:40]!r}" for node in nodes]

    def is_in(self, backend: int, outer: int) -> bool:
        """Whether a node is another, or inside of it, or of a label of it."""
        node = self.dom.backend.index(backend)
        while node >= 0 and self.dom.backend[node] != outer and self.dom.name[node] != "LABEL":
            node = self.dom.parent[node]
        if node < 0 or self.dom.backend[node] == outer:
            return node >= 0
        control = self.dom.backend.index(outer)
        return self.dom.attribute(node, "for") == self.dom.attribute(control, "id") or self.dom.within(node, [control])


async def look(page: Page, cdp: CDPSession) -> Seen:
    reading = await Observer().observe(cdp, viewport=VIEWPORT, instruction="")
    dom = decode(await capture(cdp))
    hits = {}
    for index, handle in reading.handles.items():
        if handle.point is not None:
            x, y = handle.point
            params = {"x": int(x), "y": int(y), "ignorePointerEventsNone": False}
            hits[index] = (await cdp.send("DOM.getNodeForLocation", params))["backendNodeId"]
    return Seen(reading, dom, hits)


@pytest.fixture(scope="module")
def cache() -> dict[float, Seen]:
    return {}


@pytest.fixture(params=[1.0, 2.0])
async def seen(anyio_backend: str, request: Any, on_labelled: Any, cache: dict[float, Seen]) -> Seen:
    """The labelled page, at device scale 1 and 2: the same in CSS pixels."""
    scale = request.param
    if scale not in cache:
        cache[scale] = await on_labelled(look, scale)
    return cache[scale]


def test_every_interactive_element_is_listed_and_nothing_else(seen: Seen) -> None:
    enabled = {handle.backend_node_id for handle in seen.reading.handles.values() if not handle.disabled}
    wanted = seen.wanted("yes")
    assert len(wanted) >= 60
    assert seen.names(wanted - enabled) == []
    precision = len(wanted & enabled) / len(enabled)
    assert precision >= 0.95, seen.names(enabled - wanted)


def test_disabled_elements_are_listed_as_such(seen: Seen) -> None:
    disabled = {handle.backend_node_id for handle in seen.reading.handles.values() if handle.disabled}
    assert disabled == seen.wanted("disabled")
    by_index = {element.index for element in seen.reading.observation.elements if element.disabled}
    assert by_index == {index for index, handle in seen.reading.handles.items() if handle.disabled}


def test_what_cannot_be_reached_is_counted_and_not_listed(seen: Seen) -> None:
    hidden = seen.reading.observation.hidden
    assert hidden.covered == len(seen.wanted("covered"))
    assert hidden.above + hidden.below + hidden.beside == len(seen.wanted("away"))


def test_every_point_is_the_element_s_own_by_the_engine_s_hit_test(seen: Seen) -> None:
    wrong = {
        element.text: seen.names({seen.hits[element.index]})
        for element in seen.reading.observation.elements
        if not element.disabled
        and not seen.is_in(seen.hits[element.index], seen.reading.handles[element.index].backend_node_id)
    }
    assert wrong == {}


def test_text_keeps_its_order_around_numbered_elements(seen: Seen) -> None:
    lines = seen.reading.observation.text.splitlines()
    assert lines[0] == "# Everything"
    assert lines[1] == '[1] "Plain link" An anchor without address'
    assert any(line.startswith('A link that [2] "') and line.endswith("ends here.") for line in lines)
    assert "Text in closed" in seen.reading.observation.text and "Text in srcdoc" in seen.reading.observation.text
    assert lines[-1].startswith("… ") and "below" in lines[-1] and "covered" in lines[-1]


def test_state_and_names(seen: Seen) -> None:
    by_text = {element.text: element for element in seen.reading.observation.elements}
    assert by_text["Country"].value == "Brazil" and by_text["Country"].options == ("Austria", "Brazil", "Chad")
    assert by_text["Wrapped by its label"].checked and by_text["Role checkbox"].checked and by_text["Blue"].checked
    assert not by_text["Styled away"].checked and by_text["Secret"].value == "****"
    assert (
        by_text["Area"].value == "words" and by_text["Icon"].tag == "button" and by_text["Email"].input_type == "email"
    )
    ids = [element.id for element in seen.reading.observation.elements]
    assert len(set(ids)) == len(ids) and "native.submit" in ids and "far.in_a_frame" in ids

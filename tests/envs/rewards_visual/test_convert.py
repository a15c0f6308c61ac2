"""From the browser's snapshot format to the table of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from envs.rewards.chromiumrl import CAPTURED, DomNode, snapshot_of_capture
from envs.rewards.chromiumrl.capture import snapshot_of_first

Row = tuple[int, int, str, str, dict[str, str], tuple[float, float, float, float] | None]
"""Parent in the document, node type, name, value, attributes, box."""

STYLE = {
    "display": "block",
    "opacity": "0.5",
    "overflow-x": "hidden",
    "overflow": "hidden auto",
    "color": "rgb(1, 2, 3)",
}


class Capture:
    """An answer of ``DOMSnapshot.captureSnapshot``."""

    def __init__(self) -> None:
        self.strings: list[str] = []
        self.documents: list[dict[str, Any]] = []

    def s(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def document(self, rows: list[Row], scroll: float = 0, **rare: dict[int, int]) -> None:
        laid = [(at, row[5]) for at, row in enumerate(rows) if row[5] is not None]
        nodes: dict[str, Any] = {
            "parentIndex": [row[0] for row in rows],
            "nodeType": [row[1] for row in rows],
            "nodeName": [self.s(row[2]) for row in rows],
            "nodeValue": [self.s(row[3]) if row[3] else -1 for row in rows],
            "backendNodeId": [100 * len(self.documents) + at for at in range(len(rows))],
            "attributes": [[self.s(word) for pair in row[4].items() for word in pair] for row in rows],
        }
        for name, values in rare.items():
            nodes[name] = {"index": list(values), "value": list(values.values())}
        styles = [[self.s(STYLE[name]) if name in STYLE else -1 for name in CAPTURED] for _ in laid]
        layout = {
            **{"nodeIndex": [at for at, _ in laid], "bounds": [list(box or ()) for _, box in laid], "styles": styles},
            **{"text": [-1] * len(laid), "paintOrders": [0] * len(laid)},
            "stackingContexts": {"index": [0, len(laid) - 1]},
        }
        self.documents.append(
            {"nodes": nodes, "layout": layout, "textBoxes": {"layoutIndex": [], "bounds": []}, "scrollOffsetY": scroll}
            | {"frameId": self.s("f"), "documentURL": self.s("http://a/"), "title": self.s("t")}
        )


def capture() -> dict[str, Any]:
    made, page = Capture(), (0.0, 0.0, 800.0, 900.0)
    made.document(
        [
            (-1, 9, "#document", "", {}, (0, 0, 800, 600)),
            (0, 10, "html", "", {}, None),
            (0, 1, "HTML", "", {}, page),
            (2, 1, "BODY", "", {}, page),
            (3, 1, "INPUT", "", {"type": "checkbox"}, (0, 0, 10, 10)),
            (3, 1, "INPUT", "", {"type": "password"}, (0, 20, 90, 10)),
            (3, 1, "PAY-FORM", "", {}, (0, 40, 90, 10)),
            (6, 1, "P", "", {}, (0, 40, 90, 10)),
            (7, 3, "#text", "in the shadow", {}, (0, 40, 90, 10)),
            (6, 1, "P", "", {}, (0, 50, 90, 10)),
            (3, 8, "#comment", "no", {}, None),
            (3, 1, "::before", "", {}, (0, 0, 5, 5)),
            (11, 3, "#text", "mark", {}, (0, 0, 5, 5)),
            (3, 1, "IFRAME", "", {}, (100, 200, 300, 150)),
            (3, 1, "P", "", {"hidden": ""}, None),
        ],
        scroll=30,
        shadowRootType={7: 0, 8: 0},
        inputChecked={4: 1},
        inputValue={4: made.s("on"), 5: made.s("secret")},
        pseudoType={11: 0},
        contentDocumentIndex={13: 1},
    )
    made.document(
        [
            (-1, 9, "#document", "", {}, (0, 0, 300, 150)),
            (0, 1, "HTML", "", {}, (0, 0, 300, 700)),
            (1, 1, "P", "", {"id": "x"}, (0, 100, 300, 20)),
        ],
        scroll=40,
    )
    return {"strings": made.strings, "documents": made.documents}


def at(nodes: tuple[DomNode, ...], xpath: str, *scope: str) -> DomNode:
    return next(node for node in nodes if node.xpath == xpath and node.scope == scope)


@pytest.mark.parametrize("most", range(1, 19))
def test_the_first_nodes_of_a_capture_are_as_in_the_whole(most: int) -> None:
    whole, first = snapshot_of_first(capture(), "d", 99), snapshot_of_first(capture(), "d", most)
    assert not whole.cut and first.cut == (most < 18)
    assert first.nodes == whole.nodes[: len(first.nodes)] and len(first.nodes) <= most
    assert len(first.nodes) >= most - 6  # two documents, a doctype, a comment and a pseudo element with its text


def test_frames_shadow_roots_state_and_scrolls_are_kept() -> None:
    snapshot = snapshot_of_capture(capture(), document="d")
    nodes = snapshot.nodes
    tags = [node.tag for node in nodes]  # no doctype, comment or pseudo element; frames come last
    assert " ".join(tags) == "html body input input pay-form p #text p iframe p html p"
    body, host = "/html[1]/body[1]", "/html[1]/body[1]/pay-form[1]"
    assert at(nodes, f"{body}/input[1]").state == {"checked": "true"}
    assert at(nodes, f"{body}/input[2]").state == {"value": "••••••"}
    assert at(nodes, "/p[1]/text()[1]", f"shadow:{host}").text == "in the shadow"
    assert at(nodes, f"{host}/p[1]").identity == 9  # slotted: a child of the host
    assert nodes[0].scroll == (0, 30) and nodes[0].box == (0, -30, 800, 900)
    framed = at(nodes, "/html[1]/p[1]", f"frame:{body}/iframe[1]")
    assert framed.box is not None and framed.box[:2] == (100, 200 - 30 + 100 - 40) and framed.attributes == {"id": "x"}
    assert at(nodes, "/html[1]", f"frame:{body}/iframe[1]").scroll == (0, 40)
    assert at(nodes, f"{body}/p[1]").box is None and at(nodes, f"{body}/p[1]").styles == {}
    assert snapshot.url == "http://a/" and snapshot.document == "d"
    assert all(
        nodes[node.parent].xpath == "/html[1]/body[1]/iframe[1]"
        for node in nodes
        if node.xpath == "/html[1]" and node.scope
    )


def test_styles_are_those_that_were_asked_for() -> None:
    raw = capture()
    full = snapshot_of_capture(raw).nodes[0].styles
    assert full == {"display": "block", "opacity": "0.5", "overflow": "hidden auto", "color": "rgb(1, 2, 3)"}

"""A page as BrowserGym's observations hold it: CDP's own objects, with our numbers as ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.cdp import Cdp, CdpError
from envs.types import Element

ID_ATTRIBUTE = "bid"
"""BrowserGym's attribute of ids in DOM snapshots."""

CAPTURE = {"computedStyles": [], "includeDOMRects": True, "includePaintOrder": True}
"""Parameters of ``DOMSnapshot.captureSnapshot``, as BrowserGym gives them."""


@dataclass(frozen=True)
class RawPage:
    """CDP objects that describe a page."""

    snapshot: dict[str, Any]
    """Result of ``DOMSnapshot.captureSnapshot``."""
    trees: dict[str, list[dict[str, Any]]]
    """Nodes of ``Accessibility.getFullAXTree`` by frame, the main frame first."""

    def dom(self, bids: Mapping[int, str]) -> dict[str, Any]:
        """Return the snapshot with attributes for ids and for what fields hold.

        Args:
            bids: Ids by ``backendNodeId``.
        """
        strings = list(self.snapshot["strings"])
        numbers: dict[str, int] = {}

        def number(text: str) -> int:
            if text not in numbers:
                numbers[text] = len(strings)
                strings.append(text)
            return numbers[text]

        documents = []
        for document in self.snapshot["documents"]:
            nodes = document["nodes"]
            attributes = [list(pairs) for pairs in nodes["attributes"]]
            for node, backend in enumerate(nodes["backendNodeId"]):
                if backend in bids:
                    attributes[node] += [number(ID_ATTRIBUTE), number(bids[backend])]
            for node, value in zip(nodes["inputValue"]["index"], nodes["inputValue"]["value"], strict=True):
                if not _is_password(attributes[node], strings):
                    attributes[node] = [*_without(attributes[node], "value", strings), number("value"), value]
            checked = set(nodes["inputChecked"]["index"])
            for node, pairs in enumerate(attributes):
                kept = _without(pairs, "checked", strings)
                attributes[node] = [*kept, number("checked"), number("")] if node in checked else kept
            documents.append({**document, "nodes": {**nodes, "attributes": attributes}})
        return {**self.snapshot, "documents": documents, "strings": strings}

    def axtree(self, bids: Mapping[int, str]) -> dict[str, Any]:
        """Return the trees of all frames as one, with ids.

        Args:
            bids: Ids by ``backendNodeId``.
        """
        roots = {self._owner(frame): nodes[0]["nodeId"] for frame, nodes in self.trees.items() if nodes}
        merged = []
        for node in (node for nodes in self.trees.values() for node in nodes):
            if node["role"]["value"] == "InlineTextBox":  # repeats its StaticText, line by line
                continue
            backend = node.get("backendDOMNodeId", 0)
            changed = dict(node)
            if backend in bids:
                changed["browsergym_id"] = bids[backend]
            if backend in roots and node["role"]["value"] == "Iframe":
                changed["childIds"] = [*node.get("childIds", []), roots[backend]]
            merged.append(changed)
        return {"nodes": merged}

    def _owner(self, frame: str) -> int:
        """Return the ``backendNodeId`` of a frame's element; -1 for the main frame."""
        documents, strings = self.snapshot["documents"], self.snapshot["strings"]
        for document in documents:
            inner = document["nodes"]["contentDocumentIndex"]
            for node, number in zip(inner["index"], inner["value"], strict=True):
                if strings[documents[number]["frameId"]] == frame:
                    return int(document["nodes"]["backendNodeId"][node])
        return -1


async def capture(cdp: Cdp) -> RawPage:
    """Read a page; it is not changed (`envs.PoolOptions.inspect`)."""
    snapshot = await cdp.send("DOMSnapshot.captureSnapshot", CAPTURE)
    frames = [(await cdp.send("Page.getFrameTree"))["frameTree"]]
    trees: dict[str, list[dict[str, Any]]] = {}
    for number, frame in enumerate(frames):  # the list grows
        frames += frame.get("childFrames", [])
        name = frame["frame"]["id"]
        try:
            trees[name] = (await cdp.send("Accessibility.getFullAXTree", {"frameId": name}))["nodes"]
        except CdpError:
            if number == 0:
                raise
            trees[name] = []  # a frame of a live page may go away meanwhile
    return RawPage(_plain(snapshot), trees)


def extra_properties(elements: Iterable[Element], scale: float) -> dict[str, dict[str, Any]]:
    """Return BrowserGym's properties of elements, by id.

    Args:
        scale: Pixels of the screenshot per CSS pixel.
    """
    properties = {}
    for element in elements:
        shown, acts = element.in_viewport, element.tag != "text"
        box = [side * scale for side in element.box]
        seen = {"visibility": float(shown), "bbox": box, "clickable": acts, "set_of_marks": acts and shown}
        properties[str(element.index)] = seen
    return properties


def _plain(value: Any) -> Any:
    """Return a snapshot as dictionaries and lists alone, without our client's columns."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    nested = len(value) > 0 and isinstance(value[0], dict | Sequence) and not isinstance(value[0], str)
    return [_plain(one) for one in value] if nested else list(value)


def _without(pairs: list[int], name: str, strings: list[str]) -> list[int]:
    """Return pairs of attribute names and values without those of a name."""
    kept = [i for i in range(0, len(pairs), 2) if strings[pairs[i]] != name]
    return pairs if len(kept) * 2 == len(pairs) else [number for i in kept for number in pairs[i : i + 2]]


def _is_password(pairs: list[int], strings: list[str]) -> bool:
    named = {strings[name]: strings[value] for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
    return named.get("type", "").lower() == "password"

"""Observations of pages for the policy: one observer for each episode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from envs.cdp import Cdp
from envs.observation.dom import Dom, scaled
from envs.observation.elements import CARDS, Found, box_for, find
from envs.observation.focus import FocusReader
from envs.observation.frame_geometry import Quad, content_quads
from envs.observation.frames import seen_frames
from envs.observation.ids import IdBook, Places
from envs.observation.last_scene import LastScene
from envs.observation.layers import Layers
from envs.observation.names import Namer, options_of
from envs.observation.occlusion import Scene
from envs.observation.options import (
    FULL,
    MAX_OPTIONS,
    MAX_OPTIONS_OF_ALL,
    MESSAGE_CHARS,
    TITLE_CHARS,
    URL_CHARS,
    WHOLE_CHARS,
    WHOLE_CHARS_OF_ALL,
    ObservationOptions,
)
from envs.observation.reading import Handles, Reading
from envs.observation.roles import Kinds, classify
from envs.observation.snapshot import capture, decode
from envs.observation.states import gauges
from envs.observation.text import Page, TextPiece, describe, fit, lay_out
from envs.observation.text_utils import shorten
from envs.settle import NO_FIELDS, FieldStates, Look
from envs.types import BrowserError, Element, Hidden, Observation, Whole

MAX_CACHED = 4096
"""Number of elements in the cache, those of some tens of pages, 1 kB each. Elements with lists of
choices, which may be long, are not cached."""

ELEMENT_FIELDS = (
    *("index", "tag", "text", "value", "checked", "focused", "box", "id", "disabled", "in_viewport", "input_type"),
    *("options", "more_options", "written", "states", "whole"),
)
"""Fields of `Element` in the order of `kept_element`. With positional arguments the cache answers
eight times faster."""


@dataclass
class Observer:
    """Observes the tabs of one episode and remembers the ids that it gave.

    Example::

        observer = Observer(exclude="#timer")
        reading = await observer.observe(cdp, viewport=(1280, 720), instruction="Buy the lamp.")
        reading.observation.text, reading.handles[3].point
    """

    options: ObservationOptions = FULL
    exclude: str = ""
    """Selector of elements that are never shown: tags, #ids, .classes and [attributes], separated
    by commas."""
    book: IdBook = field(default_factory=IdBook)
    _focus: FocusReader | None = None
    _scenes: LastScene = field(default_factory=LastScene)

    async def observe(
        self,
        cdp: Cdp,
        *,
        viewport: tuple[int, int],
        instruction: str,
        error: str | None = None,
        world: int | None = None,
        looked: Look | None = None,
    ) -> Reading:
        """Read the page once. No script runs in the page's world, and nothing is written to it.

        Args:
            viewport: width, height of the picture in CSS pixels.
            error: Reason why the last action had no effect.
            world: Execution context of an isolated world of the document that is shown. If given,
                it saves a call.
            looked: State of the page when it was settled, if it has not changed since. If given, it
                saves two calls.
        """
        dom, focus, fields = await self.ask(cdp, world, looked)
        return compose(
            dom,
            focus=focus,
            fields=fields,
            modal=dom.at_path(looked.modal) if looked is not None and looked.modal is not None else -1,
            viewport=viewport,
            options=self.options,
            exclude=self.exclude,
            book=self.book,
            scenes=self._scenes,
            instruction=instruction,
            error=error,
        )

    async def ask(
        self, cdp: Cdp, world: int | None, looked: Look | None, *, scrolling: bool = False
    ) -> tuple[Dom, int | None, FieldStates]:
        """Ask for snapshot, focus and field states at once.

        State that ``looked`` holds is not asked for; ``scrolling`` as in `capture`.
        """
        if self._focus is None or self._focus.cdp is not cdp:
            self._focus = FocusReader(cdp)
        focus: int | None = None
        fields = looked.fields if looked is not None else NO_FIELDS
        if looked is not None:
            raw = await capture(cdp, scrolling=scrolling)
        else:
            raw, focus, fields = await self._ask_all(cdp, self._focus, world, scrolling)
        dom = decode(raw, view=fields.view)
        if dom.guessed:
            dom = await _placed(cdp, raw, dom, fields.view)
        if looked is not None and looked.focus is not None:
            node = dom.at_path(looked.focus)
            focus = await self._focus.read(world) if node < 0 or dom.hides(node) else dom.backend[node]
        return dom, focus, fields

    async def _ask_all(
        self, cdp: Cdp, reader: FocusReader, world: int | None, scrolling: bool
    ) -> tuple[dict[str, Any], int | None, FieldStates]:
        try:
            async with asyncio.TaskGroup() as group:
                raw = group.create_task(capture(cdp, scrolling=scrolling))
                focus = group.create_task(reader.read(world))
                small = self.options.rules == "small"
                fields = None if small else group.create_task(reader.fields(world))
        except ExceptionGroup as failures:
            # A lost connection fails all three, and callers expect its error. It must not hide an
            # error of another kind.
            _, others = failures.split(BrowserError)
            raise (others or failures).exceptions[0] from None
        return raw.result(), focus.result(), fields.result() if fields else NO_FIELDS


async def _placed(cdp: Cdp, raw: dict[str, Any], dom: Dom, view: tuple[float, float, float] | None) -> Dom:
    """Decode the snapshot again with documents placed in their frames, the outermost first."""
    quads: dict[int, Quad] = {}
    while asked := {dom.backend[frame] for frame in dom.guessed} - quads.keys():
        answers = await content_quads(cdp, asked)
        if not answers:
            break
        quads |= answers
        dom = decode(raw, quads, view)
    return dom


def compose(
    dom: Dom,
    *,
    focus: int | None,
    viewport: tuple[int, int],
    options: ObservationOptions = FULL,
    exclude: str = "",
    modal: int = -1,
    fields: FieldStates = NO_FIELDS,
    book: IdBook | None = None,
    scenes: LastScene | None = None,
    instruction: str = "",
    error: str | None = None,
) -> Reading:
    """Make the reading of a snapshot.

    Args:
        focus: backendNodeId of the focused element.
        modal: Node of the main document's open modal dialog, -1 for none.
        fields: State of fields that the snapshot does not hold.
        book: Book that gives and keeps the ids; a new one if not given.
        scenes: Cache of the last scene.
    """
    apply_fields(dom, fields)
    seen = (viewport[0] / dom.scale, viewport[1] / dom.scale)
    kinds = classify(dom, options, seen, exclude)
    full = options.rules == "full"
    scene = (scenes or LastScene()).stage(dom, seen, modal, clip_styles=full)
    focused = dom.backend.index(focus) if focus is not None and focus in dom.backend else -1
    items, away, namer = find(kinds, scene, options, focused)
    layers = Layers(kinds, scene)
    hidden = Hidden(**away, over_limit=max(0, len(items) - options.max_elements))
    if hidden.over_limit:
        items = _nearest(items, dom, layers, options) if full else items[: options.max_elements]
    for item in items if dom.scale != 1 else ():
        item.box = scaled(item.box, dom.scale)
    elements, rendered = list_elements(kinds, items, IdBook() if book is None else book, options)
    text, words = "", None
    if options.text_chars is not None:
        page = page_of(kinds, scene, namer, items, elements, rendered)
        text, words = fit(page, hidden, options.text_chars, layers)
    observation = Observation(
        instruction=instruction,
        elements=elements,
        url=shorten(dom.url, URL_CHARS),
        viewport=viewport,
        error=None if error is None else shorten(error, MESSAGE_CHARS),
        title=shorten(dom.title, TITLE_CHARS),
        text=text,
        words=words,
        hidden=hidden,
        scroll=scaled(dom.scroll, dom.scale),
        page_size=scaled(dom.page_size, dom.scale),
    )
    document = Places(dom, kinds).key(0)[0]
    return Reading(observation, Handles(dom, items, elements), kinds, seen, document, seen_frames(dom, scene))


def _nearest(items: list[Found], dom: Dom, layers: Layers, options: ObservationOptions) -> list[Found]:
    """Return as many elements as there is room for.

    Those on top come first (the topmost before others), then those in view, then those that have to
    be scrolled to. Options come last in each of these groups: a list may have many.
    """
    orders = {item.node: layers.order(box_for(dom, item.node, item.labels)) for item in items if item.point is not None}
    return sorted(items, key=lambda item: (-orders.get(item.node, -2), item.kind == "option"))[: options.max_elements]


def apply_fields(dom: Dom, fields: FieldStates) -> None:
    """Add to a snapshot the states of fields that it does not hold."""
    dom.mixed = {dom.at_path(path) for path in fields.mixed} - {-1}
    dom.invalid = {node: message for path, message in fields.invalid if (node := dom.at_path(path)) >= 0}
    lists = {options_of(dom, node): places for path, places in fields.hidden if (node := dom.at_path(path)) >= 0}
    dom.unlisted = {options[place] for options, places in lists.items() for place in places if place < len(options)}


def list_elements(
    kinds: Kinds, items: list[Found], book: IdBook, options: ObservationOptions
) -> tuple[tuple[Element, ...], dict[int, str]]:
    """Return the elements, and the rendering of each by its number."""
    places = Places(kinds.dom, kinds)
    alive: set[tuple[str, int]] = set()

    def lives(key: tuple[str, int]) -> bool:
        if not alive:
            alive.update(places.keys())
        return key in alive

    named = [item for item in items if item.kind != "text"]
    wanted = [(places.key(item.node), partial(places.name, item.node, item.kind, item.label)) for item in named]
    ids = dict(zip((item.node for item in named), book.assign(wanted, lives), strict=True))
    wholes = _wholes(items)
    listed = [
        (kept_element.__wrapped__ if item.options or item.whole else kept_element)(
            index,
            item.kind,
            item.label,
            item.value,
            item.checked,
            item.focused,
            item.box,
            ids.get(item.node, ""),
            item.disabled,
            item.point is not None,
            item.input_type,
            choices,
            len(item.options) - len(choices),
            item.written,
            item.states,
            wholes.get(item.node),
        )
        for index, (item, choices) in enumerate(zip(items, _choices(items), strict=True), start=1)
    ]
    return tuple(element for element, _ in listed), {element.index: written for element, written in listed}


def _wholes(items: list[Found]) -> dict[int, Whole]:
    """Return the texts that are recorded whole, by node.

    At most `WHOLE_CHARS` of a text and `WHOLE_CHARS_OF_ALL` of a page are kept. Values go last,
    since a policy can make them long, and cards before them: their words stand among those of the
    page.
    """
    texts = [
        (2 if name == "value" else item.kind in CARDS, item.node, name, getattr(item.whole, name))
        for item in items
        if item.whole is not None
        for name in ("text", "written", "value")
    ]
    room, kept, cut = WHOLE_CHARS_OF_ALL, dict[int, dict[str, str]](), dict[int, list[str]]()
    for _, node, name, text in sorted(texts, key=lambda entry: entry[0]):
        short = shorten(text, WHOLE_CHARS)
        short = short if len(short) <= room else ""
        room -= len(short)
        kept.setdefault(node, {})[name] = short
        if short != text:
            cut.setdefault(node, []).append(name)
    return {node: Whole(**fields, cut=tuple(cut.get(node, ()))) for node, fields in kept.items()}


def _choices(items: list[Found]) -> Iterator[tuple[str, ...]]:
    """Yield the shown choices of each element: at most `MAX_OPTIONS` of a list,
    `MAX_OPTIONS_OF_ALL` of a page."""
    room = MAX_OPTIONS_OF_ALL
    for item in items:
        kept = item.options[: min(MAX_OPTIONS, room)]
        room -= len(kept)
        yield kept


@lru_cache(maxsize=MAX_CACHED)
def kept_element(*values: Any) -> tuple[Element, str]:
    """Return an element with these values of `ELEMENT_FIELDS`, and its rendering.

    The cache helps because most elements of a page are the same as at the last look.
    """
    element = Element(**dict(zip(ELEMENT_FIELDS, values, strict=True)))
    return element, describe(element)


def page_of(
    kinds: Kinds,
    scene: Scene,
    namer: Namer,
    items: list[Found],
    elements: tuple[Element, ...],
    rendered: dict[int, str],
) -> Page:
    """Return the lines of a page, with its ``elements`` (made of ``items``) as ``rendered``."""
    listed = {
        item.node: TextPiece(
            rendered[element.index], element.index, " ".join(filter(None, (element.text, element.written))), item.node
        )
        for item, element in zip(items, elements, strict=True)
        if item.kind != "text"
    }
    labelled = {item.node for item in items if item.kind not in (*CARDS, "text") or not item.shortened}
    boxes = {item.node: box_for(scene.dom, item.node, item.labels) for item in items}
    return lay_out(kinds, scene, listed, boxes, labelled | namer.used, gauges(kinds, namer))

"""A golden episode: three pages of a shop, an answer, and all that else can be left behind."""

from __future__ import annotations

from typing import Any

from envs.rewards import DomElement, Download, GradingEvidence
from envs.signals import aggregate
from envs.types import (
    Action,
    Answer,
    Click,
    Element,
    Observation,
    PageReply,
    Step,
    Trajectory,
    Type,
)
from envs.types.signals import EpisodeSignals, PageSignals, Trouble
from tests.builders import make_step, make_trajectory

HOST = "http://127.0.0.1:8080"
DIGEST = "a" * 64


def element(index: int, tag: str, text: str, **more: Any) -> Element:
    return Element(index=index, tag=tag, text=text, box=(0, 0, 10, 10), **more)


def page(path: str, *elements: Element, text: str = "") -> Observation:
    return Observation(instruction="Buy", elements=elements, url=f"{HOST}{path}", viewport=(800, 600), text=text)


SHOP = page("/", element(1, "link", "Lamps", id="nav.lamps"), text='# The shop\n[1] "Lamps"\nSale today')
LAMP = page(
    "/item/7?size=L&colour=red",
    element(1, "input", "Notes", value="Order confirmed", id="notes"),
    element(2, "checkbox", "Gift wrap", checked=True, id="gift"),
    element(3, "button", "Buy now", disabled=True, id="buy"),
    text='# Red  lamp\n[1] textbox "Notes" value "Order confirmed"\n[2] checkbox "Gift wrap" checked [3] button "Buy now" disabled',
)
DONE = page(
    "/orders/12/",
    element(1, "link", "Invoice", id="invoice"),
    element(2, "select", "Country", value="Peru", id="country"),
    text='# Thank you\nOrder 12   confirmed: total $1,234.50\n[1] "Invoice" [2] select "Country" value "Peru"',
)


def step(index: int, observation: Observation, action: Action) -> Step:
    return make_step(index, observation=observation, action=action)


STEPS = (
    step(0, SHOP, Click(element=1)),
    step(1, LAMP, Type(element=1, text="Order confirmed")),
    step(2, DONE, Answer(text="The total is $1,234.50")),
)


def signals() -> EpisodeSignals:
    empty: dict[str, Any] = dict.fromkeys(name for name in PageSignals.model_fields if name != "absent")
    known = {
        "document": 1,
        "shifts": (),
        "counts": {Trouble.CONSOLE_ERROR: 2},
        "troubles": (),
        "layout_shift": 0.05,
        "layout_ms": 30.0,
        "layers": 4,
        "gpu_bytes": 3 * 2**20,
    }
    values = empty | known
    absent = {name: "not measured" for name, value in values.items() if value is None}
    return aggregate([PageSignals(**values, absent=absent)])


DOM = (
    DomElement(tag="html"),
    DomElement(tag="body", parent=0, attributes={"class": "shop wide"}),
    DomElement(
        tag="div", parent=1, attributes={"id": "total", "data-sum": "1234.5"}, styles={"color": "rgb(255, 0, 0)"}
    ),
    DomElement(tag="a", parent=2, attributes={"href": "/invoice/12"}),
    DomElement(tag="a", parent=1, attributes={"href": "/"}, styles={}),
)

EVIDENCE = GradingEvidence(
    steps=STEPS,
    final=DONE,
    answer="The total is $1,234.50",
    page_facts={"done": True, "raw_reward": 0.5, "reason": "ok"},
    signals=signals(),
    metrics={"speed": 2.5},
    downloads=(Download(name="invoice-12.pdf", size=2000, sha256=DIGEST), Download(name="empty.csv", size=0)),
    dom=DOM,
    scripts={
        "$$('a').length === 2": PageReply(value=True),
        "$('#total') === null": PageReply(value=False),
        "$('#total').textContent": PageReply(value="1234.5"),
        "$('#gone').id === 'x'": PageReply(trouble="TypeError: Cannot read properties of null", threw=True),
        "null.x": PageReply(trouble="TypeError: Cannot read properties of null"),
    },
    domdiff={"structuralSimilarity": 0.9, "text": 0.4},
)
NOTHING = GradingEvidence()
"""Nothing at all was recorded."""


def trajectory(**more: Any) -> Trajectory:
    fields: dict[str, Any] = {"steps": STEPS, "final": DONE, "answer": "The total is $1,234.50"}
    return make_trajectory(**(fields | more))

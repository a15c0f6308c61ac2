"""The selectors that rubrics may use."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import DomElement
from envs.types.selectors import parse_selector

NODES = (
    DomElement(tag="html"),
    DomElement(tag="body", parent=0, attributes={"class": "shop wide"}),
    DomElement(tag="ul", parent=1, attributes={"id": "list.1"}),
    DomElement(tag="li", parent=2, attributes={"class": "red"}),
    DomElement(tag="li", parent=2, attributes={"data-name": "a b", "lang": ""}),
    DomElement(tag="b", parent=4),
    DomElement(tag="p", parent=1, attributes={"title": "x,y > z"}),
)


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("*", [0, 1, 2, 3, 4, 5, 6]),
        ("LI", [3, 4]),
        ("body.wide.shop", [1]),
        (".sho", []),
        (r"#list\.1", [2]),
        ("ul > li", [3, 4]),
        ("body > li", []),
        ("body li", [3, 4]),
        ("html ul>li b", [5]),
        ("body>ul b", [5]),
        ("li:nth-child(2)", [4]),
        ("li:first-child", [3]),
        ("p:nth-of-type(1), b", [5, 6]),
        ("p:nth-child(1)", []),
        ("[lang]", [4]),
        ('[lang=""]', [4]),
        ("[data-name='a b']", [4]),
        ("[data-name~=b]", [4]),
        ("[data-name*=' ']", [4]),
        ("[data-name^=a][data-name$=b]", [4]),
        ("[lang*='']", []),
        ('[title="x,y > z"]', [6]),
        (" b , .red ", [3, 5]),
    ],
)
def test_what_a_selector_finds(selector: str, found: list[int]) -> None:
    assert parse_selector(selector).select(NODES) == found


@pytest.mark.parametrize(
    "selector",
    [
        "",
        " ",
        ">",
        "a >",
        "> a",
        "a,,b",
        "a,",
        "a:hover",
        "a::before",
        "a + b",
        "[a",
        "[a=]",
        "a:nth-child(n)",
        "##",
        "[a]b",
        ":first-child*",
    ],
)
def test_what_is_not_supported_is_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="selector"):
        parse_selector(selector)


@given(st.text(alphabet="ab.#[]=\"'>, *:\\()1", max_size=12))
def test_anything_else_is_read_or_refused(text: str) -> None:
    try:
        found = parse_selector(text).select(NODES)
    except ValueError:
        return
    assert found == sorted(set(found))


Holds = Callable[[Sequence[DomElement], int], bool]
"""Whether the element at a place has a property."""


def tagged(name: str) -> Holds:
    return lambda nodes, at: nodes[at].tag == name


def valued(name: str, *values: str) -> Holds:
    """It has the attribute, with one of the values if there are some."""
    return lambda nodes, at: name in nodes[at].attributes and (not values or nodes[at].attributes[name] in values)


def nth(number: int, of_type: bool = False) -> Holds:
    def holds(nodes: Sequence[DomElement], at: int) -> bool:
        siblings = [each for each in nodes[:at] if each.parent == nodes[at].parent]
        return len([each for each in siblings if not of_type or each.tag == nodes[at].tag]) + 1 == number

    return holds


COMPOUNDS: dict[str, Sequence[Holds]] = {
    "a": [tagged("a")],
    "b": [tagged("b")],
    "*": [],
    ".x": [valued("class", "x")],
    "a.x": [tagged("a"), valued("class", "x")],
    "[k]": [valued("k")],
    "[k=v]": [valued("k", "v")],
    "b:nth-child(2)": [tagged("b"), nth(2)],
    ":nth-of-type(2)": [nth(2, of_type=True)],
    "a:first-child": [tagged("a"), nth(1)],
}
"""Some selectors of one element, and what each asks of it."""


def slow(words: Sequence[str], nodes: Sequence[DomElement], at: int) -> bool:
    """Whether the element matches compounds with combinators between them, by trying every ancestor
    in turn and counting siblings for each node."""
    *before, compound = words
    if not all(holds(nodes, at) for holds in COMPOUNDS[compound]):
        return False
    if not before:
        return True
    *above, combinator = before
    parent = nodes[at].parent
    while parent is not None:
        if slow(above, nodes, parent):
            return True
        parent = None if combinator == " > " else nodes[parent].parent
    return False


@given(st.integers(0, 2**32), st.lists(st.sampled_from(["*", *COMPOUNDS]), min_size=1, max_size=4))
def test_one_pass_finds_what_trying_all_ancestors_finds(seed: int, compounds: list[str]) -> None:
    chance = random.Random(seed)
    nodes: list[DomElement] = []
    for at in range(chance.randrange(30)):
        attributes = {"class": "x"} if chance.random() < 0.3 else {"k": chance.choice("vw")}
        parent = None if not at or chance.random() < 0.1 else chance.randrange(at)
        nodes.append(DomElement(tag=chance.choice("ab"), parent=parent, attributes=attributes))
    ways = [[compounds[0]]]
    for compound in compounds[1:]:
        if (combinator := chance.choice((" ", " > ", ", "))) == ", ":
            ways.append([compound])
        else:
            ways[-1] += [combinator, compound]
    found = parse_selector(", ".join("".join(way) for way in ways)).select(nodes)
    assert found == [at for at in range(len(nodes)) if any(slow(way, nodes, at) for way in ways)]


def test_a_deep_page_and_many_siblings_take_no_time() -> None:
    deep = [DomElement(tag="div", parent=at - 1 if at else None) for at in range(40)]
    wide = [DomElement(tag="html"), *(DomElement(tag="li", parent=0) for _ in range(19_999))]
    started = time.process_time()
    assert parse_selector(" ".join(["p", *["div"] * 15])).select(deep) == []  # C(40, 15) ways to try
    assert parse_selector("li:nth-child(19999)").select(wide) == [19_999]
    with pytest.raises(ValueError, match="selector"):
        parse_selector(f"[{'ä' * 40}!")
    assert time.process_time() - started < 2

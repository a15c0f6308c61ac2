"""The selectors that rubrics may use."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards import DomElement
from envs.types.selectors import Selector, _compare, _Compound, _Test, parse_selector

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


def slow(selector: Selector, nodes: Sequence[DomElement]) -> list[int]:
    """What a selector means, by trying every ancestor in turn and counting siblings for each
    node."""

    def holds(test: _Test, at: int) -> bool:
        node = nodes[at]
        if test.kind == "tag":
            return test.name in ("*", node.tag.lower())
        if test.kind.startswith("nth"):
            same = test.kind == "nth-of-type"
            before = [each for each in nodes[:at] if each.parent == node.parent and (not same or each.tag == node.tag)]
            return len(before) + 1 == int(test.value)
        actual = node.attributes.get(test.name)
        return actual is not None and _compare(test.kind, actual, test.value)

    def matches(way: Sequence[_Compound], last: int, at: int) -> bool:
        if not all(holds(test, at) for test in way[last].tests):
            return False
        above = nodes[at].parent
        while last and above is not None:
            if matches(way, last - 1, above):
                return True
            above = None if way[last - 1].child else nodes[above].parent
        return not last

    return [at for at in range(len(nodes)) if any(matches(way, len(way) - 1, at) for way in selector.alternatives)]


COMPOUNDS = ["a", "b", "*", ".x", "a.x", "[k]", "[k=v]", "b:nth-child(2)", ":nth-of-type(2)", "a:first-child"]


@given(st.integers(0, 2**32), st.lists(st.sampled_from(COMPOUNDS), min_size=1, max_size=5))
def test_one_pass_finds_what_trying_all_ancestors_finds(seed: int, compounds: list[str]) -> None:
    chance = random.Random(seed)
    nodes: list[DomElement] = []
    for at in range(chance.randrange(14)):
        attributes = {"class": "x"} if chance.random() < 0.3 else {"k": chance.choice("vw")}
        parent = None if not at or chance.random() < 0.1 else chance.randrange(at)
        nodes.append(DomElement(tag=chance.choice("ab"), parent=parent, attributes=attributes))
    text = compounds[0] + "".join(chance.choice((" ", " > ", ", ")) + each for each in compounds[1:])
    selector = parse_selector(text)
    assert selector.select(nodes) == slow(selector, nodes)


def test_a_deep_page_and_many_siblings_take_no_time() -> None:
    deep = [DomElement(tag="div", parent=at - 1 if at else None) for at in range(40)]
    wide = [DomElement(tag="html"), *(DomElement(tag="li", parent=0) for _ in range(19_999))]
    started = time.process_time()
    assert parse_selector(" ".join(["p", *["div"] * 15])).select(deep) == []  # C(40, 15) ways to try
    assert parse_selector("li:nth-child(19999)").select(wide) == [19_999]
    with pytest.raises(ValueError, match="selector"):
        parse_selector(f"[{'ä' * 40}!")
    assert time.process_time() - started < 2

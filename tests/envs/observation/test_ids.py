"""Ids are given once: they do not change while their node lives, and no two living nodes share
one."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from envs.observation.ids import IdBook

NAMES = ("nav.home", "form.delete", "delete", "delete_2")


def called(name: str) -> Callable[[], str]:
    return lambda: name


steps = st.lists(st.dictionaries(st.integers(0, 8), st.sampled_from(NAMES), max_size=8), min_size=1, max_size=8)
"""Of each step: the nodes that live, with what they are called then."""


@given(steps)
def test_ids_are_stable_and_unique_whatever_comes_and_goes(steps: list[dict[int, str]]) -> None:
    book = IdBook()
    before: dict[int, str] = {}
    for living in steps:
        keys = {("page", node) for node in living}
        ids = book.assign(((("page", node), called(name)) for node, name in living.items()), keys.__contains__)
        now = dict(zip(living, ids, strict=True))
        assert len(set(ids)) == len(ids)
        assert {node: now[node] for node in living if node in before} == {
            node: before[node] for node in living if node in before
        }
        before = now


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=8))
def test_a_page_drawn_anew_gets_the_same_ids(names: list[str]) -> None:
    book = IdBook()
    old = [(("page", node), called(name)) for node, name in enumerate(names)]
    new = [(("page", node + 100), called(name)) for node, name in enumerate(names)]
    first = book.assign(old, {key for key, _ in old}.__contains__)
    assert book.assign(new, {key for key, _ in new}.__contains__) == first


def test_nodes_of_another_document_are_others() -> None:
    book = IdBook()
    alive = {("a", 1), ("b", 1)}
    assert book.assign([(("a", 1), called("go")), (("b", 1), called("go"))], alive.__contains__) == ["go", "go_2"]

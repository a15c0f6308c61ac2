"""Model turns to actions: exact forms, counted failures, never an exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.types import Click, Invalid, Select, Type
from training.policy.parsing import format_action, parse_action

elements = st.integers(1, 9999)
actions = st.one_of(
    st.builds(Click, element=elements),
    st.builds(Type, element=elements, text=st.text(max_size=60)),
    st.builds(Select, element=elements, text=st.text(max_size=60)),
)


@given(actions)
def test_what_is_written_is_read_back(action):
    assert parse_action(format_action(action)) == action


@given(st.text(max_size=200))
def test_any_text_gives_an_action(response):
    assert parse_action(response).type in {"click", "type", "select", "invalid"}


@pytest.mark.parametrize(
    ("response", "word"),
    [
        ("", "not of the form"),
        ("click", "not of the form"),
        ("click [3] please", "not of the form"),
        ('click [3] "x"', "takes no text"),
        ("type [3]", "needs a text"),
        ('hover [3] "x"', "no such action"),
        ('type [3] "a\\q"', "not a JSON string"),
        ("click [99999]", "not of the form"),
    ],
)
def test_each_way_to_be_wrong_is_named(response, word):
    action = parse_action(response)
    assert isinstance(action, Invalid)
    assert word in action.reason


def test_thoughts_and_white_space_are_not_read():
    assert parse_action("<think>click [1]</think>\n click [2] ") == Click(element=2)

"""Texts from outside, before they are stored or sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envs.types.text import writable

ANY = st.text(st.characters(exclude_categories=()))


@given(ANY)
def test_every_text_becomes_writable_and_writable_ones_stay(text: str) -> None:
    made = writable(text)
    made.encode()
    assert writable(made) == made
    if not any("\ud800" <= each <= "\udfff" for each in text):
        assert made == text


def test_halves_are_replaced_and_pairs_are_joined() -> None:
    assert writable("a\ud800b") == "a\ufffdb" and writable("\udfff") == "\ufffd"
    assert writable("\ud83d\ude00") == "\U0001f600" == writable("\U0001f600")

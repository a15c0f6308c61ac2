"""The pure parts: coordinates, words, selectors, marks and hashes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from envs.observation.hashes import action_signature, screen_hash
from envs.observation.marks import draw, draw_scaled, place_tag
from envs.observation.selector import parse
from envs.observation.text_utils import SLUG_CHARS, colour, cut, slug
from envs.types import Click, ConfigError, Element, Invalid, Type


@given(st.text(max_size=200))
def test_a_slug_is_short_and_plain(text: str) -> None:
    made = slug(text)
    assert len(made) <= SLUG_CHARS and made == slug(made) and not made.startswith("_") and not made.endswith("_")


@pytest.mark.parametrize(
    ("css", "name"),
    [
        ("rgb(255, 0, 0)", "red"),
        ("rgb(250, 10, 10)", "red"),
        ("rgb(20, 20, 24)", "grey"),
        ("rgb(30, 144, 255)", "blue"),
        ("rgb(255, 255, 10)", "yellow"),
        ("rgba(0, 0, 0, 0)", ""),
        ("none", ""),
    ],
)
def test_colours_have_plain_names(css: str, name: str) -> None:
    assert colour(css) == name


def test_labels_are_squashed_and_shortened() -> None:
    assert cut("  Add\n to   basket ", 6) == "Add to" and cut(None, 5) == "" and slug("Añadir (2)") == "añadir_2"


def test_selectors() -> None:
    assert parse("#query, a.b[href]") == (("", (("id", "query"),)), ("A", (("class", "b"), ("href", None))))
    assert parse('[role="alert"]') == (("", (("role", "alert"),)),) and parse("") == ()
    with pytest.raises(ConfigError, match=r"'div > p'"):
        parse("div > p")


def element(index: int, **fields: Any) -> Element:
    return Element(**{"index": index, "tag": "button", "text": "t", "box": (0, 0, 10, 10), "id": f"e{index}", **fields})


def test_signatures_name_elements_by_id() -> None:
    elements = [element(1), element(2, id="")]
    assert action_signature(Click(element=1), elements) == "click e1"
    assert action_signature(Click(element=2), elements) == "click #2"
    assert action_signature(Type(element=1, text="a b"), elements) == "type e1 'a b'"
    assert action_signature(Click(element=7), elements) == "click #7"
    assert action_signature(Invalid(reason="r"), elements) == "invalid 'r'"


def picture(size: tuple[int, int] = (200, 100), text: str = "") -> bytes:
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, size[0] // 3, size[1]), fill="navy")
    pen.text((size[0] // 2, 10), text, fill="black")
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def changed(one: bytes, other: bytes) -> Any:
    pixels = [np.asarray(Image.open(io.BytesIO(data)).convert("L"), dtype=np.int16) for data in (one, other)]
    return np.abs(pixels[0] - pixels[1]) > 60


def test_marks_are_drawn_where_the_elements_are() -> None:
    shot = picture()
    marked = draw(shot, [element(1, box=(100, 40, 40, 20)), element(2, box=(10, 10, 5, 5), in_viewport=False)])
    there = changed(shot, marked)
    assert there[40:60, 100:140].any() and not there[:20, :60].any() and not there[80:].any()
    assert not changed(shot, draw(shot, [element(1, tag="text")])).any()


def test_marks_follow_the_device_scale() -> None:
    shot = picture((400, 200))
    there = changed(shot, draw_scaled(shot, [element(1, box=(150, 60, 20, 20))], (200, 100)))
    assert there[118:162, 298:342].any() and not there[:100].any()


def test_numbers_stay_in_the_picture_and_off_each_other() -> None:
    avoid = np.array([[0.0, 0.0, 20.0, 20.0]])
    places = []
    for _ in range(3):
        place = place_tag((0, 0, 20, 20), (8, 8), avoid, (100, 50))
        assert place[0] >= 0 and place[1] >= 0 and place[2] <= 100 and place[3] <= 50
        avoid = np.vstack([avoid, *[place] * 4])
        places.append(place)
    assert len(set(places)) == 3
    right = place_tag((90, 40, 10, 10), (8, 8), np.array([[90.0, 40.0, 100.0, 50.0]]), (100, 50))
    assert right[2] <= 100 and right[3] <= 50


def test_a_picture_is_near_itself_and_far_from_another() -> None:
    one, text = screen_hash(picture()), screen_hash(picture(text="words"))
    other = screen_hash(draw(picture(), [element(n, box=(70 + 20 * n, 20, 15, 60)) for n in range(1, 6)]))

    def bits_from(hashed: str) -> int:
        return (int(one, 16) ^ int(hashed, 16)).bit_count()

    assert len(one) == 16 and bits_from(screen_hash(picture())) == 0
    assert bits_from(text) < bits_from(other)


def test_a_printed_element_has_only_what_is_not_as_usual() -> None:
    plain, field = element(3), element(4, value="Ann", focused=True, in_viewport=False)
    assert repr(plain) == "Element(index=3, tag='button', text='t', box=(0.0, 0.0, 10.0, 10.0), id='e3')"
    assert repr(field).endswith("value='Ann', focused=True, box=(0.0, 0.0, 10.0, 10.0), id='e4', in_viewport=False)")
    assert field.model_dump().keys() == Element.model_fields.keys() and Element(**field.model_dump()) == field

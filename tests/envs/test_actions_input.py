"""What a page hears of keys, buttons and drags is what a person's keyboard and mouse give."""

from __future__ import annotations

import json
from math import cos, pi, sin

import pytest

from envs.actions import Effect
from envs.actions.keyboard import parse_chord
from envs.types import Clear, Click, DoubleClick, Drag, Press, Target, TripleClick, Type

from .acting import on

KEYS = """<input data-t=field value=old style='position:absolute;left:10px;top:10px'>
<script>const keys = []; for (const type of ["keydown", "keypress", "keyup", "beforeinput"]) addEventListener(type, (e) => keys.push(
  type === "beforeinput" ? "text " + (e.data || e.inputType) :
  [type.slice(3), e.key, e.code, e.location, (e.ctrlKey ? "c" : "") + (e.shiftKey ? "s" : "") + (e.altKey ? "a" : "") + (e.metaKey ? "m" : "")]
    .join(" ").trim()), true);</script>"""

CONTROL_A = [
    "down Control ControlLeft 1 c",
    "down a KeyA 0 c",
    "up a KeyA 0 c",
    "up Control ControlLeft 1",
]


def press(key: str, code: str, held: str = "", text: str | None = None) -> list[str]:
    """A key that is pressed while modifiers are held, and what it writes."""
    end = f" {held}".rstrip()
    written = [] if text is None else [f"press {text} {code} 0{end}", f"text {text}"]
    return [f"down {key} {code} 0{end}", *written, f"up {key} {code} 0{end}"]


SHIFT = ["down Shift ShiftLeft 1 s"], ["up Shift ShiftLeft 1"]
CHORDS: dict[str, list[str]] = {
    # The same chord in other words is the same.
    **dict.fromkeys(["Control+a", "Control+A", "ctrl+a", "ControlOrMeta+a", "control+ctrl+a"], CONTROL_A),
    **{key: [*SHIFT[0], *press("A", "KeyA", "s", "A"), *SHIFT[1]] for key in ("Shift+a", "Shift+A", "A")},
    **{key: [*SHIFT[0], *press("!", "Digit1", "s", "!"), *SHIFT[1]] for key in ("Shift+1", "!")},
    "a": press("a", "KeyA", text="a"),
    "Alt+a": ["down Alt AltLeft 1 a", *press("a", "KeyA", "a"), "up Alt AltLeft 1"],
    "Meta+a": ["down Meta MetaLeft 1 m", *press("a", "KeyA", "m"), "up Meta MetaLeft 1"],
    "Control+Shift+k": [
        "down Control ControlLeft 1 c",
        "down Shift ShiftLeft 1 cs",
        *press("K", "KeyK", "cs"),
        "up Shift ShiftLeft 1 c",
        "up Control ControlLeft 1",
    ],
    "Shift+Control+Alt+Meta+F5": [
        "down Shift ShiftLeft 1 s",
        "down Control ControlLeft 1 cs",
        "down Alt AltLeft 1 csa",
        "down Meta MetaLeft 1 csam",
        *press("F5", "F5", "csam"),
        "up Meta MetaLeft 1 csa",
        "up Alt AltLeft 1 cs",
        "up Control ControlLeft 1 s",
        "up Shift ShiftLeft 1",
    ],
    "Shift+ArrowLeft": [*SHIFT[0], *press("ArrowLeft", "ArrowLeft", "s"), *SHIFT[1]],
    "Shift": [*SHIFT[0], *SHIFT[1]],
    "Control+Shift": [
        "down Control ControlLeft 1 c",
        "down Shift ShiftLeft 1 cs",
        "up Shift ShiftLeft 1 c",
        "up Control ControlLeft 1",
    ],
}


async def test_every_chord_gives_the_events_of_a_keyboard() -> None:
    async with on(KEYS) as here:

        async def heard() -> list[str]:
            return list(await here.cdp.value("keys.splice(0)"))

        await here.act(Click(element="field"))
        for chord, wanted in CHORDS.items():
            await here.act(Press(key=chord))
            assert await heard() == wanted, chord
        # What replaces a text selects it as a person does: with Control held, and never an `a`
        # alone.
        await here.act(Type(element="field", text="Ab!"))
        told = await heard()
        assert told[:4] == CONTROL_A
        assert told[4:] == [
            *SHIFT[0],
            *press("A", "KeyA", "s", "A"),
            *SHIFT[1],
            *press("b", "KeyB", text="b"),
            *SHIFT[0],
            *press("!", "Digit1", "s", "!"),
            *SHIFT[1],
        ]
        assert await here.cdp.value("document.querySelector('input').value") == "Ab!"
        await here.act(Clear(element="field"))
        assert (await heard())[:4] == CONTROL_A
        assert await here.cdp.value("document.querySelector('input').value") == ""


@pytest.mark.parametrize("name", ["a+b", "Foo+a", "Control+Foo", "Control+a+b"])
def test_what_is_no_chord_is_none(name: str) -> None:
    assert parse_chord(name) is None


MOUSE = """<p data-t=words style='position:absolute;left:20px;top:0;width:300px'>three plain words</p>
<button data-t=go style='position:absolute;left:20px;top:60px;width:80px;height:30px'>Go</button>
<div id=board style='position:absolute;left:0;top:100px;width:800px;height:500px;background:#eee'></div>
<script>const told = [];
for (const type of ["mousedown", "mouseup", "click", "auxclick", "dblclick", "contextmenu"]) addEventListener(type, (e) => told.push(
  [type, e.button, e.detail, (e.ctrlKey ? "c" : "") + (e.shiftKey ? "s" : "") + (e.altKey ? "a" : "") + (e.metaKey ? "m" : "")].join(" ").trim()
), true);
const line = []; board.addEventListener("mousemove", (e) => e.buttons && line.push([e.clientX, e.clientY, e.buttons, e.shiftKey]));</script>"""


async def test_buttons_modifiers_and_several_clicks() -> None:
    async with on(MOUSE) as here:

        async def of(action: Click | DoubleClick | TripleClick) -> list[str]:
            assert isinstance(await here.act(action), Effect)
            return list(await here.cdp.value("told.splice(0)"))

        assert await of(Click(element="go", button="right")) == [
            "mousedown 2 1",
            "contextmenu 2 0",
            "mouseup 2 1",
            "auxclick 2 1",
        ]
        assert await of(Click(element="go", button="middle")) == ["mousedown 1 1", "mouseup 1 1", "auxclick 1 1"]
        assert await of(Click(element="go", modifiers=("Control", "Shift"))) == [
            f"{each} 0 1 cs" for each in ("mousedown", "mouseup", "click")
        ]
        assert await of(Click(element="go")) == [f"{each} 0 1" for each in ("mousedown", "mouseup", "click")]
        heard = await of(TripleClick(element="words"))
        assert [each for each in heard if each.startswith(("click", "dblclick"))] == [
            "click 0 1",
            "click 0 2",
            "dblclick 0 2",
            "click 0 3",
        ]
        assert (await here.cdp.value("getSelection().toString()")).strip() == "three plain words"
        await of(DoubleClick(element="words", modifiers=("Shift",)))
        # A drag goes through the points of its way, in order and with what is held: a circle can be
        # drawn.
        circle = [(500 + 200 * cos(turn * pi / 12), 600 + 200 * sin(turn * pi / 12)) for turn in range(25)]
        ends = {"start": Target(at=circle[0]), "end": Target(at=circle[-1])}
        assert isinstance(await here.act(Drag(**ends, via=tuple(circle[1:-1]), modifiers=("Shift",))), Effect)
        line = await here.cdp.value("line.splice(0)")
        assert {(buttons, shift) for _, _, buttons, shift in line} == {(1, True)}
        wanted = [(x * 0.8, y * 0.6) for x, y in circle]
        place = 0
        for x, y in wanted[1:]:
            place += next(at for at, each in enumerate(line[place:]) if abs(each[0] - x) <= 1 and abs(each[1] - y) <= 1)
        assert all(0.9 < ((x / 0.8 - 500) ** 2 + (y / 0.6 - 600) ** 2) ** 0.5 / 200 < 1.1 for x, y, *_ in line), (
            json.dumps(line)
        )
        assert isinstance(await here.act(Drag(**ends, button="right")), Effect)
        assert {each[2] for each in await here.cdp.value("line.splice(0)")} <= {2}

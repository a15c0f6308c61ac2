"""What cannot be done comes back as a code with a hint: every code on a real page, and a thousand
malformed actions without an exception."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from envs.actions import ActionError, Effect
from envs.types import (
    Action,
    Back,
    Check,
    Clear,
    Click,
    CloseTab,
    Dialog,
    Drag,
    ErrorCode,
    Forward,
    Goto,
    Hover,
    Invalid,
    Press,
    Select,
    Submit,
    SwitchTab,
    Target,
    Type,
    Upload,
    read_action,
)
from envs.types.actions import ACTIONS

from .acting import HEAR, Stage, stage

PAGE = """<button data-t=save>Save changes</button><button data-t=off disabled>Off</button><input data-t=field value=v>
<input data-t=fixed readonly value=fixed> <input data-t=dis disabled> <select data-t=list><option>Red<option disabled>Grey<option>Blue</select>
<select data-t=box size=3><option>x<option>y</select> <select data-t=stubborn onkeydown='return false'><option>a<option>b<option>c</select>
<input type=radio name=r data-t=radio checked> <input type=date data-t=date> <p data-t=text>plain</p>
<div data-t=under style='position:absolute;left:300px;top:300px;width:90px;height:30px'>Under</div>
<div style='position:absolute;left:290px;top:290px;width:200px;height:100px;background:#eee'>Cookie banner</div>
<span data-t=hidden style='display:none'>hidden</span><button data-t=away style='position:fixed;left:-500px'>Away</button>
<button data-t=doomed style='position:absolute;left:600px;top:400px' onmouseover='this.remove()'>Doomed</button>
<button data-t=loops onclick='for(;;);'>Loops</button>
<button data-t=asks onclick='alert("hello")'>Asks</button> <input type=file data-t=file>
<label><input type=checkbox>I accept the <a data-t=terms href=#terms>terms</a></label>
<div style='height:5000px'></div><div data-t=below>below</div>
<script>hear("mousedown click keydown input change wheel dragstart")</script>"""

Prepare = Callable[[Stage], Awaitable[object]]


async def remove_save(here: Stage) -> None:
    """The observation still has it."""
    await here.cdp.value("document.querySelector('[data-t=save]').remove()")


async def ask(here: Stage) -> None:
    """A dialog waits."""
    assert isinstance(await here.act(Click(element="asks")), Effect)


async def offer(here: Stage) -> None:
    """The site takes pages."""
    here.offers = ("submit",)


async def nothing(here: Stage) -> None:
    """As it is."""


CASES: list[tuple[ErrorCode, Action, str, Prepare]] = [
    (ErrorCode.NO_HISTORY, Forward(), "there is no page to go forward to", nothing),
    (ErrorCode.NO_HISTORY, Back(), "there is no page to go back to", nothing),
    (ErrorCode.INVALID_ACTION, Invalid(reason="no action found"), "invalid_action: no action found", nothing),
    (ErrorCode.BAD_JSON, Invalid(reason="not JSON", code=ErrorCode.BAD_JSON), "bad_json: not JSON", nothing),
    (ErrorCode.UNKNOWN_ACTION, read_action({"type": "wave"}), "no such action: 'wave'", nothing),
    (ErrorCode.BAD_ACTION, read_action({"type": "click"}), "name the target by element, mark or at", nothing),
    (ErrorCode.BAD_ACTION, Press(key="Control+v"), "the clipboard is not open", nothing),
    (ErrorCode.BAD_ACTION, Press(key="Shift+Insert"), "the clipboard is not open", nothing),
    (
        ErrorCode.BAD_ACTION,
        Press(key="Entr"),
        "'Entr' is no key; write it like Enter, a or Control+a (did you mean Enter",
        nothing,
    ),
    (
        ErrorCode.BAD_ACTION,
        Type(element="date", text="May 5"),
        "'May 5' is no date value; write it like 2024-05-17",
        nothing,
    ),
    (ErrorCode.BAD_ACTION, Upload(element="file", files=("a.txt", "b.txt")), "takes one file, not 2", nothing),
    (ErrorCode.BAD_ACTION, Goto(url="http://[bad"), "is no address", nothing),
    (ErrorCode.BAD_ACTION, CloseTab(), "the last tab stays open", nothing),
    (ErrorCode.UNKNOWN_ELEMENT, Click(element=99), "there is no element 99; choose 1 to 20", nothing),
    (ErrorCode.UNKNOWN_ELEMENT, Click(mark=99), "there is no mark 99", nothing),
    (ErrorCode.UNKNOWN_ELEMENT, Click(element="save_changes"), '(did you mean [1] button "Save changes"', nothing),
    (ErrorCode.STALE_ELEMENT, Click(element="save"), "element 1 is not in the page any more", remove_save),
    (ErrorCode.OFF_SCREEN, Click(element="away"), "has no place on the screen", nothing),
    (ErrorCode.OFF_SCREEN, Hover(element="hidden"), "has no place", nothing),
    (
        ErrorCode.OFF_SCREEN,
        Drag(start=Target(element="field"), end=Target(element="below")),
        "not on the screen together",
        nothing,
    ),
    (ErrorCode.OCCLUDED, Click(element="under"), 'is covered by a div "Cookie banner"', nothing),
    (ErrorCode.DISABLED, Click(element="off"), "element 2 is disabled", nothing),
    (ErrorCode.DISABLED, Select(element="list", text="Grey"), "option 'Grey' of element 6 is disabled", nothing),
    (ErrorCode.NOT_EDITABLE, Type(element="save", text="x"), "element 1 is a button; click it", nothing),
    (ErrorCode.NOT_EDITABLE, Clear(element="fixed"), "element 4 is read-only", nothing),
    (ErrorCode.NOT_EDITABLE, Select(element="stubborn", text="c"), "does not take the choice", nothing),
    (
        ErrorCode.NOT_A_LIST,
        Select(element="save", text="x"),
        "element 1 is a button; select needs a drop-down list",
        nothing,
    ),
    (
        ErrorCode.NO_SUCH_OPTION,
        Select(element="list", text="Blu"),
        'it has Red, Grey, Blue (did you mean "Blue"?)',
        nothing,
    ),
    (ErrorCode.NOT_CHECKABLE, Check(element="save"), "neither on nor off; click it", nothing),
    (ErrorCode.NOT_CHECKABLE, Check(element="terms"), "neither on nor off; click it", nothing),
    (ErrorCode.NOT_CHECKABLE, Check(element="radio", on=False), "turn another one of its group on", nothing),
    (ErrorCode.NOT_FOCUSABLE, Press(element="text", key="a"), "does not take the keyboard focus", nothing),
    (ErrorCode.NOT_A_FILE_FIELD, Upload(element="save", files=("a.txt",)), "opens no file chooser", nothing),
    (
        ErrorCode.NO_SUCH_FILE,
        Upload(element="file", files=("a.tx",)),
        'its files are a.txt, b.txt (did you mean "a.txt"',
        nothing,
    ),
    (ErrorCode.NO_SUCH_FILE, Upload(element="file", files=("../secret.txt",)), "no file '../secret.txt'", nothing),
    (ErrorCode.NO_SUCH_FILE, Upload(element="file", files=("link",)), "no file 'link'", nothing),
    (ErrorCode.BLOCKED_HOST, Goto(url="http://example.com/"), "example.com is not open to this task", nothing),
    (ErrorCode.BLOCKED_HOST, Goto(url="file:///etc/passwd"), "only http and https are open", nothing),
    (
        ErrorCode.BLOCKED_HOST,
        Goto(url="http://127.0.0.1.example/"),
        "cannot be reached (net::ERR_NAME_NOT_RESOLVED)",
        nothing,
    ),
    (
        ErrorCode.NAVIGATION_FAILED,
        Goto(url="http://127.0.0.1:2/"),
        "does not answer (net::ERR_CONNECTION_REFUSED)",
        nothing,
    ),
    (ErrorCode.NO_SUCH_TAB, SwitchTab(tab=7), "there is no tab 7; the open ones are 1", nothing),
    (ErrorCode.NO_DIALOG, Dialog(accept=True), "no dialog is open", nothing),
    (ErrorCode.DIALOG_OPEN, Click(element="save"), "its alert 'hello'; use dialog", ask),
    (ErrorCode.NOT_OFFERED, Submit(html="<p>x"), "this site takes no submitted page; use its own controls", nothing),
    (ErrorCode.EMPTY_SUBMISSION, Submit(html=" "), "the submitted page is empty", offer),
    (ErrorCode.SUBMISSION_TOO_LARGE, Submit(html="x" * 200_001), "has 200001 characters; write at most 200000", offer),
    (ErrorCode.TIMEOUT, Click(element="loops"), "did not take the click within 0.5 s", nothing),
]


def test_every_code_is_tried() -> None:
    of_memory = {
        ErrorCode.TOO_LONG,
        ErrorCode.MEMORY_FULL,
        ErrorCode.NO_SUCH_ENTRY,
        ErrorCode.SECRET,
    }  # no page is asked
    assert {code for code, *_ in CASES} == set(ErrorCode) - of_memory


async def test_every_code_is_reached_and_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    (tmp_path / "secret.txt").write_text("s")
    (folder / "link").symlink_to(tmp_path / "secret.txt")

    assert CASES[-1][0] == ErrorCode.TIMEOUT
    wrong = []
    async with stage(HEAR + PAGE, files=folder) as here:
        for number, (code, action, words, prepare) in enumerate(CASES):
            await here.load(HEAR + PAGE)
            if code == ErrorCode.TIMEOUT:  # the last one: the page never comes back
                here.context = replace(here.context, deadline=0.5)
            await prepare(here)
            await here.log() if here.context.dialogs.pending is None else None
            outcome = await here.act(action, settle=code != ErrorCode.TIMEOUT)
            line = outcome.line() if isinstance(outcome, ActionError) else str(outcome)
            if here.context.dialogs.pending:
                await here.context.dialogs.answer(True, None)
            expected = line.startswith(f"{code}: ") and words in line and "\n" not in line
            # What is refused before anything is touched gives the page no input. (A read-only field
            # may let itself be written at a click.)
            touched = code in (
                ErrorCode.TIMEOUT,
                ErrorCode.NOT_A_FILE_FIELD,
                ErrorCode.BLOCKED_HOST,
                ErrorCode.NAVIGATION_FAILED,
            )
            heard = (
                []
                if touched or "choice" in words or "read-only" in words or code == ErrorCode.DIALOG_OPEN
                else await here.log()
            )
            if not expected or heard:
                wrong.append((number, code, line, heard))
    assert wrong == []


async def test_a_target_that_vanishes_under_the_mouse_is_no_exception() -> None:
    async with stage(HEAR + PAGE) as here:
        found = await here.act(Click(element="doomed"))
    assert isinstance(found, Effect | ActionError)


WORDS = [
    "",
    "x",
    "Enter",
    "Control+",
    "a" * 70,
    "\ud800",
    "\x00",
    "../..",
    "http://127.0.0.1:1/",
    "javascript:alert(1)",
    "\U0001f600",
    "Save",
    "save",
    "9",
]
VALUES: list[object] = [
    None,
    True,
    -1,
    0,
    1,
    3,
    17,
    118,
    2**40,
    0.5,
    -3.5,
    float("nan"),
    float("inf"),
    [],
    [1],
    [5, 5],
    [1, 2000],
    {},
    {"element": 2},
    {"at": [1, 1]},
]


EXPECTED = (
    ErrorCode.BAD_ACTION,
    ErrorCode.UNKNOWN_ACTION,
    ErrorCode.UNKNOWN_ELEMENT,
    ErrorCode.OCCLUDED,
    ErrorCode.NO_SUCH_TAB,
)
LIKELY: dict[str, list[object]] = {
    "accept": [True, False],
    "amount": [0.5, 1, 30],
    "clear": [True, False],
    "direction": ["up", "down", "left", "right"],
    "end": [{"element": 1}, {"at": [1, 1]}, {"mark": 117}],
    "enter": [True, False],
    "files": [["a.txt"], ["a.txt", "b.txt"], ["../a.txt"]],
    "on": [True, False],
    "seconds": [1, 90],
    "button": ["left", "right"],
    "modifiers": [[], ["Shift"]],
    "via": [[], [[1, 2]]],
    "also": [[]],
    "add": [False],
    "start": [{"element": 1}, {"at": [500, 500]}, {"element": 99}],
    "status": ["success", "failure"],
    "tab": [1, 2, 9],
}


def malformed(rng: random.Random) -> dict[str, object]:
    """An action of which something may be wrong: its name, its target, the type or the value of its
    arguments."""
    name = rng.choice([*ACTIONS, *ACTIONS, "wave", None])
    kind = ACTIONS.get(name) if isinstance(name, str) else None
    data: dict[str, object] = {}
    for field in kind.model_fields if kind else ():
        if field in ("type", "element", "mark", "at") or rng.random() < 0.1:
            continue
        data[field] = (
            rng.choice(LIKELY.get(field, WORDS)) if rng.random() < 0.8 else rng.choice(rng.choice([WORDS, VALUES]))
        )
    if kind and "element" in kind.model_fields and rng.random() < 0.9:
        data |= rng.choice(
            [
                {"element": rng.randint(0, 20)},
                {"element": rng.choice(WORDS)},
                {"mark": rng.randint(100, 120)},
                {"at": [rng.randint(0, 1010), rng.randint(0, 1010)]},
            ]
        )
    if rng.random() < 0.05:
        data["junk"] = 1
    return data | {"type": name}


MALFORMED = 400


async def test_malformed_actions_raise_nothing(tmp_path: Path) -> None:
    """Each is carried out or refused with a code; the loop that blocks the page for good and the
    addresses are left out."""
    rng, counts = random.Random(7), Counter[str]()
    (tmp_path / "a.txt").write_text("a")
    body = HEAR + PAGE.replace("for(;;);", "")

    async with stage(body, files=tmp_path, deadline=5.0) as here:
        for number in range(MALFORMED):
            action = read_action(malformed(rng))
            if isinstance(action, CloseTab) and action.tab in (None, 1):
                action = CloseTab(tab=2)  # tab 1 is the one that is driven here
            outcome = await here.act(action)
            assert isinstance(outcome, Effect | ActionError)
            counts[outcome.code if isinstance(outcome, ActionError) else "carried out"] += 1
            if isinstance(outcome, ActionError):
                assert outcome.line().encode() and outcome.line().startswith(f"{outcome.code}: ")
            if here.context.dialogs.pending:
                await here.context.dialogs.answer(True, None)
            elif number % 25 == 24:
                for tab in here.context.tabs.tab_numbers[1:]:
                    await here.context.tabs.close_tab(tab)
                await here.load(body)
    print(dict(counts))
    assert counts.total() == MALFORMED and counts[ErrorCode.TIMEOUT] == 0
    assert counts["carried out"] > MALFORMED / 10 and {*counts} >= {*EXPECTED}

"""What `type` and `clear` leave in fields of all kinds, read from the page itself."""

from __future__ import annotations

import pytest

from envs.actions import ActionError, Effect
from envs.actions.parsing import parse_action
from envs.types import Action, Clear, Click, ErrorCode, Press, Type

from .acting import Stage, on

pytestmark = pytest.mark.usefixtures("one_browser")

MAX_KEYS = 40


@pytest.fixture(autouse=True)
def few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a text of which not all is typed key by key is typed soon."""
    monkeypatch.setattr("envs.actions.text.MAX_KEYS", MAX_KEYS)


WRITING = """<textarea data-t=chat></textarea><textarea data-t=code rows=3></textarea><textarea data-t=old></textarea>
<div data-t=reply contenteditable>draft</div><div data-t=rude contenteditable><p>draft</p></div>
<div data-t=plain contenteditable=plaintext-only></div><form><input data-t=query><input data-t=after></form>
<div data-t=host style="width:150px"></div>
<iframe data-t=frame srcdoc="<textarea></textarea>" style="position:absolute;left:0;top:400px;height:60px"></iframe>
<script>
const of = (name) => document.querySelector(`[data-t=${name}]`), words = (el) => el.value ?? el.innerText;
const root = of("host").attachShadow({mode: "closed"});
root.innerHTML = "<textarea></textarea>";
const read = (name) => name === "host" ? root.firstChild.value : name === "frame" ? of("frame").contentDocument.activeElement.value : words(of(name));
const send = (e) => { e.preventDefault(); heard.push("sent " + words(e.currentTarget)); };
for (const name of ["chat", "reply"]) of(name).addEventListener("keydown", (e) => e.key === "Enter" && !e.shiftKey && send(e));
of("old").addEventListener("keypress", (e) => e.which === 13 && send(e));
of("rude").addEventListener("keydown", (e) => e.key === "Enter" && send(e));
document.forms[0].onsubmit = (e) => { e.preventDefault(); heard.push("submitted"); };
</script>"""
LONG = "long " * 45 + "\nend"
BREAKS: list[tuple[str, str, str]] = [
    ("chat", "first line\nsecond line\nthird", "first line\nsecond line\nthird"),
    ("chat", LONG, LONG),
    ("chat", "\n\nlate", "\n\nlate"),
    ("old", "a\nb", "a\nb"),
    ("code", "if x:\n\treturn 1\n", "if x:\n\treturn 1\n"),
    ("code", "a\r\nb\rc", "a\nb\nc"),
    ("reply", "dear all,\n\nthanks", "dear all,\n\nthanks"),
    ("reply", "a\tb", "a\tb"),
    ("rude", "one\ntwo\r\nthree", "one\ntwo\nthree"),
    ("plain", "one\n\ttwo", "one\n\ttwo"),
    ("query", "blue\nshoes", "blue shoes"),
    ("query", "shoes\r\n", "shoes"),
    ("query", "a\tb", "a\tb"),
    ("chat", "x" * 300 + "y\n" + "z" * MAX_KEYS, "x" * 300 + "y\n" + "z" * MAX_KEYS),
    ("reply", "p\n\n" * 9 + "q" * MAX_KEYS, "p\n\n" * 9 + "q" * MAX_KEYS),
]


async def test_line_breaks_and_tabs_are_characters_of_the_text() -> None:
    async with on(WRITING) as here:
        for name in ("host", "frame"):  # of these, `type` without a target sees what has the focus inside
            await here.act(Click(at=(90, 710)) if name == "frame" else Click(element=name))
            for _ in range(2):
                assert isinstance(await here.act(Type(text="in\nside")), Effect)
                assert await here.cdp.value(f"read('{name}')") == "in\nside"
        for name, text, wanted in BREAKS:
            for focused in (False, True) if len(text) < MAX_KEYS else (False,):
                action = Type(text=text) if focused else Type(element=name, text=text)
                assert isinstance(await here.act(action), Effect), (name, text[:20])
                assert await here.cdp.value(f"read('{name}')") == wanted, (name, text[:20], focused)
                assert not await here.log() and not await here.cdp.value("of('after').value")
        await here.act(Type(element="chat", text="a\nb"))
        await here.act(Type(element="chat", text="\nc", clear=False, enter=True))
        assert await here.log() == ["sent a\nb\nc"]
        for name in ("chat", "reply"):
            await here.act(parse_action("type(content='done\\n')").model_copy(update={"element": name, "clear": True}))
            assert await here.log() == ["sent done"], "UI-TARS's line break at the end is Enter, pressed once"


HEARING = """<textarea data-t=area></textarea><div data-t=rich contenteditable></div>
<script>hear("keydown beforeinput input");</script>"""


@pytest.mark.parametrize("name", ["area", "rich"])
async def test_a_page_hears_keys_and_no_enter(name: str) -> None:
    async with on(HEARING) as here:
        await here.act(Type(element=name, text="a" * MAX_KEYS + "B\nc"))
        heard = await here.log()
        assert f"keydown:{name}:c" in heard and f"keydown:{name}:sB" in heard
        assert not [each for each in heard if each.endswith(("!", ":Enter", ":Tab"))]


DATES = """<input data-t=date type=date value=2026-01-15><input data-t=time type=time><input data-t=month type=month><input data-t=week type=week>
<input data-t=free type=datetime-local required><input data-t=day type=datetime-local min=2024-05-17T08:00 max=2024-05-17T18:00>
<input data-t=step type=datetime-local step=900 min=2024-05-17T08:00 max=2024-05-17T18:00>
<input data-t=same_month type=datetime-local min=2024-05-01T08:00 max=2024-05-31T18:00>
<input data-t=year type=datetime-local min=2024-02-01T08:00 max=2024-05-31T18:00>
<input data-t=hour type=datetime-local min=2024-05-17T08:00 max=2024-05-17T08:59>
<input data-t=filled type=datetime-local value=2024-05-17T09:00 min=2024-05-17T08:00 max=2024-05-17T18:00>
<input data-t=one type=date min=2024-05-17 max=2024-05-17><input data-t=morning type=time min=08:00 max=11:30>
<input data-t=hours type=time step=3600 min=08:00 max=18:00><input data-t=half type=time step=0.5><input data-t=seconds type=time step=1>
<input data-t=months type=month min=2024-02 max=2024-10><input data-t=weeks type=week min=2024-W02 max=2024-W50>
<input data-t=opens type=date onfocus="try { this.showPicker() } catch {}" onclick="this.showPicker()"><input data-t=lang lang=de type=date>
<input data-t=exact type=datetime-local min=2024-05-17T08:00 max=2024-05-17T08:00>
<div data-t=host></div>
<script>
const root = document.querySelector("[data-t=host]").attachShadow({mode: "open"});
root.innerHTML = "<input type=date>"; root.firstChild.dataset.t = "shadow";
window.T = [...document.querySelectorAll("input"), root.firstChild];
const of = (name) => T.find((el) => el.dataset.t === name);
hear("input change");
</script>"""
VALUES: list[tuple[str, tuple[str, ...]]] = [
    ("date", ("2026-02-20", "2023-11-05", "2024-02-29", "2024-03-01", "2024-12-31", "0001-01-01", "12024-05-17")),
    ("time", ("21:05", "00:00", "12:00", "23:59", "00:30", "11:01")),
    ("month", ("2024-05", "2031-01", "1999-12")),
    ("week", ("2024-W20", "2020-W53", "2024-W01")),
    ("free", ("2024-05-17T14:30", "2024-12-01T00:00", "2024-05-17T14:30:15")),
    ("day", ("2024-05-17T14:30", "2024-05-17T08:00", "2024-05-17T18:00")),
    ("step", ("2024-05-17T14:30", "2024-05-17T08:15")),
    ("same_month", ("2024-05-17T14:30", "2024-05-01T08:00")),
    ("year", ("2024-05-17T14:30", "2024-02-01T08:00")),
    ("hour", ("2024-05-17T08:30",)),
    ("filled", ("2024-05-17T14:30", "2024-05-17T09:00")),
    ("one", ("2024-05-17",)),
    ("morning", ("09:30", "11:30")),
    ("hours", ("14:00", "08:00")),
    ("half", ("14:00:30", "14:00:30.500", "09:00")),
    ("seconds", ("21:05:33", "21:05")),
    ("months", ("2024-05", "2024-02")),
    ("weeks", ("2024-W20", "2024-W50")),
    ("opens", ("2024-05-17", "2024-05-18")),
    ("lang", ("2024-05-17",)),
    ("exact", ("2024-05-17T08:00",)),
    ("shadow", ("2024-05-17", "2024-05-18")),
]


async def test_a_date_field_ends_with_the_value_typed() -> None:
    async with on(DATES) as here:
        for name, texts in VALUES:
            for text in texts:
                before = await here.cdp.value(f"of('{name}').value")
                if name != "opens" and text == texts[0]:
                    await press_arrows(here, name)
                assert isinstance(await here.act(Type(element=name, text=text)), Effect), (name, text)
                assert await here.cdp.value(f"of('{name}').value") == text, name
                heard = await here.log()
                assert before == text or heard == events_of(name), (name, text, heard)
                assert isinstance(await here.act(Type(text=text)), Effect)  # into what has the focus
                assert await here.cdp.value(f"of('{name}').value") == text and not await here.log()
                assert not await here.cdp.value("document.querySelectorAll('input:open').length")
            await here.act(Clear(element=name))
            assert await here.cdp.value(f"of('{name}').value") == "", name
            assert await here.log() == events_of(name)


def events_of(name: str) -> list[str]:
    """One trusted event of each kind; a ``change`` does not leave its shadow root."""
    return [f"input:{name}"] if name == "shadow" else [f"input:{name}", f"change:{name}"]


async def press_arrows(here: Stage, name: str) -> None:
    """Bring the focus to another part of a date field."""
    await here.cdp.value(f"of('{name}').focus()")
    for _ in range(2):
        await here.act(Press(key="ArrowRight"))


async def test_half_a_date_is_replaced_and_cleared() -> None:
    async with on(DATES) as here:
        for action, wanted in (
            (Type(element="free", text="2024-05-17T14:30"), "2024-05-17T14:30"),
            (Clear(element="free"), ""),
        ):
            await here.cdp.value("of('free').focus()")
            for key in ("5", "1", "7"):
                await here.act(Press(key=key))
            assert isinstance(await here.act(action), Effect)
            assert await here.cdp.value("[of('free').value, of('free').validity.badInput]") == [wanted, False]


async def test_what_is_no_date_changes_nothing() -> None:
    async with on(DATES) as here:
        for name, text in (
            ("date", "2024-02-30"),
            ("date", "17.5.2024"),
            ("time", "25:00"),
            ("time", "9:05"),
            ("week", "2024-W54"),
        ):
            refused = await here.act(Type(element=name, text=text))
            assert isinstance(refused, ActionError) and refused.code == ErrorCode.BAD_ACTION, (name, text)
        assert await here.cdp.value("of('date').value") == "2026-01-15" and not await here.log()


NATIVE = """<input data-t=amount type=number step=0.5><input data-t=code maxlength=5><textarea data-t=note maxlength=4></textarea>
<input data-t=pin type=password maxlength=4><input data-t=mail type=email><input data-t=upper oninput="this.value = this.value.toUpperCase()">
<input data-t=phone type=tel maxlength=14><input data-t=trim onchange="this.value = this.value.trim()"><input data-t=chips>
<input data-t=d1 maxlength=1><input data-t=d2 maxlength=1><input data-t=d3 maxlength=1><input data-t=clamp type=number max=100>
<input data-t=late placeholder=Check-in onfocus="this.type = 'date'"><input data-t=locked readonly onfocus="this.readOnly = false">
<script>
const of = (name) => document.querySelector(`[data-t=${name}]`);
of("phone").oninput = ({target}) => {
  const d = target.value.replace(/\\D/g, "");
  target.value = `(${d.slice(0, 3)}) ${d.slice(3, 6)}-${d.slice(6, 10)}`;
};
of("chips").oninput = ({target}) => { if (target.value.endsWith(",")) { heard.push("chip " + target.value.slice(0, -1)); target.value = ""; } };
["d1", "d2"].forEach((name, place) => of(name).addEventListener("input", () => of(["d2", "d3"][place]).focus()));
of("clamp").oninput = ({target}) => { if (target.value > 100) target.value = 100; };
</script>"""
HELD: list[tuple[Action, str, str]] = [
    # the action, what the field then holds, and a part of the error's message; none is a
    # carried-out action
    (Type(element="amount", text="1.5"), "1.5", ""),
    (Type(element="amount", text="1e3"), "1e3", ""),
    (Type(element="amount", text="-0"), "-0", ""),
    (Type(element="amount", text="007"), "007", ""),
    (Type(element="amount", text="5", clear=False), "0075", ""),
    (Type(element="amount", text="0.3"), "0.3", ""),  # a wrong step is the form's affair
    (Type(element="amount", text="abc"), "", 'takes a number: it holds "", not "abc"'),
    (Type(element="amount", text="1,5"), "15", 'takes a number: it holds "15", not "1,5"'),
    (Type(element="amount", text="12 kg"), "12", 'it holds "12", not "12 kg"'),
    (Type(element="amount", text="2024-05-17"), "", "takes a number"),
    (Type(element="clamp", text="150"), "100", ""),
    (Type(element="code", text="abcde"), "abcde", ""),
    (Type(element="code", text="abcdefgh"), "abcde", 'takes 5 characters: it holds "abcde", not "abcdefgh"'),
    (Type(element="code", text="x", clear=False), "abcde", "takes 5 characters"),
    (Type(element="code", text="abc\U0001f600d"), "abc\U0001f600", "takes 5 characters"),
    (Type(element="note", text="a\nbcd"), "a\nbc", "takes 4 characters"),
    (Type(element="note", text="a\nb"), "a\nb", ""),
    (Type(element="pin", text="12345"), "1234", "takes 4 characters"),
    (Type(element="mail", text="a b@c.d"), "a b@c.d", ""),
    (Type(element="upper", text="abc"), "ABC", ""),
    (Type(element="phone", text="5551234567"), "(555) 123-4567", ""),
    (Type(element="trim", text=" a "), " a ", ""),
    (Type(element="chips", text="red,"), "", ""),
    (Type(element="d1", text="123"), "1", ""),
    (Type(element="late", text="2024-05-17"), "2024-05-17", ""),  # it is a date field once it has the focus
    (Type(element="locked", text="ann"), "ann", ""),
]


async def test_a_native_refusal_is_an_error_and_a_page_s_own_format_is_none() -> None:
    async with on(NATIVE) as here:
        for action, wanted, message in HELD:
            outcome = await here.act(action)
            name = action.element  # type: ignore[union-attr]
            assert await here.cdp.value(f"of('{name}').value") == wanted, (name, action)
            assert isinstance(outcome, ActionError) == bool(message), (action, outcome)
            if isinstance(outcome, ActionError):
                assert outcome.code == ErrorCode.BAD_ACTION and message in outcome.message, outcome.message
                assert "1234" not in outcome.line() or name != "pin"
        assert await here.cdp.value("['d1', 'd2', 'd3'].map((name) => of(name).value).join('')") == "123"
        assert await here.log() == ["chip red"]


KEYS = """<div data-t=cell tabindex=0 role=gridcell>cell</div><canvas data-t=canvas tabindex=0 width=80 height=20></canvas>
<div data-t=term tabindex=0 role=application>$</div><ul data-t=list tabindex=0 role=listbox><li>Apple</ul><input data-t=fixed readonly value=x>
<p data-t=words>words</p><iframe data-t=frame style="height:40px" srcdoc="<p>game<script>onkeydown = (e) => parent.got.push(e.key)</script>"></iframe>
<script>var got = []; addEventListener("keydown", (e) => got.push((document.activeElement.dataset.t || "page") + e.key));</script>"""


async def test_text_without_a_field_goes_to_what_has_the_focus() -> None:
    async with on(KEYS) as here:
        for name in ("words", "cell", "canvas", "term", "list", "fixed"):
            await here.act(Click(element=name))
            outcome = await here.act(Type(text="ba\nn", enter=True))
            assert isinstance(outcome, Effect) and outcome.notice.startswith("no text field has the focus"), outcome
            owner = "page" if name == "words" else name
            assert await here.cdp.value("got.splice(0)") == [owner + key for key in ("b", "a", "Enter", "n", "Enter")]
        await here.act(Click(at=(190, 340)))
        outcome = await here.act(Type(text="ab"))
        assert isinstance(outcome, Effect) and outcome.notice and await here.cdp.value("got.splice(0)") == ["a", "b"]


EDITORS = """<div data-t=plain tabindex=0>.</div><div data-t=role role=textbox tabindex=0>.</div><div data-t=rich contenteditable>.</div>
<canvas data-t=canvas tabindex=0 width=90 height=30></canvas><div data-t=deaf tabindex=0>.</div><div data-t=host></div>
<script>
const root = document.querySelector("[data-t=host]").attachShadow({mode: "open"});
root.innerHTML = "<div data-t=shadow role=textbox tabindex=0>.</div>";
window.T = [...document.querySelectorAll("[tabindex],[contenteditable]"), root.firstChild];
const texts = {};
for (const el of T) {
  el.editContext = new EditContext();
  el.editContext.addEventListener("textupdate", (e) => {
    const was = texts[el.dataset.t] || "";
    texts[el.dataset.t] = was.slice(0, e.updateRangeStart) + e.text + was.slice(e.updateRangeEnd);
    if (el.localName !== "canvas") el.textContent = texts[el.dataset.t] || ".";
  });
  if (el.dataset.t !== "deaf") el.addEventListener("keydown", (e) => {
    if (e.ctrlKey && e.key === "a") { el.editContext.updateSelection(0, el.editContext.text.length); e.preventDefault(); }
    if (e.key === "Enter") heard.push("sent");
  });
}
</script>"""


async def test_editors_with_an_edit_context_take_text() -> None:
    async with on(EDITORS) as here:
        for name in ("plain", "role", "rich", "canvas", "deaf", "shadow"):
            for action, wanted in (
                (Type(element=name, text="one two"), "one two"),
                (Type(text="three"), "three"),
                (Type(text=" four", clear=False), "three four"),
                (Type(element=name, text="a\n\tb\r\nc"), "a\n\tb\nc"),
                *([(Type(element=name, text=LONG * 3), LONG * 3)] if name == "plain" else []),
                (Clear(element=name), ""),
            ):
                outcome = await here.act(action)
                assert isinstance(outcome, Effect) and not outcome.notice, (name, outcome)
                assert await here.cdp.value(f"texts.{name}") == wanted, (name, action)
        assert await here.log() == []


CALENDARS = """<input data-t=day><div id=pop style="display:none"><button>1</button></div>
<script>
const day = document.querySelector("[data-t=day]");
day.addEventListener("focus", () => { pop.style.display = "block"; });
day.addEventListener("keydown", (e) => { if (e.key === "Enter") day.value = "chosen"; });
</script>"""


async def test_a_calendar_that_opens_on_focus_leaves_the_text() -> None:
    async with on(CALENDARS) as here:
        for _ in range(2):
            assert isinstance(await here.act(Type(element="day", text="05/17/2024")), Effect)
            assert await here.cdp.value("day.value") == "05/17/2024"

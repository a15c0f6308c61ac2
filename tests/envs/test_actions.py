"""Every action on real pages: what it does, that its events are trusted, and that the page sees
nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.actions import Effect
from envs.types import (
    Answer,
    Check,
    Clear,
    Click,
    DoubleClick,
    Drag,
    Hover,
    Press,
    Scroll,
    Select,
    StopReason,
    Target,
    Terminate,
    Type,
    Upload,
    Wait,
)

from .acting import on

pytestmark = pytest.mark.usefixtures("one_browser")

POINTS = """<button data-t=go style='position:absolute;left:100px;top:100px;width:80px;height:30px'><b>Go</b> on</button>
<a data-t=link href='#x' style='position:absolute;left:300px;top:100px'>a link</a>
<script>hear("mousemove mousedown mouseup click dblclick mouseover")</script>"""


async def test_pointing() -> None:
    async with on(POINTS) as here:
        button = here.context.handles[1]
        assert button is not None
        assert await here.act(Click(element=1)) == Effect(point=(140.0, 115.0), node=button.backend_node_id)
        assert [each for each in await here.log() if not each.startswith("mouse")] == ["click:go"]
        for target in (Click(element="go"), Click(mark=1), Click(at=(175, 191.7))):
            assert isinstance(await here.act(target), Effect)
            heard = await here.log()
            assert {"mousedown:go", "mouseup:go", "click:go"} <= set(heard) and not any("!" in each for each in heard)
        await here.act(DoubleClick(element=1))
        assert [each for each in await here.log() if "click" in each] == ["click:go", "click:go", "dblclick:go"]
        await here.act(Hover(element=2))
        assert {"mouseover:link", "mousemove:link"} == set(await here.log())


FIELDS = """<form onsubmit='heard.push("submit"); return false'><input data-t=name value='old text'></form>
<textarea data-t=area>one</textarea> <div data-t=rich contenteditable style='width:200px'>rich <b>old</b></div>
<input data-t=secret type=password> <label data-t=label>Labelled <input id=inner></label>
<input data-t=date type=date> <input data-t=time type=time> <input data-t=both type=datetime-local> <input data-t=month type=month>
<script>hear("keydown input change")</script>"""


async def test_typing() -> None:
    async with on(FIELDS) as here:
        values = "[...document.querySelectorAll('input,textarea')].map((e) => e.value).concat(document.querySelector('[contenteditable]').innerText)"
        assert isinstance(await here.act(Type(element="name", text="Grüße, 7% A\U0001f600", enter=True)), Effect)
        heard = await here.log()
        assert (
            "submit" in heard
            and "keydown:name:sA" in heard
            and "keydown:name:s%" in heard
            and "keydown:name:Enter" in heard
        )
        assert not any("!" in each for each in heard)
        await here.act(Type(element="area", text="\ntwo\tthree", clear=False))
        await here.act(Type(element="rich", text="new"))
        await here.act(Type(element="secret", text="x" * 250))
        await here.act(Type(element="label", text="in a label"))
        assert (await here.cdp.value(values))[:4] == [
            "Grüße, 7% A\U0001f600",
            "one\ntwo\tthree",
            "x" * 250,
            "in a label",
        ]
        assert (await here.cdp.value(values))[-1] == "new"
        await here.act(Type(text="!", clear=False))  # where the focus is
        assert await here.cdp.value("inner.value") == "in a label!"
        await here.act(Clear(element="name"))
        assert await here.cdp.value("document.forms[0][0].value") == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [("date", "2024-05-17"), ("time", "21:05"), ("time", "00:30"), ("both", "2024-12-01T12:00"), ("month", "2031-11")],
)
async def test_dates_are_typed_part_by_part(field: str, value: str) -> None:
    async with on(FIELDS) as here:
        now = f"document.querySelector('[data-t={field}]').value"
        assert isinstance(await here.act(Type(element=field, text=value)), Effect)
        assert await here.cdp.value(now) == value
        assert any(each.startswith("change:") for each in await here.log())
        await here.act(Clear(element=field))
        assert await here.cdp.value(now) == ""


async def test_pressing_keys() -> None:
    async with on(FIELDS) as here:
        await here.act(Press(element="area", key="ctrl+a"))
        await here.act(Press(key="Delete"))
        assert await here.cdp.value("document.querySelector('textarea').value") == ""
        heard = await here.log()
        assert {"keydown:area:cControl", "keydown:area:ca", "keydown:area:Delete"} <= set(heard)
        await here.act(Press(key="Tab"))
        assert await here.cdp.value("document.activeElement.dataset.t") == "rich"
        await here.act(Press(key="shift+Tab"))
        assert await here.cdp.value("document.activeElement.dataset.t") == "area"
        for key in ("F5", "Escape", "a", "A", "+", "Control++", "space", "Alt+Left", "Shift"):
            assert isinstance(await here.act(Press(key=key)), Effect), key
        heard = await here.log()
        assert not any("!" in each for each in heard)
        assert {"keydown:area:sA", "keydown:area:cs+", "keydown:area: ", "keydown:area:aArrowLeft"} <= set(heard)
        assert await here.cdp.value("document.querySelector('textarea').value") == "aA+ "


LISTS = """<select data-t=many></select>
<select data-t=some><option disabled selected>Choose<option>Red<optgroup label=g disabled><option>Grey</optgroup><option>Blue</select>
<select data-t=sole><option disabled selected>Choose<option>Only</select>
<select data-t=leads onchange='location.hash = this.value'><option>here<option>there</select>
<select data-t=stubborn onkeydown='return false'><option>a<option>b<option>c</select>
<script>
for (let i = 0; i < 1500; i++) document.querySelector("select").add(new Option("Option " + i));
hear("input change focus blur mousedown");
</script>"""


async def test_selecting_fires_one_change_however_long_the_list_is() -> None:
    async with on(LISTS) as here:
        chosen = "[...document.querySelectorAll('select')].map((e) => e.options[e.selectedIndex].text)"
        for name, label in (
            ("many", "Option 1234"),
            ("some", " blue "),
            ("sole", "Only"),
            ("leads", "there"),
            ("many", "Option 0"),
        ):
            assert isinstance(await here.act(Select(element=name, text=label)), Effect)
            heard = [each for each in await here.log() if each[:4] in ("inpu", "chan", "mous")]
            assert heard == [f"input:{name}", f"change:{name}"]
        assert await here.cdp.value(chosen) == ["Option 0", "Blue", "Only", "there", "a"]
        assert isinstance(await here.act(Select(element="many", text="Option 0")), Effect)
        assert not [each for each in await here.log() if each.startswith(("input", "change"))]


async def test_a_click_on_a_list_leaves_the_page_usable() -> None:
    async with on(LISTS) as here:
        await here.act(Click(element="some"))
        assert isinstance(await here.act(Select(element="some", text="Blue")), Effect)
        assert await here.cdp.value("document.querySelectorAll('select')[1].value") == "Blue"
        await here.act(Click(element="many"))
        await here.log()
        await here.act(Click(at=(900, 900)))
        await here.act(Click(at=(900, 900)))
        assert [each for each in await here.log() if each.startswith("mousedown")]


CHECKS = """<input type=checkbox data-t=box><input type=radio name=r data-t=one checked><input type=radio name=r data-t=two>
<span data-t=switch role=switch aria-checked=false tabindex=0 onclick='this.ariaChecked = this.ariaChecked !== "true"'>Switch</span>
<style>.own input { position: absolute; opacity: 0; width: 0; height: 0 } .gone { display: none }</style>
<label class=own><input type=checkbox data-t=drawn>Drawn by the page</label>
<input id=h class=gone type=checkbox data-t=hidden><label for=h>Hidden</label>
<script>hear("click change")</script>"""


async def test_checking_clicks_only_what_differs() -> None:
    async with on(CHECKS) as here:
        state = "[...document.querySelectorAll('input')].map((e) => e.checked).concat(document.querySelector('[role]').ariaChecked)"
        for name in ("box", "two", "switch", "drawn", "hidden"):
            outcome = await here.act(Check(element=name))
            assert isinstance(outcome, Effect) and outcome.point is not None, (name, outcome)
        assert await here.cdp.value(state) == [True, False, True, True, True, "true"]
        heard = await here.log()
        assert len([each for each in heard if each.startswith("click")]) == 7  # a label clicks its box as well
        # The second click of a label is made by the browser; it is trusted, too.
        assert not any("!" in each for each in heard)
        await here.look()
        for name in ("box", "two", "switch", "drawn", "hidden"):
            assert await here.act(Check(element=name)) == Effect()
        assert await here.log() == []
        await here.act(Check(element="box", on=False))
        await here.act(Check(element="switch", on=False))
        assert await here.cdp.value(state) == [False, False, True, True, True, "false"]


FAR = """<div style='height:3000px;width:2500px'>
<div data-t=inner style='width:200px;height:100px;overflow:auto'><div style='height:900px'>long</div></div>
<button data-t=far style='position:absolute;left:2000px;top:2500px' onclick='heard.push("far")'>Far</button></div>
<script>hear("wheel")</script>"""


async def test_scrolling() -> None:
    async with on(FAR) as here:
        state = (
            "[Math.round(scrollX), Math.round(scrollY), Math.round(document.querySelector('[data-t=inner]').scrollTop)]"
        )
        expected = [
            (Scroll(amount=0.5), [0, 300, 0]),
            (Scroll(direction="right", amount=0.25), [200, 300, 0]),
            (Scroll(direction="up", amount=20), [200, 0, 0]),
            (Scroll(direction="left", amount=20), [0, 0, 0]),
            # At once one after the other: the wheel must not stay with what it scrolled before.
            (Scroll(element="inner", amount=0.5), [0, 0, 300]),
            (Scroll(at=(900, 900), amount=0.5), [0, 300, 300]),
        ]
        for action, at in expected:
            assert isinstance(await here.act(action), Effect)
            assert await here.cdp.value(state) == at, action
        heard = await here.log()
        assert len(heard) == 6 and not any("!" in each for each in heard)
        await here.act(Click(element="far"))
        assert "far" in await here.log()
        await here.act(Scroll(element="inner", direction="up", amount=1))
        assert (await here.cdp.value(state))[2] == 0


DRAGS = """<div data-t=source draggable=true style='position:absolute;left:20px;top:20px;width:80px;height:40px;background:#ccc'>source</div>
<div data-t=sink style='position:absolute;left:300px;top:200px;width:200px;height:200px;background:#eee'>sink</div>
<div data-t=knob style='position:absolute;left:20px;top:100px;width:20px;height:20px;background:#111'></div>
<input data-t=range type=range min=0 max=100 value=0 style='position:absolute;left:20px;top:450px;width:200px;margin:0'>
<div data-t=below style='position:absolute;left:20px;top:700px;width:80px;height:40px;background:#ccc'>below</div>
<div style='height:3000px'></div>
<script>
let held = false;
document.querySelector("[data-t=knob]").onmousedown = () => { held = true; };
onmousemove = (e) => { if (held) heard.push("held" + (e.isTrusted ? "" : "!")); };
onmouseup = (e) => { if (held) heard.push("put " + e.clientX + " " + e.clientY); held = false; };
document.querySelector("[data-t=source]").ondragstart = (e) => e.dataTransfer.setData("text/plain", "cargo");
const sink = document.querySelector("[data-t=sink]");
sink.ondragover = (e) => e.preventDefault();
sink.ondrop = (e) => { e.preventDefault(); heard.push("got " + e.dataTransfer.getData("text/plain")); };
hear("dragstart dragenter drop dragend");
</script>"""


async def test_dragging() -> None:
    async with on(DRAGS) as here:
        assert isinstance(await here.act(Drag(start=Target(element="source"), end=Target(element="sink"))), Effect)
        heard = await here.log()
        assert [each for each in heard if not each.startswith("dragenter")] == [
            "dragstart:source",
            "drop:sink",
            "got cargo",
            "dragend:source",
        ]
        assert "dragenter:sink" in heard
        assert await here.act(Drag(start=Target(mark=3), end=Target(at=(500, 500)))) == Effect(point=(400.0, 300.0))
        heard = await here.log()
        assert heard[-1] == "put 400 300" and heard.count("held") >= 8 and not any("!" in each for each in heard)
        await here.act(Drag(start=Target(at=(30, 763)), end=Target(at=(150, 763))))
        assert 40 < int(await here.cdp.value("document.querySelector('input').value")) < 70
        # The end is below the fold: the page is scrolled so that both are seen.
        assert isinstance(await here.act(Drag(start=Target(element="sink"), end=Target(element="below"))), Effect)


FILES = """<input type=file data-t=field><input type=file multiple data-t=several>
<input type=file id=picked style='display:none'><button data-t=button onclick='picked.click()'>Attach</button>
<script>hear("change"); addEventListener("change", (e) => heard.push([...e.target.files].map((f) => f.name + f.size).join()))</script>"""


async def test_uploading(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("four")
    (tmp_path / "sub" / "b.txt").write_text("b")

    async with on(FILES, files=tmp_path) as here:
        assert isinstance(await here.act(Upload(element="field", files=("a.txt",))), Effect)
        assert await here.log() == ["change:field", "a.txt4"]
        await here.act(Upload(element="several", files=("a.txt", "sub/b.txt")))
        assert (await here.log())[-1] == "a.txt4,b.txt1"
        assert isinstance(await here.act(Upload(element="button", files=("sub/b.txt",))), Effect)
        assert (await here.log())[-1] == "b.txt1"


async def test_ends_and_waits_touch_nothing() -> None:
    async with on(POINTS) as here:
        assert await here.act(Answer(text="42")) == Effect(stop=StopReason.ANSWER, said="42")
        assert await here.act(Terminate(status="failure")) == Effect(stop=StopReason.TERMINATED, said="failure")
        assert await here.act(Wait(seconds=2)) == Effect(wait_ms=2000.0)
        assert await here.log() == []

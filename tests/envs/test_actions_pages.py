"""Actions over pages, tabs, frames and shadow roots: where they lead, whose element is hit, and
what a page may see of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.actions import ActionError, Effect
from envs.types import (
    Back,
    Check,
    Click,
    CloseTab,
    Dialog,
    Forward,
    Goto,
    NewTab,
    Refresh,
    Scroll,
    Select,
    SwitchTab,
    Type,
)

from .acting import on, served, stage

pytestmark = pytest.mark.usefixtures("one_browser")


async def test_going_from_page_to_page(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.html").write_text(f"<title>{name}</title><h1>{name}</h1>")

    async with served(tmp_path) as origin, stage() as here:

        async def title() -> str:
            return str(await here.cdp.value("document.title"))

        assert await here.act(Goto(url=f"{origin}/one.html")) == Effect()
        await here.act(Goto(url="/two.html"))
        assert await title() == "two"
        assert await here.act(Back()) == Effect()
        assert await title() == "one"
        await here.act(Forward())
        assert await title() == "two"
        await here.act(Goto(url="/count"))
        await here.act(Refresh())
        assert await here.cdp.value("document.body.innerText") == "2"
        await here.act(Goto(url=origin.removeprefix("http://") + "/one.html"))
        assert await title() == "one"


async def test_tabs(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text("<title>one</title>")

    async with served(tmp_path) as origin, stage() as here:
        tabs = here.context.tabs
        assert await here.act(NewTab()) == Effect()
        await here.act(NewTab(url=f"{origin}/one.html"))
        assert (tabs.tab_numbers, tabs.active_number) == ((1, 2, 3), 3)
        await here.act(SwitchTab(tab=1))
        await here.act(Goto(url=f"{origin}/one.html"))
        assert await here.act(NewTab(url="/two.html")) == Effect()
        await here.act(CloseTab())
        await here.act(SwitchTab(tab=1))
        assert tabs.active_number == 1
        await here.act(CloseTab(tab=2))
        await here.act(CloseTab())
        assert tabs.tab_numbers in ((1,), (3,))


ASKS = """<button data-t=alert onclick='alert("hello"); heard.push("after")'>a</button>
<button data-t=confirm onclick='heard.push("" + confirm("sure?"))'>c</button>
<button data-t=prompt onclick='heard.push("" + prompt("name?", "Ann"))'>p</button>
<button data-t=two onclick='alert(1); alert(2); heard.push("both")'>2</button>"""


async def test_dialogs() -> None:
    async with on(ASKS) as here:
        assert await here.act(Click(element="alert")) == Effect()
        pending = here.context.dialogs.pending
        assert pending is not None and (pending.kind, pending.message) == ("alert", "hello")
        assert isinstance(await here.act(Click(element="alert")), ActionError)
        assert await here.act(Dialog(accept=True)) == Effect()
        for name, action, heard in [
            ("confirm", Dialog(accept=True), "true"),
            ("confirm", Dialog(accept=False), "false"),
            ("prompt", Dialog(accept=True, text="Bob"), "Bob"),
            ("prompt", Dialog(accept=True), "Ann"),
            ("prompt", Dialog(accept=False), "null"),
        ]:
            await here.act(Click(element=name))
            await here.act(action)
            assert (await here.log())[-1] == heard
        await here.act(Click(element="two"))
        await here.act(Dialog(accept=True))
        pending = here.context.dialogs.pending
        assert pending is not None and pending.message == "2"
        await here.act(Dialog(accept=True))
        assert "both" in await here.log()


NESTED = """<div id=host></div>
<iframe id=f style='position:absolute;left:200px;top:200px;width:300px;height:100px;border:7px solid' srcdoc="<body style='margin:0;height:900px'>
<button data-t=framed style='margin-top:600px' onclick='parent.heard.push(&quot;framed&quot;)'><i>In</i></button>"></iframe>
<my-button data-t=slotted id=slotted><em>Slotted</em></my-button>
<script>
const root = host.attachShadow({mode: "closed"});
root.innerHTML = "<button data-t=closed onclick='heard.push(\\"closed\\")'><span>Closed</span></button><input data-t=inside>";
const slots = slotted.attachShadow({mode: "closed"});
slots.innerHTML = "<button data-t=wrapped onclick='heard.push(\\"slotted\\")'><slot></slot></button>";
const ours = () => [root.querySelector("button"), root.querySelector("input"), slots.querySelector("button")];
onload = () => { window.T = [...ours(), f.contentDocument.querySelector("button")]; };
</script>"""


async def test_shadow_roots_and_frames() -> None:
    async with on(NESTED) as here:
        await here.look()
        for name, heard in (("closed", "closed"), ("framed", "framed"), ("wrapped", "slotted")):
            outcome = await here.act(Click(element=name))
            assert isinstance(outcome, Effect), outcome
            assert await here.log() == [heard]
        assert isinstance(await here.act(Type(element="inside", text="deep")), Effect)
        await here.act(Type(text="er", clear=False))
        assert await here.cdp.value("T[1].value") == "deeper"


WATCHED = """<button data-t=go><b>Go</b></button><input data-t=field><select data-t=list><option>a<option>b<option>c</select>
<label><input type=checkbox data-t=box> Box</label><div style='height:2000px'></div><script>
const seen = [];
const watch = (proto, ...names) => names.forEach((name) => {
  const old = proto[name];
  proto[name] = function (...rest) { seen.push(name); return old.apply(this, rest); };
});
watch(Element.prototype, "matches", "closest", "querySelectorAll", "getAttribute", "getClientRects");
watch(Node.prototype, "getRootNode", "contains");
watch(window, "requestAnimationFrame");
const guard = (proto, name) => {
  const old = Object.getOwnPropertyDescriptor(proto, name);
  const set = function (value) { seen.push(name + "="); old.set.call(this, value); };
  Object.defineProperty(proto, name, {get() { seen.push(name); return old.get.call(this); }, set});
};
guard(HTMLSelectElement.prototype, "selectedIndex");
guard(HTMLInputElement.prototype, "checked");
guard(HTMLElement.prototype, "innerText");
const everything = {subtree: true, childList: true, attributes: true, characterData: true};
new MutationObserver((all) => seen.push(...all.map((m) => m.type))).observe(document, everything);
</script>"""


async def test_the_page_sees_nothing_but_its_input() -> None:
    async with on(WATCHED) as here:
        await here.cdp.value("seen.splice(0)")
        for action in (
            Click(element="go"),
            Type(element="field", text="x"),
            Select(element="list", text="c"),
            Check(element="box"),
            Scroll(),
        ):
            assert isinstance(await here.act(action), Effect)
        assert await here.cdp.value("seen") == []
        assert await here.cdp.value("document.querySelector('select').value") == "c"


COVERED = """<style>.card { position: relative; width: 300px; height: 200px } .card a::after { content: ""; position: absolute; inset: 0 }</style>
<div class=card><a data-t=stretched href='#hit'>A link as large as its card</a></div>
<label data-t=around>Name <input data-t=named></label>
<a data-t=wrapped href='#wrapped' style='display:block;width:60px'>a link that goes over several lines</a>
<svg width=50 height=50><g data-t=shape
 onclick='location.hash = "shape"'><circle cx=25 cy=25 r=20 /></g></svg>
<svg width=100 height=100 onclick='location.hash = event.target.dataset.t ?? "none"'>
<path data-t=quarter d='M50 50V0A50 50 0 0 1 100 50Z' /><path data-t=slice d='M50 50H100A50 50 0 0 1 99 60Z' fill=red />
<path data-t=rest d='M50 50L99 60A50 50 0 1 1 50 0Z' fill=green /></svg>
<svg width=100 height=100 onclick='location.hash = event.target.dataset.t ?? "none"'><circle data-t=ring cx=50 cy=50 r=40 fill=none stroke=red />
<g transform='translate(50 50) rotate(30)'><rect data-t=frame x=-9 y=-9 width=18 height=18 fill=none stroke=blue stroke-width=2 /></g></svg>"""


async def test_what_belongs_to_an_element_is_the_element() -> None:
    async with on(COVERED) as here:
        drawn = ("wrapped", "shape", "quarter", "slice", "rest", "ring", "frame")
        for name, there in (("stretched", "#hit"), *((name, f"#{name}") for name in drawn)):
            outcome = await here.act(Click(element=name))
            assert isinstance(outcome, Effect), (name, outcome)
            assert await here.cdp.value("location.hash") == there
        # The middle of the card is the link's, though its own box is a line of text.
        await here.cdp.value("location.hash = ''")
        await here.act(Click(at=(250, 250)))
        assert await here.cdp.value("location.hash") == "#hit"

"""An observer on live pages: it changes nothing, keeps ids, sees live state and focus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from playwright.async_api import CDPSession, Page

from envs.observation import FULL, SMALL, Observer, Reading
from envs.observation.hashes import action_signature
from envs.types import Click, Element

VIEWPORT = (1280, 720)


async def look(observer: Observer, cdp: CDPSession) -> Reading:
    return await observer.observe(cdp, viewport=VIEWPORT, instruction="Do it.")


def by_text(reading: Reading, text: str) -> Element:
    return next(element for element in reading.observation.elements if element.text == text)


WATCHED = """<button>a</button><input value=x><iframe srcdoc="<button>f</button>"></iframe><div id=host></div><script>
const root = host.attachShadow({mode: "open"}); root.innerHTML = "<button>s</button>";
window.changes = 0; window.scripts = 0;
for (const node of [document, root]) new MutationObserver((all) => { changes += all.length; })
  .observe(node, {subtree: true, childList: true, attributes: true, characterData: true});
for (const name of ["activeElement", "querySelector", "querySelectorAll", "elementFromPoint"]) {
  const own = Object.getOwnPropertyDescriptor(Document.prototype, name);
  Object.defineProperty(document, name, {get() { scripts += 1; return own.get ? own.get.call(document) : own.value.bind(document); }});
}
const rect = Element.prototype.getBoundingClientRect;
Element.prototype.getBoundingClientRect = function () { scripts += 1; return rect.call(this); };
</script>"""


async def test_the_page_sees_no_change_and_no_call(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> Any:
        observer = Observer()
        await page.focus("input")
        await page.evaluate("changes = scripts = 0")
        globals_before = await page.evaluate("Object.getOwnPropertyNames(window).length")
        for _ in range(3):
            await look(observer, cdp)
        return await page.evaluate(f"[changes, scripts, Object.getOwnPropertyNames(window).length - {globals_before}]")

    assert await on_page(WATCHED, script) == [0, 0, 0]


LIVE = """<form id=login><input placeholder=Name value=old><input type=checkbox aria-label=Keep>
<select aria-label=Size><option>S<option>M</select><textarea aria-label=Note></textarea></form>"""


async def test_form_state_is_live(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> tuple[Reading, Reading]:
        observer = Observer()
        before = await look(observer, cdp)
        await page.fill("[placeholder=Name]", "new")
        await page.check("[aria-label=Keep]")
        await page.select_option("select", "M")
        await page.fill("textarea", "words")
        return before, await look(observer, cdp)

    before, after = await on_page(LIVE, script)
    assert [element.value for element in before.observation.elements] == ["old", "", "S", ""]
    assert [element.value for element in after.observation.elements] == ["new", "", "M", "words"]
    assert by_text(after, "Keep").checked and by_text(after, "Note").focused
    assert [element.id for element in before.observation.elements] == [
        element.id for element in after.observation.elements
    ]
    assert before.dom_hash != after.dom_hash


LIST = (
    "<ul>"
    + "".join(f"<li><button>Delete</button> thing {number}</li>" for number in range(3))
    + "</ul><nav><a href=#>Home</a></nav>"
)


async def test_ids_stay_when_things_come_and_go(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[Reading]:
        observer = Observer()
        readings = [await look(observer, cdp)]
        for change in (
            "document.body.insertAdjacentHTML('afterbegin', '<button>Delete</button><p>News</p>')",
            "document.querySelectorAll('li')[0].remove()",
            "document.querySelector('a').textContent = 'Start'",
            "document.querySelector('nav').innerHTML = '<a href=#>Home</a>'",
        ):
            await page.evaluate(change)
            readings.append(await look(observer, cdp))
        return readings

    first, inserted, removed, renamed, redrawn = await on_page(LIST, script)
    ids = [[element.id for element in reading.observation.elements] for reading in (first, inserted, removed)]
    assert ids[0] == ["delete", "delete_2", "delete_3", "nav.home"]
    assert ids[1] == ["delete_4", *ids[0]], "the new first button does not take the old one's id"
    assert ids[2] == ["delete_4", "delete_2", "delete_3", "nav.home"]
    assert by_text(renamed, "Start").id == "nav.home" and by_text(redrawn, "Home").id == "nav.home"
    one = action_signature(Click(element=2), first.observation.elements)
    assert one == "click delete_2" == action_signature(Click(element=3), inserted.observation.elements)
    assert one != action_signature(Click(element=2), inserted.observation.elements)


FOCUS = """<input placeholder=plain><div id=open></div><div id=closed></div><iframe srcdoc="<input placeholder=framed>"></iframe><script>
const inner = {};
for (const mode of ["open", "closed"]) {
  const root = document.getElementById(mode).attachShadow({mode});
  root.innerHTML = `<input placeholder=${mode}>`; inner[mode] = root.firstChild;
}
window.focusOn = (name) => (inner[name] || (name === "framed" ? document.querySelector("iframe").contentDocument.querySelector("input")
  : document.querySelector("input"))).focus();
</script>"""


async def test_focus_is_found_in_shadow_roots_and_frames(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[list[str]]:
        observer, found = Observer(), []
        found.append([element.text for element in (await look(observer, cdp)).observation.elements if element.focused])
        for name in ("plain", "open", "closed", "framed"):
            await page.evaluate(f"focusOn('{name}')")
            elements = (await look(observer, cdp)).observation.elements
            found.append([element.text for element in elements if element.focused])
        return found

    assert await on_page(FOCUS, script) == [[], ["plain"], ["open"], ["closed"], ["framed"]]


async def test_focus_in_a_frame_of_another_origin(on_labelled: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[tuple[str, str]]:
        await page.frame_locator("#far").get_by_placeholder("Field in a frame").click()
        elements = (await look(Observer(), cdp)).observation.elements
        return [(element.text, element.id) for element in elements if element.focused]

    assert await on_labelled(script) == [("Field in a frame", "far.field_in_a_frame")]


TALL = "<button>Top</button><div style='height: 3000px'>high</div><button>Bottom</button><p>The end</p>"


async def test_what_is_out_of_view_is_counted_or_listed(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[Reading]:
        readings = [await look(Observer(), cdp), await look(Observer(replace(FULL, offscreen=True)), cdp)]
        await page.evaluate("scrollTo(0, 5000)")
        return [*readings, await look(Observer(), cdp)]

    seen, listed, scrolled = (reading.observation for reading in await on_page(TALL, script))
    assert [element.text for element in seen.elements] == ["Top"] and seen.hidden.below == 1
    assert seen.text == '[1] button "Top"\nhigh\n… 1 more element below, 7 characters of text out of view'
    assert [(element.text, element.in_viewport) for element in listed.elements] == [("Top", True), ("Bottom", False)]
    assert listed.elements[1].box[1] > 3000
    assert [element.text for element in scrolled.elements] == ["Bottom"] and scrolled.hidden.above == 1
    assert scrolled.scroll[1] > 2000 and scrolled.page_size[1] > 3000


INSIDE = """<a href="#x" style="position: absolute; top: -500px">Skip</a>
<div id=box style="height: 100px; overflow: auto"><button>One</button><div style="height: 3000px"></div><button>Two</button></div>
<iframe height=100 srcdoc="<button>Three</button><div style='height: 3000px'></div><button>Four</button>"></iframe>"""


async def test_what_a_container_or_frame_has_scrolled_away_is_counted(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[Reading]:
        await page.frame_locator("iframe").get_by_text("Four").wait_for()
        before = await look(Observer(), cdp)
        await page.evaluate("box.scrollTo(0, 5000); frames[0].scrollTo(0, 5000)")
        return [before, await look(Observer(), cdp)]

    before, after = (reading.observation for reading in await on_page(INSIDE, script))
    assert [element.text for element in before.elements] == ["One", "Three"]
    assert (before.hidden.above, before.hidden.below) == (0, 2), "what no scrolling reaches is not counted"
    assert [element.text for element in after.elements] == ["Two", "Four"]
    assert (after.hidden.above, after.hidden.below) == (2, 0)


async def test_a_dialog_covers_what_is_below_it(on_page: Any) -> None:
    page = "<button>Below</button><p>Text below</p><dialog id=d style='width:100%;height:100%;max-width:none'><button>Inside</button></dialog>"

    async def script(page: Page, cdp: CDPSession) -> Reading:
        await page.evaluate("d.showModal()")
        return await look(Observer(), cdp)

    seen = (await on_page(page, script)).observation
    assert [element.text for element in seen.elements] == ["Inside"] and "Text below" not in seen.text
    assert seen.hidden.covered == 1


async def test_what_is_excluded_is_neither_shown_nor_hashed(on_page: Any) -> None:
    page = "<div id=clock><button>Stop</button> 12:00</div><button class='ad big'>Ad</button><button>Go</button>"

    async def script(page: Page, cdp: CDPSession) -> list[Reading]:
        observer = Observer(exclude="#clock, button.ad")
        first = await look(observer, cdp)
        await page.evaluate("document.getElementById('clock').innerHTML = '<b>12</b>:<b>01</b>'")
        second = await look(observer, cdp)
        await page.evaluate("document.body.append('more')")
        return [first, second, await look(observer, cdp)]

    first, second, third = await on_page(page, script)
    assert first.observation.text == second.observation.text == '[1] button "Go"'
    assert first.dom_hash == second.dom_hash != third.dom_hash


async def test_a_push_of_the_address_is_no_other_document(on_labelled: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[str]:
        observer = Observer()
        documents = [(await look(observer, cdp)).document]
        await page.evaluate("history.pushState(null, '', '?elsewhere')")
        documents.append((await look(observer, cdp)).document)
        await page.goto(page.url.replace("labelled.html?elsewhere", "labelled_frame.html"))
        return [*documents, (await look(observer, cdp)).document]

    first, pushed, gone = await on_labelled(script)
    assert first == pushed != gone


async def test_small_pages_read_line_by_line_with_short_texts(on_page: Any) -> None:
    page = """<div style="position:relative;width:160px;font-size:10px"><button style="position:absolute;left:80px;top:2px">Right</button>
      <button style="position:absolute;left:0;top:0">Left</button><span style="position:absolute;left:0;top:40px">3 + 4 =</span>
      <input style="position:absolute;left:50px;top:40px;width:40px" disabled><span class="icon star" onclick="1"
      style="position:absolute;left:120px;top:40px;width:9px;height:9px"></span></div>"""

    async def script(page: Page, cdp: CDPSession) -> Reading:
        return await look(Observer(SMALL), cdp)

    seen = (await on_page(page, script)).observation
    assert [(element.tag, element.text) for element in seen.elements] == [
        ("button", "Left"),
        ("button", "Right"),
        ("text", "3 + 4 ="),
        ("item", "icon star"),
    ]
    assert seen.text == "" and seen.words is None


DOT = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
STYLED = f"""<style>
.new::before {{ content: "New:" }} .must::after {{ content: " (required)" }} .menu::before {{ content: "Menu" }}
.icon::before {{ content: "\\f007" }} .gone::before {{ content: "gone"; visibility: hidden }} .bare::after {{ content: "" }}
.done::before {{ content: "Done" }} .done {{ position: absolute; top: 3000px }}
</style>
<p class="new bare">The <b>kettle</b></p> <p class=must>Name <i>of yours</i></p>
<button class=menu></button> <button class=icon></button> <p class=icon></p> <p class=gone>left</p> <p class=done></p>
<ul><li>tea</ul><ol><li>one<li>two</ol>
<p>See <img alt="A  blue kettle" src="data:," width=20 height=20> here</p> <img alt="" src="data:," width=20 height=20>
<a href="/kettle"><img alt="Kettles" src="data:," width=20 height=20></a> <img alt="unseen" src="{DOT}" width=1 height=1>
<img alt="far away" src="data:," width=20 height=20 style="position: absolute; top: 3000px">"""


async def test_words_of_style_sheets_and_pictures_are_read_where_they_stand(on_page: Any) -> None:
    async def script(_page: Page, cdp: CDPSession) -> Reading:
        return await look(Observer(), cdp)

    reading = await on_page(STYLED, script)
    assert reading.observation.text.split("\n") == [
        "New: The kettle",
        "Name of yours (required)",
        '[1] button "Menu" [2] button "grey"',
        "left",
        "tea",
        "1. one",
        "2. two",
        'See image "A blue kettle" here',
        '[3] "Kettles"',
        "… 4 characters of text out of view",
    ]


async def test_an_empty_page_gives_an_empty_reading(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> Reading:
        await page.goto("about:blank")
        return await look(Observer(), cdp)

    seen = await on_page("", script)
    assert seen.observation.elements == () and seen.observation.text == "" and seen.handles == {}


async def test_looking_again_and_again_makes_no_new_worlds(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> int:
        made: list[Any] = []
        cdp.on("Runtime.executionContextCreated", lambda event: made.append(event))
        await cdp.send("Runtime.enable")
        observer = Observer()
        await look(observer, cdp)
        before = len(made)
        for _ in range(5):
            await look(observer, cdp)
        return len(made) - before

    assert await on_page("<input autofocus>", script) == 0

# ruff: noqa: E501 (a table: one case a line)
"""What is listed of every kind of control and how it is written, one small case a cell, all in one
real page.

What is expected was written down from what a person sees and can do, and from the ARIA and HTML
specifications.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page

from envs.observation import Observer, Reading

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
OVER = "position:absolute;left:0;top:0;width:60px;height:20px;margin:0"
BOXED = "style='position:relative;height:22px'"

PHANTOMS = {
    "transparent button": "<button style='opacity:0'>ghost</button>",
    "almost transparent": "<button style='opacity:0.001'>ghost</button>",
    "transparent around": "<div style='opacity:0'><a href=#>ghost</a> ghost</div>",
    "transparent field": "<input style='opacity:0' aria-label=ghost>",
    "transparent on a large ground": "<div style='background:#eee;width:140px;height:38px'><input type=checkbox style='opacity:0'></div>",
    "inset": "<button style='clip-path:inset(100%)'>ghost</button>",
    "inset by half": "<div style='clip-path:inset(50%)'><button>ghost</button>ghost</div>",
    "circle of nothing": "<button style='clip-path:circle(0)'>ghost</button>",
    "polygon of nothing": "<button style='clip-path:polygon(0 0,0 0,0 0)'>ghost</button>",
    "old clip": "<button style='position:absolute;clip:rect(0,0,0,0)'>ghost</button>",
    "for screen readers": "<div style='position:absolute;width:1px;height:1px;overflow:hidden;clip:rect(0 0 0 0)'>ghost <a href=#>ghost</a></div>",
    "clear words": "<a href=# style='color:transparent'>ghost</a>",
    "clear fill": "<span onclick=1 style='-webkit-text-fill-color:transparent'>ghost</span>",
    "clear by alpha": "<p style='color:rgb(9 9 9 / 0)'>ghost</p>",
    "no size of letters": "<a href=# style='font-size:0'>ghost</a>",
    "scaled to nothing": "<button style='transform:scale(0)'>ghost</button>",
    "back of a card": "<div style='transform-style:preserve-3d'><button style='backface-visibility:hidden;transform:rotateY(180deg)'>ghost</button></div>",
    "front of a turned card": "<div style='transform-style:preserve-3d;transform:rotateX(180deg)'><b style='backface-visibility:hidden'>ghost</b></div>",
    "content-visibility": "<div style='content-visibility:hidden'><button>ghost</button>ghost</div>",
    "until found": "<div hidden=until-found><button>ghost</button>ghost</div>",
    "closed details": "<details><summary style='display:none'></summary><button>ghost</button>ghost</details>",
    "closed dialog": "<dialog><button>ghost</button>ghost</dialog>",
    "closed popover": "<div popover><button>ghost</button>ghost</div>",
    "collapsed": "<button style='visibility:collapse'>ghost</button>",
    "hidden frame": "<iframe height=30 width=90 style='visibility:hidden' srcdoc='<button>ghost</button>ghost'></iframe>",
    "frame in a hidden frame": "<iframe height=30 width=90 style='visibility:hidden' srcdoc='<iframe srcdoc=\"<button>ghost</button>ghost\"></iframe>'></iframe>",
    "frame in a hidden box": "<div style='visibility:hidden'><iframe height=30 width=90 srcdoc='<button style=visibility:visible>ghost</button>ghost'></iframe></div>",
    "transparent frame": "<iframe height=30 width=90 style='opacity:0' srcdoc='<button>ghost</button>ghost'></iframe>",
    "frame not displayed": "<iframe style='display:none' srcdoc='<button>ghost</button>ghost'></iframe>",
    "frame without a size": "<iframe width=0 height=0 style='border:0' srcdoc='<button>ghost</button>ghost'></iframe>",
    "frame of a pixel": "<iframe width=1 height=1 style='border:0' srcdoc='<body style=margin:0><button>ghost</button>ghost'></iframe>",
}
"""What nobody sees: nothing of it may be listed or be in the text."""

LISTED = {
    # Transparent controls over something that is drawn for them, and other invisible things that
    # can be used.
    "styled checkbox": (
        f"<div {BOXED}><input type=checkbox aria-label=Own style='{OVER};opacity:0;z-index:1'><i style='{OVER};background:#ccc'></i></div>",
        ['checkbox "Own"'],
    ),
    "checkbox with a label": (
        "<label><input type=checkbox style='opacity:0;position:absolute;left:-99px'> Labelled</label>",
        ['checkbox "Labelled"'],
    ),
    "file field over a button": (
        f"<div {BOXED}><span style='{OVER};border:1px solid'>Upload</span><input type=file aria-label=Send style='{OVER};opacity:0'></div>",
        ['file "Send"'],
    ),
    "list over a picture of it": (
        f"<div {BOXED}><span style='{OVER}'>Any size</span><select aria-label=Size style='{OVER};opacity:0'><option>S<option>M</select></div>",
        ['select "Size" value "S" (S, M)'],
    ),
    "icon with clear words": (
        f"<a href=# style='color:transparent;background:url({PIXEL})'>Icon link</a>",
        ['"Icon link"'],
    ),
    "letters cut out of a picture": (
        "<a href=# style='background:linear-gradient(red,blue);background-clip:text;color:transparent'>Gradient</a>",
        ['"Gradient"'],
    ),
    "button with clear words": ("<button style='color:transparent'>Plain</button>", ['button "Plain"']),
    "partly clipped": ("<button style='clip-path:inset(2px round 4px)'>Rounded</button>", ['button "Rounded"']),
    "front of a card": (
        "<div style='transform-style:preserve-3d'><button style='backface-visibility:hidden'>Front</button></div>",
        ['button "Front"'],
    ),
    "mirrored": (
        "<button style='backface-visibility:hidden;transform:scaleX(-1)'>Mirrored</button>",
        ['button "Mirrored"'],
    ),
    "seen in a hidden box": (
        "<div style='visibility:hidden'><button style='visibility:visible'>Shown</button></div>",
        ['button "Shown"'],
    ),
    "without a box": ("<button style='display:contents'><b>Boxless</b></button>", ['button "Boxless"']),
    "hidden from screen readers": ("<button aria-hidden=true>Seen</button>", ['button "Seen"']),
    "inert": ("<div inert><button>Idle</button></div>", ['button "Idle" disabled']),
    # What was not listed.
    "areas": (
        f"<map name=m><area href=#a alt=Left coords=0,0,40,20><area shape=circle href=#b alt=Round coords=60,10,9><area alt=None coords=80,0,90,20>"
        f"</map><img usemap=#m src='{PIXEL}' width=100 height=20>",
        ['"Left"', '"Round"'],
    ),
    "popover out of a box": (
        "<div style='overflow:hidden;height:9px;position:relative'><p popover id=p style='position:absolute;inset:auto;top:60px'>"
        "<button>Over</button></div><script>p.showPopover()</script>",
        ['button "Over"'],
    ),
    "drawn checkbox of a library": (
        "<button role=checkbox aria-checked=false id=c style='width:16px;height:16px'></button><label for=c>Accept <a href=#>terms</a></label>",
        ['checkbox "Accept terms"', '"terms"'],
    ),
    "focusable cell": (
        "<table><tr><td tabindex=0 role=gridcell aria-label='Cell B2'></td></tr></table>",
        ['gridcell "Cell B2"'],
    ),
    "focusable canvas": ("<canvas tabindex=0 width=90 height=30 aria-label=Sheet></canvas>", ['canvas "Sheet"']),
    "focusable box": ("<div tabindex=0 style='width:60px'>Terminal</div>", ['item "Terminal"']),
    "shape with the focus": (
        "<svg width=90 height=30><rect tabindex=0 width=60 height=20 aria-label=Bar></rect></svg>",
        ['shape "Bar"'],
    ),
    "group of shapes": (
        "<svg width=90 height=30><g role=button aria-label=Zoom><circle cx=15 cy=15 r=12></circle></g></svg>",
        ['button "Zoom"'],
    ),
    "shape with a listener": (
        "<svg width=90 height=30><path d='M0 0H60V20H0Z' onclick=1><title>Region</title></path></svg>",
        ['shape "Region"'],
    ),
    "link in a drawing": (
        "<svg width=90 height=30><a href=#a><rect width=60 height=20></rect><title>Chart</title></a></svg>",
        ['"Chart"'],
    ),
    "old link in a drawing": (
        "<svg width=90 height=30><a xlink:href=#a><text y=20>Old chart</text></a></svg>",
        ['"Old chart"'],
    ),
    "list with the focus": (
        "<ul tabindex=0 role=listbox style='margin:0'><li role=option>Apple</li></ul>",
        ['option "Apple"'],
    ),
    "menu used with keys": ("<div role=menu tabindex=0 onkeydown=1 style='width:60px'>Edit</div>", ['item "Edit"']),
    "tree used with keys": ("<div role=tree tabindex=0 style='width:60px'>Branch</div>", ['item "Branch"']),
    "menu with the focus": (
        "<div role=menu tabindex=0 onkeydown=1 style='padding:9px;width:60px'><div role=menuitem>Cut</div></div>",
        ['item "Cut"', 'menuitem "Cut"'],
    ),
    "scrolled with keys": ("<pre tabindex=0 style='overflow:auto;width:60px;margin:0'>long words of code</pre>", []),
    "double click": ("<table><tr><td ondblclick=1>Cell</td></tr></table>", ['item "Cell" takes double-click']),
    "right click": ("<div oncontextmenu=1 style='width:60px'>Menu here</div>", ['item "Menu here" takes right-click']),
    "designMode": ("<iframe id=design height=30 width=90 title=Letter></iframe>", ['textbox "Letter" value "Dear"']),
    # States.
    "expanded": (
        "<button aria-expanded=true>Open one</button><button aria-expanded=false>Closed one</button>",
        ['button "Open one" expanded', 'button "Closed one" collapsed'],
    ),
    "details": ("<details><summary>More</summary></details>", ['button "More" collapsed']),
    "open details": ("<details open><summary>Less</summary></details>", ['button "Less" expanded']),
    "partly checked": ("<span role=checkbox aria-checked=mixed>Some</span>", ['checkbox "Some" partly checked']),
    "indeterminate": ("<input type=checkbox aria-label=All id=mixed>", ['checkbox "All" partly checked']),
    "pressed": (
        "<button aria-pressed=true>Bold</button><button aria-pressed=mixed>Wide</button>",
        ['button "Bold" checked', 'button "Wide" partly checked'],
    ),
    "switch button": ("<button role=switch aria-checked=true>Wi-Fi</button>", ['switch "Wi-Fi" checked']),
    "selected": ("<div role=treeitem aria-selected=true>Node</div>", ['treeitem "Node" selected']),
    "current": ("<a href=# aria-current=page>Home</a>", ['"Home" current page']),
    "sorted": (
        "<table><tr><th aria-sort=descending><button>Price</button></th></tr></table>",
        ['button "Price" sorted descending'],
    ),
    "popup": ("<button aria-haspopup=menu>Menu</button>", ['button "Menu" has popup']),
    "required": (
        "<input aria-label=Need required><input aria-label=Fix readonly value=x>",
        ['textbox "Need" required', 'textbox "Fix" value "x" readonly'],
    ),
    "aria required": (
        "<div role=textbox contenteditable aria-label=Rich aria-required=true style='width:50px'>a</div>",
        ['textbox "Rich" value "a" required'],
    ),
    "draggable": ("<span draggable=true>Card</span>", ['item "Card" draggable']),
    "why disabled": (
        "<button disabled title='Fill in the form first'>Send</button>",
        ['button "Send" note "Fill in the form first" disabled'],
    ),
    "said to be invalid": (
        "<input aria-label=Zip aria-invalid=true aria-errormessage=e><b id=e>Five digits</b>",
        ['textbox "Zip" invalid "Five digits"'],
    ),
    "sent and invalid": (
        "<form id=sent><input aria-label=Name required></form>",
        ['textbox "Name" required invalid "Please fill out this field."'],
    ),
    # Fields by what they are.
    "slider": (
        "<input type=range aria-label=Volume min=0 max=10 step=2 value=4>",
        ['slider "Volume" value "4" min 0 max 10 step 2'],
    ),
    "slider with words": (
        "<input type=range aria-label=Heat aria-valuetext=Warm value=7>",
        ['slider "Heat" showing "Warm" value "7" min 0 max 100 step 1'],
    ),
    "made slider": (
        "<div role=slider aria-label=Zoom aria-valuenow=3 aria-valuemin=1 aria-valuemax=5 aria-valuetext='3 times'>o</div>",
        ['slider "Zoom" value "3 times" min 1 max 5'],
    ),
    "colour": ("<input type=color aria-label=Paint value='#ff0000'>", ['colour "Paint" value "#ff0000"']),
    "file": ("<input type=file aria-label=CV accept=.pdf multiple>", ['file "CV" accepts ".pdf" multiple']),
    "date": (
        "<input type=date aria-label=Day value=2026-01-02 min=2026-01-01>",
        ['date "Day" value "2026-01-02" min 2026-01-01'],
    ),
    "time": ("<input type=time aria-label=At value=10:30>", ['time "At" value "10:30"']),
    "moment": (
        "<input type=datetime-local aria-label=When value=2026-01-02T10:30>",
        ['datetime "When" value "2026-01-02T10:30"'],
    ),
    "month": ("<input type=month aria-label=M value=2026-01>", ['month "M" value "2026-01"']),
    "week": ("<input type=week aria-label=W value=2026-W05>", ['week "W" value "2026-W05"']),
    "number": ("<input type=number aria-label=Count value=3 max=9>", ['spinbutton "Count" value "3" max 9']),
    # What a person reads on a control that is called something else.
    "combobox": (
        "<div role=combobox aria-label=Fruit tabindex=0 onclick=1>Apple</div>",
        ['combobox "Fruit" value "Apple"'],
    ),
    "combobox without a name": ("<div role=combobox tabindex=0 onclick=1>Pear</div>", ['combobox value "Pear"']),
    "button combobox": (
        "<button role=combobox aria-label=Status aria-expanded=false>Open</button>",
        ['combobox "Status" value "Open" collapsed'],
    ),
    "combobox around a field": (
        "<div role=combobox aria-label=City style='padding:4px;width:130px'><input aria-label=Find value=Rome></div>",
        ['combobox "City" value "Rome"', 'textbox "Find" value "Rome"'],
    ),
    "named link": ("<a href=# aria-label='Read about lamps'>Order 42</a>", ['"Read about lamps" showing "Order 42"']),
    "named button": ("<button aria-label=Close>\u00d7</button>", ['button "Close" showing "\u00d7"']),
    "name with its words": (
        "<button aria-label='Add lamp to basket'>Add lamp</button>",
        ['button "Add lamp to basket"'],
    ),
    "placeholder": ("<label>Born <input placeholder=MM/YYYY></label>", ['textbox "Born" showing "MM/YYYY"']),
}
"""Cells, and how each of their elements is written."""

WORDS = {
    "progress": ("<progress aria-label=Upload value=40 max=100></progress>", 'progress "Upload" 40 of 100'),
    "progress without end": ("<progress aria-label=Wait></progress>", 'progress "Wait" under way'),
    "meter": ("<label>Disk <meter value=.6></meter></label>", 'meter "Disk" .6 of 1'),
    "made progress": (
        "<div role=progressbar aria-label=Steps aria-valuenow=2 aria-valuemax=5>&nbsp;</div>",
        'progress "Steps" 2 of 5',
    ),
    "card": (
        "<div aria-label=Card onclick=1 style='max-width:none;width:600px'><p style='margin:0'>"
        + "long words " * 8
        + "</p><p style='margin:0'>Card price 12</p></div>",
        "Card price 12",
    ),
}
"""Cells, and what must be in the text of the page."""

CELLS = {**PHANTOMS, **{name: html for name, (html, _) in (LISTED | WORDS).items()}}

PAGE = (
    "<style>body { margin: 0 } .cell { display: inline-block; vertical-align: top; width: 156px; height: 42px; overflow: hidden; font-size: 12px }"
    ".cell > * { max-width: 150px }</style>"
    + "".join(f'<div class=cell data-cell="{name}">{html}</div>' for name, html in CELLS.items())
    + "<script>mixed.indeterminate = true; sent.requestSubmit(); document.activeElement.blur();"
    "design.contentDocument.body.textContent = 'Dear'; design.contentDocument.designMode = 'on'</script>"
)


def _pie(middle: tuple[int, int], radius: int, *degrees: int) -> str:
    """Slices between these angles, each a path in the rectangle of others."""
    ends = [
        (middle[0] + radius * math.cos(math.radians(at)), middle[1] + radius * math.sin(math.radians(at)))
        for at in degrees
    ]
    return "".join(
        f"<path id=slice{after} d='M{middle[0]} {middle[1]}L{x:.2f} {y:.2f}A{radius} {radius} 0 {int(after - before > 180)} 1 {to_x:.2f} {to_y:.2f}Z'/>"
        for (before, after), ((x, y), (to_x, to_y)) in zip(pairwise(degrees), pairwise(ends), strict=True)
    )


NAMED = (
    "<label title=A><input></label><label for=b title=B></label><input id=b><label title=C>Text <input></label>",
    "<label title=D><input placeholder=hint></label><label title=E><input title=own></label><label title=F><input aria-label=Own></label>",
    "<label title=G><img alt=Picture src=x><input></label><label title=H><input type=checkbox></label><label title=I><textarea></textarea></label>",
    "<label title=J><select><option>a</select></label><label title=K><input type=range></label><label title=L><button></button></label>",
    "<label aria-label=M title=m><input name=n></label>words <label title=N><input></label><label title=O></label><input aria-label=alone>",
    "<table><tr><td><label for=p>Far</label><td>x<td><select id=p><option>a</select></table><label title=Q><input aria-labelledby=r></label><b id=r>Other</b>",
)
"""Controls that a label's title names, and some that something else does."""


async def test_a_label_names_its_control_as_in_the_accessibility_tree(on_page: Any) -> None:
    async def names(page: Page, cdp: CDPSession) -> tuple[list[str], list[str]]:
        reading = await Observer().observe(cdp, viewport=(1280, 720), instruction="")
        tree = (await cdp.send("Accessibility.getFullAXTree"))["nodes"]
        named = {node.get("backendDOMNodeId"): node["name"]["value"].strip() for node in tree if not node["ignored"]}
        elements = reading.observation.elements
        return [each.text for each in elements], [
            named[reading.handles[each.index].backend_node_id] for each in elements
        ]

    for html in NAMED:
        read, wanted = await on_page(html, names)
        assert read == wanted, html


SHAPES = f"""<style>svg {{ position: absolute; width: 200px; height: 160px }} .line {{ fill: none; stroke: red }}</style>
<svg style='left:0;top:0'>{_pie((80, 80), 70, 0, 200, 212, 300, 308, 360)}</svg>
<svg style='left:200px;top:0' viewBox='0 0 100 80'><g transform='translate(50 40) scale(.5)'>{_pie((0, 0), 70, 10, 190, 205, 370)}</g></svg>
<svg style='left:400px;top:0'><path id=curve class=line d='M10 80C40 10 65 10 95 80S150 150 180 80'/><path id=chart class=line
 stroke-width=4 d='m10 150 40-20 40 15 40-60h30v55'/><polyline id=steps class=line stroke-width=3 points='10,10 60,40 110,10' /></svg>
<svg style='left:600px;top:0'><circle id=inner class=line cx=80 cy=80 r=40 stroke-width=8 /><circle id=outer class=line cx=80 cy=80 r=60 stroke-width=8 />
<rect id=frame class=line x=4 y=4 width=152 height=152 stroke-width=5 /><circle id=whole fill=none pointer-events=all cx=80 cy=80 r=20 /></svg>
<svg style='left:800px;top:0'><path id=unseen fill=none d='M0 0H99V99Z'/><path id=mute pointer-events=none d='M0 0H99V99Z'/>
<g transform='translate(90 20) rotate(40)'><path id=turned class=line stroke-width=6 d='M0 0H80V30H0'/></g>
<path id=arc class=line stroke-width=5 d='M20 140a60 40 20 01120-10'/></svg>
<button id=below style='position:absolute;left:40px;top:220px;width:60px;height:40px'>b</button>
<svg style='left:0;top:200px;pointer-events:none'><path id=edge class=line pointer-events=visibleStroke d='M10 150Q0 10 190 10'/></svg>
<script>const hits = []; addEventListener('click', (event) => hits.push(event.target.id));
for (const shape of document.querySelectorAll('path, circle, rect, polyline')) shape.addEventListener('click', () => 0);</script>"""
"""Drawings whose shapes lie in the rectangles of others; each that a person can click has an id."""


async def test_the_point_of_each_shape_reaches_that_shape(on_page: Any) -> None:
    async def click(page: Page, cdp: CDPSession) -> tuple[list[str], list[str], list[str]]:
        reading = await Observer().observe(cdp, viewport=(1280, 720), instruction="")
        dom = reading.kinds.dom
        listed = [(handle, dom.backend.index(handle.backend_node_id)) for handle in reading.handles.values()]
        for handle, _ in listed:
            assert handle.point is not None
            await page.mouse.click(*handle.point)
        names = await page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
        return [dom.attribute(node, "id") or "" for _, node in listed], await page.evaluate("hits"), names

    listed, hits, names = await on_page(SHAPES, click)
    assert hits == listed
    assert [name for name in names if name not in listed] == ["unseen", "mute"]


@pytest.fixture(scope="module")
def cache() -> dict[str, Reading]:
    return {}


@pytest.fixture
async def seen(anyio_backend: str, on_page: Any, cache: dict[str, Reading]) -> Reading:
    """One look at the page with all the cells."""

    async def look(page: Page, cdp: CDPSession) -> Reading:
        return await Observer().observe(cdp, viewport=(1280, 720), instruction="")

    if not cache:
        cache[""] = await on_page(PAGE, look)
    return cache[""]


def cell_of(reading: Reading, number: int) -> str:
    dom = reading.kinds.dom
    node = dom.backend.index(reading.handles[number].backend_node_id)
    while (name := dom.attribute(node, "data-cell")) is None:
        node = dom.parent[node]
    return name


def written(reading: Reading) -> dict[str, list[str]]:
    """How the elements of each cell are written in the text, without their numbers."""
    found: dict[str, list[str]] = {}
    numbers = [element.index for element in reading.observation.elements]
    places = [reading.observation.text.index(f"[{number}] ") for number in numbers]
    for number, at in zip(numbers, places, strict=True):
        line = re.split(r"\n| (?=\[\d+\] )", reading.observation.text[at:], maxsplit=1)[0]
        found.setdefault(cell_of(reading, number), []).append(line.partition("] ")[2])
    return found


def test_what_nobody_sees_is_neither_listed_nor_in_the_text(seen: Reading) -> None:
    assert {cell: lines for cell, lines in written(seen).items() if cell in PHANTOMS} == {}
    assert "ghost" not in seen.observation.text
    hidden = seen.observation.hidden
    assert hidden.above == hidden.below == hidden.covered == 0, "nor counted as if a scroll could bring it"


def test_controls_are_written_with_what_they_are_and_their_state(seen: Reading) -> None:
    lines = written(seen)
    assert not seen.observation.hidden.over_limit
    wrong = {
        cell: got
        for cell, (_, wanted) in LISTED.items()
        for got in (lines.get(cell, []),)
        if len(got) != len(wanted) or not all(map(str.startswith, got, wanted))
    }
    assert wrong == {}


def test_what_is_no_control_but_tells_something_is_in_the_text(seen: Reading) -> None:
    assert [words for _, words in WORDS.values() if words not in seen.observation.text] == []


def test_no_point_of_an_element_is_beside_it(seen: Reading) -> None:
    for element in seen.observation.elements:
        left, top, width, height = element.box
        point = seen.handles[element.index].point
        assert point is not None and left <= point[0] <= left + width and top <= point[1] <= top + height

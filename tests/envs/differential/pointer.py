"""Rows of the mouse and the keyboard: clicks, drags, menus, dialogs, shortcuts."""

from __future__ import annotations

from tests.envs.differential.row import HEARD, row

ROWS = (
    # The pointer.
    row("click", HEARD + "<button data-t=a onclick=\"say('click')\">A</button>", "click|a"),
    row(
        "click after a delay",
        "<button data-t=a onclick=\"setTimeout(() => say('done'), 200)\">A</button>",
        "click|a",
    ),
    row(
        "order of a click's events",
        "<button data-t=a>A</button><script>for (const kind of ['pointerover', 'pointerdown', 'mousedown', 'focus', 'pointerup', 'mouseup', 'click'])"
        "$('a').addEventListener(kind, () => say(kind))</script>",
        "click|a",
    ),
    row(
        "double click",
        "<p data-t=a role=button tabindex=0 onclick=\"say('click ' + event.detail)\" ondblclick=\"say('double')\">word</p>",
        "double|a",
    ),
    row(
        "triple click selects the line",
        "<p data-t=a role=button tabindex=0>some words here</p>",
        "triple|a",
    ),
    row(
        "context menu",
        "<div data-t=a role=button tabindex=0 oncontextmenu=\"say('menu ' + event.button); menu.hidden = false; return false\">area</div>"
        "<div id=menu hidden><button data-t=del onclick=\"say('delete')\">Delete</button></div>",
        "right|a",
        "click|del",
    ),
    row(
        "menu on hover",
        "<style>ul{display:none}nav:hover ul{display:block}</style><nav data-t=nav style='width:200px'><a href='#x' data-t=m>Menu</a><ul>"
        "<li><a data-t=item href='#item' onclick=\"say('item')\">Item</a></ul></nav>",
        "hover|m",
        "click|item",
    ),
    row(
        "tooltip after a delay",
        "<button data-t=a onmouseenter=\"this.t = setTimeout(() => out.innerText = 'tip', 150)\""
        ' onmouseleave="clearTimeout(this.t)">A</button><p id=out></p>',
        "hover|a",
    ),
    row(
        "long press needs its time",
        "<button data-t=a onpointerdown=\"this.t = setTimeout(() => say('long'), 500)\" onpointerup=\"clearTimeout(this.t); say('up')\">A</button>",
        "click|a",
    ),
    row(
        "HTML drag and drop",
        "<div data-t=a draggable=true role=button ondragstart=\"event.dataTransfer.setData('text', 'box'); say('start')\" ondragend=\"say('end')\""
        " style='width:80px;height:40px;background:tan'>box</div><div data-t=b role=button ondragover=\"event.preventDefault()\""
        " ondrop=\"event.preventDefault(); say('drop ' + event.dataTransfer.getData('text'))\""
        " style='margin-top:60px;width:120px;height:80px;background:silver'>here</div>",
        "drag|a|b",
    ),
    row(
        "drag by pointer events",
        "<div data-t=a role=button style='position:absolute;left:20px;top:20px;width:40px;height:40px;background:tan'>k</div>"
        "<div data-t=b role=button style='position:absolute;left:300px;top:200px;width:80px;height:80px;background:silver'>to</div><script>"
        "let held; $('a').onpointerdown = e => { held = 1; $('a').setPointerCapture(e.pointerId) };"
        "$('a').onpointermove = e => { if (held) $('a').style.left = e.clientX - 20 + 'px' };"
        "$('a').onpointerup = e => { held = 0; say('left at ' + $('a').style.left) }</script>",
        "drag|a|b",
    ),
    row(
        "sortable list",
        "<ul data-t=list style='width:200px;list-style:none'></ul><script>for (const name of ['one', 'two', 'three']) {"
        "const item = document.createElement('li'); item.innerText = name; item.dataset.t = name; item.draggable = "
        "true; item.setAttribute('role', 'button');"
        "item.style.cssText = 'height:30px;border:1px solid'; $('list').append(item) } let from;"
        "$('list').ondragstart = e => from = e.target; $('list').ondragover = e => { e.preventDefault(); };"
        "$('list').ondrop = e => { e.target.after(from); out.innerText = $('list').innerText }</script><p id=out></p>",
        "drag|one|three",
    ),
    row(
        "slider of divs",
        "<div data-t=track role=button style='position:relative;width:300px;height:20px;background:silver'></div><script>"
        "$('track').onpointerdown = e => say('at ' + Math.round(e.offsetX / 30))</script>",
        "click|track",
    ),
    row(
        "wheel zoom",
        "<div data-t=a role=button style='width:300px;height:200px;overflow:hidden;background:silver'>map</div><script>"
        "$('a').addEventListener('wheel', e => { e.preventDefault(); say(e.deltaY > 0 ? 'out' : 'in') }, {passive: false})</script>",
        "scroll|a",
    ),
    # What opens and closes.
    row(
        "dialog element",
        '<button data-t=open onclick="d.showModal()">Open</button><dialog id=d onclose="say(\'closed \' + this.returnValue)"><form method=dialog>'
        "<button data-t=ok value=ok>OK</button></form></dialog>",
        "click|open",
        "click|ok",
    ),
    row(
        "dialog closed by Escape",
        '<button data-t=open onclick="d.showModal()">Open</button><dialog id=d onclose="say(\'closed\')">hi</dialog>',
        "click|open",
        "press|Escape",
    ),
    row(
        "popover",
        '<button data-t=open popovertarget=p>Open</button><div popover id=p ontoggle="say(event.newState)"><button data-t=in>In</button></div>',
        "click|open",
        "click|in",
        "press|Escape",
    ),
    row(
        "details",
        "<details data-t=d ontoggle=\"say('open ' + this.open)\"><summary data-t=s>More</summary>text</details>",
        "click|s",
    ),
    row("alert", "<button data-t=a onclick=\"alert('x'); say('after')\">A</button>", "click|a", "acknowledge"),
    row(
        "confirm refused",
        "<button data-t=a onclick=\"say('answer ' + confirm('sure?'))\">A</button>",
        "click|a",
        "dismiss",
    ),
    row("prompt", "<button data-t=a onclick=\"say('answer ' + prompt('name?'))\">A</button>", "click|a", "accept|Ann"),
    # Keys.
    row(
        "keyboard shortcut",
        "<script>addEventListener('keydown', e => { if (e.ctrlKey && e.key === 'k') { e.preventDefault(); say('palette') } })</script><p>text</p>",
        "press|Control+k",
    ),
    row(
        "focus order with Tab",
        "<input data-t=a><input data-t=b tabindex=-1><button data-t=c>C</button><a data-t=d href='#'>D</a>",
        "click|a",
        "press|Tab",
        "press|Tab",
    ),
    row(
        "arrow keys in a menu",
        "<div role=menu><p data-t=m role=menuitem tabindex=0 onkeydown=\"if (event.key === 'ArrowDown') { "
        "this.nextElementSibling.focus(); say('down') }\">"
        "One</p><p data-t=n role=menuitem tabindex=-1 onkeydown=\"if (event.key === 'Enter') say('chosen')\">Two</p></div>",
        "click|m",
        "press|ArrowDown",
        "press|Enter",
    ),
    row(
        "select all and delete",
        "<input data-t=a value='some words'>",
        "click|a",
        "press|Control+a",
        "press|Delete",
    ),
)

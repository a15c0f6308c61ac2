"""Small pages and what is done on them. A step is a verb, the ``data-t`` of its target and what else it needs (`Step`)."""

from __future__ import annotations

from dataclasses import dataclass

Step = tuple[str, ...]
"""``click NAME``, ``double NAME``, ``triple NAME``, ``right NAME``, ``hover NAME``, ``type NAME TEXT`` (into an emptied field), ``press KEY``,
``drag FROM TO``, ``select NAME LABEL…``, ``check NAME``, ``uncheck NAME``, ``scroll NAME``, ``upload NAME``, ``accept [TEXT]`` and
``dismiss`` (the dialog that is open), ``acknowledge`` (an alert, which ours does by itself), ``back``, ``forward``,
``wait SECONDS``."""


@dataclass(frozen=True)
class Row:
    """A page and what is done there."""

    name: str
    body: str
    steps: tuple[Step, ...]
    tolerance: int = 0
    """By how much numbers may differ: counts of what time makes."""
    error: str = ""
    """Of ours, where the page is right and the policy is to know more."""


def row(name: str, body: str, *steps: str, tolerance: int = 0, error: str = "") -> Row:
    """``steps`` are written with `|` between their parts."""
    return Row(name, body, tuple(tuple(step.split("|")) for step in steps), tolerance, error)


HEARD = "<script>for (const kind of ['input', 'change', 'focusout']) addEventListener(kind, e => say(kind + ' ' + e.target.dataset.t), true)</script>"
"""Names of a form's events; of ``input`` the last says what there was."""

ROWS = (
    # Forms and fields.
    row(
        "text fields and submit",
        "<form onsubmit=\"say('sent ' + new URLSearchParams(new FormData(this))); return false\"><input data-t=a name=a><input data-t=b name=b>"
        "<button data-t=go>Send</button></form>",
        "type|a|Anna Lee",
        "type|b|b@c.de",
        "click|go",
    ),
    row(
        "Enter sends a form",
        "<form onsubmit=\"say('sent ' + q.value); return false\"><input data-t=q name=q id=q></form>",
        "type|q|cats",
        "press|Enter",
    ),
    row(
        "required field keeps the form",
        "<form onsubmit=\"say('sent'); return false\"><input data-t=a required><button data-t=go>Send</button></form>",
        "click|go",
        "type|a|x",
        "click|go",
    ),
    row("change comes when the field is left", HEARD + "<input data-t=a><input data-t=b>", "type|a|x", "click|b"),
    row("retyped field", "<input data-t=a value=old>", "type|a|new words"),
    row("textarea", "<textarea data-t=a></textarea>", "type|a|one two", "press|Enter", "press|x"),
    row("date", "<input data-t=a type=date>", "type|a|2024-05-17"),
    row("date with bounds", "<input data-t=a type=date min=2024-01-01 max=2024-12-31>", "type|a|2024-05-17"),
    row("time", "<input data-t=a type=time>", "type|a|21:05"),
    row("month", "<input data-t=a type=month>", "type|a|2031-11"),
    row("week", "<input data-t=a type=week>", "type|a|2031-W07"),
    row("date and time", "<input data-t=a type=datetime-local>", "type|a|2024-12-01T12:30"),
    row("number", "<input data-t=a type=number step=any>", "type|a|12.5"),
    row("number with arrows", "<input data-t=a type=number value=5>", "click|a", "press|ArrowUp", "press|ArrowUp"),
    row(
        "range with arrows",
        '<input data-t=a type=range max=10 value=5 oninput="say(this.value)">',
        "click|a",
        "press|ArrowRight",
    ),
    row("maxlength", "<input data-t=a maxlength=5>", "type|a|123456789", error="takes 5 characters"),
    row(
        "formatter while typing",
        "<input data-t=a oninput=\"this.value = this.value.replace(/\\D/g, '').replace(/(\\d{4})(?=\\d)/g, '$1 ')\">",
        "type|a|4242424242424242",
    ),
    row(
        "upper case while typing",
        '<input data-t=a oninput="this.value = this.value.toUpperCase()">',
        "type|a|abc def",
    ),
    row(
        "keys refused by keydown",
        '<input data-t=a onkeydown="if (/[0-9]/.test(event.key)) event.preventDefault()">',
        "type|a|a1b2c3",
    ),
    row(
        "one-time code in boxes",
        "<div id=boxes></div><script>for (let i = 0; i < 4; i++) { const box = document.createElement('input'); box.maxLength = 1;"
        "box.dataset.t = 'c' + i; box.oninput = () => setTimeout(() => box.nextSibling?.focus(), 20); boxes.append(box) }</script>",
        "type|c0|4812",
    ),
    row(
        "chips",
        "<span id=out></span><input data-t=a onkeydown=\"if (event.key === 'Enter' && this.value) {"
        "out.innerHTML += '<i>' + this.value + '</i> '; this.value = '' }\">",
        "type|a|red",
        "press|Enter",
        "type|a|blue",
        "press|Enter",
    ),
    row(
        "autocomplete with a debounce",
        "<input data-t=a oninput=\"clearTimeout(this.t); this.t = setTimeout(() => { say('asked ' + this.value); hits.innerHTML ="
        "'<button data-t=hit>' + this.value + ' city</button>' }, 150)\"><div id=hits onclick=\"$('a').value = event.target.innerText\"></div>",
        "type|a|berl",
        "click|hit",
    ),
    row(
        "suggestions fetched from a server",
        "<input data-t=a oninput=\"fetch('items.json').then(r => r.json()).then(all => out.innerText ="
        'all.filter(x => x.startsWith(this.value)).join())"><p id=out></p>',
        "type|a|ap",
    ),
    row(
        "contenteditable",
        "<div data-t=a contenteditable role=textbox style='min-height:40px'>old</div>",
        "type|a|new text",
    ),
    row("checkbox by its label", "<label data-t=l><input type=checkbox data-t=a> Yes</label>", "click|l"),
    row(
        "drawn checkbox",
        "<style>input{position:absolute;opacity:0}i{display:inline-block;width:20px;height:20px;border:1px solid}input:checked+i{background:red}"
        "</style><label data-t=l><input type=checkbox data-t=a><i></i> Red</label>",
        "click|l",
    ),
    row(
        "check and uncheck",
        "<input type=checkbox data-t=a><input type=checkbox data-t=b checked>",
        "check|a",
        "uncheck|b",
    ),
    row(
        "radio buttons",
        '<input type=radio name=r data-t=a value=1><input type=radio name=r data-t=b value=2 onchange="say(this.value)">',
        "check|a",
        "check|b",
    ),
    row(
        "select",
        "<select data-t=a onchange=\"say('chosen ' + this.value)\"><option value=1>One<option value=2>Two<option value=3>Three</select>",
        "select|a|Two",
    ),
    row(
        "select with groups",
        "<select data-t=a><optgroup label=A><option>one<option>two</optgroup><optgroup label=B><option>three</optgroup></select>",
        "select|a|three",
    ),
    row(
        "select of several",
        '<select data-t=a multiple onchange="out.innerText = [...this.selectedOptions].map(o => o.text)"><option>a<option>b<option>c</select>'
        "<p id=out></p>",
        "select|a|a|c",
    ),
    row("file", '<input type=file data-t=a onchange="say(this.files[0].name)">', "upload|a"),
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
    # Trees.
    row(
        "shadow DOM",
        "<x-field></x-field><script>customElements.define('x-field', class extends HTMLElement { connectedCallback() {"
        "const root = this.attachShadow({mode: 'open'}); root.innerHTML = '<input data-t=a><button data-t=b>B</button>';"
        "root.querySelector('button').onclick = () => say('in shadow ' + root.querySelector('input').value) } })</script>",
        "type|a|deep",
        "click|b",
    ),
    row(
        "iframe",
        "<iframe style='width:400px;height:120px' srcdoc=\"<input data-t=a><button data-t=b "
        "onclick='parent.say(document.querySelector(`input`).value)'>"
        'B</button>"></iframe>',
        "type|a|inside",
        "click|b",
    ),
    row(
        "infinite scroll",
        "<div id=list></div><div id=end>…</div><script>let n = 0; const more = () => { for (let i = 0; i < 20; i++) { "
        "const p = document.createElement('p');"
        "p.innerText = 'item ' + ++n; list.append(p) } out.innerText = n }; const out = document.createElement('b'); "
        "document.body.prepend(out); more();"
        "new IntersectionObserver(all => { if (all[0].isIntersecting && n < 60) setTimeout(more, 50) }, {rootMargin: '50px'}).observe(end)</script>",
        "scroll|",
        "scroll|",
        "scroll|",
        "scroll|",
        "scroll|",
        tolerance=20,
    ),
    row(
        "lazy content",
        "<div style='height:1500px'>top</div><div data-t=z>wait</div><script>new IntersectionObserver((all, o) => { if (all[0].isIntersecting) {"
        "o.disconnect(); setTimeout(() => say('loaded'), 100) } }).observe($('z'))</script>",
        "scroll|",
        "scroll|",
        "scroll|",
    ),
    row(
        "mutation observer",
        "<button data-t=a onclick=\"list.append(document.createElement('i'))\">A</button><div id=list></div><script>"
        "new MutationObserver(all => say('changed ' + all.length)).observe(list, {childList: true})</script>",
        "click|a",
        "click|a",
    ),
    # Routes.
    row(
        "pushState and back",
        "<button data-t=a onclick=\"history.pushState({}, '', '?view=2'); out.innerText = 'two'\">Go</button><p id=out>one</p><script>"
        "onpopstate = () => { out.innerText = 'one'; say('pop') }</script>",
        "click|a",
        "back",
    ),
    row(
        "hash link",
        "<a data-t=a href='#part'>Part</a><script>onhashchange = () => say(location.hash)</script>",
        "click|a",
    ),
    row("link, back and forward", "<a data-t=a href='other.html'>Other</a>", "click|a", "back", "forward"),
    row(
        "form that navigates",
        "<form action='other.html'><input data-t=a name=a><button data-t=go>Go</button></form>",
        "type|a|x y",
        "click|go",
    ),
    row("redirect by script", "<a data-t=a href='redirect.html'>Go</a>", "click|a"),
    row(
        "local storage",
        "<input data-t=a><button data-t=b onclick=\"localStorage.kept = $('a').value; location.reload()\">Save</button><p id=out></p><script>"
        "out.innerText = localStorage.kept || 'none'</script>",
        "type|a|mine",
        "click|b",
    ),
    row(
        "view transition",
        "<button data-t=a onclick=\"document.startViewTransition(() => { out.innerText = 'new' }).finished.then(() => say('finished'))\">A</button>"
        "<p id=out>old</p>",
        "click|a",
    ),
    # Time.
    row(
        "transition",
        "<style>div{width:50px;height:20px;background:tan;transition:width .2s}.on{width:200px}</style><div id=d></div>"
        "<button data-t=a onclick=\"d.className = 'on'\">A</button><script>d.ontransitionend = e => say('end ' + e.propertyName)</script>",
        "click|a",
    ),
    row(
        "animation",
        "<style>@keyframes k{to{opacity:.5}}.on{animation:k .2s}</style><div id=d>x</div><button data-t=a onclick=\"d.className = 'on'\">A</button>"
        "<script>d.onanimationend = () => say('end')</script>",
        "click|a",
    ),
    row(
        "frames on a canvas",
        "<canvas id=c width=100 height=40></canvas><button data-t=a onclick='go()'>A</button><script>function go() { let n = 0; const draw = () => {"
        "c.getContext('2d').fillRect(n * 5, 0, 4, 40); if (++n < 10) requestAnimationFrame(draw); else say('drawn ' + "
        "n) }; requestAnimationFrame(draw) }"
        "</script>",
        "click|a",
    ),
    row(
        "busy loops",
        '<button data-t=a onclick="let n = 0; const work = () => { const end = performance.now() + 20; while (performance.now() < end);'
        "if (++n < 4) setTimeout(work, 10); else say('worked ' + n) }; work()\">A</button>",
        "click|a",
    ),
    row(
        "interval",
        '<button data-t=a onclick="this.t = setInterval(() => out.innerText = ++this.n || (this.n = 1), 100)">A</button><p id=out>0</p>',
        "click|a",
        "wait|1",
        tolerance=12,
    ),
    row(
        "countdown ends",
        '<button data-t=a onclick="let n = 3; const t = setInterval(() => { out.innerText = --n; if (!n) { '
        "clearInterval(t); say('over') } }, 100)\">A"
        "</button><p id=out>3</p>",
        "click|a",
        "wait|1",
    ),
    row(
        "throttled scroll handler",
        "<div style='height:3000px'>long</div><script>let t; onscroll = () => { if (!t) t = setTimeout(() => { t = 0; "
        "if (!log.length) say('moved') }, 100) }"
        "</script>",
        "scroll|",
    ),
    row(
        "promise chain over fetches",
        "<button data-t=a onclick=\"fetch('items.json').then(r => r.json()).then(x => new Promise(done => setTimeout(() => done(x), 60)))"
        ".then(x => fetch('items.json')).then(r => say('status ' + r.status))\">A</button>",
        "click|a",
    ),
)

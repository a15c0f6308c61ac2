"""Rows that combine: widgets of several fields, keys with the mouse, what opens late, frames in
frames."""

from __future__ import annotations

from tests.envs.differential.row import HEARD, row

ROWS = (
    row("textarea with line breaks", HEARD + "<textarea data-t=a rows=4></textarea>", "type|a|one\ntwo\n\nfour"),
    row(
        "contenteditable with Enter",
        "<div data-t=a contenteditable role=textbox style='min-height:40px'></div>",
        "type|a|one",
        "press|Enter",
        "press|x",
    ),
    row(
        "form reset",
        "<form><input data-t=a value=old><button type=reset data-t=r>Reset</button></form>",
        "type|a|new",
        "click|r",
    ),
    row("field with a list", "<input data-t=a list=l><datalist id=l><option>alpha<option>beta</datalist>", "type|a|al"),
    row("label around a select", "<label>Size <select data-t=a><option>S<option>M</select></label>", "select|a|M"),
    row("undo", "<input data-t=a>", "type|a|abc", "press|Control+z"),
    row("space on a checkbox", "<input data-t=a><input type=checkbox data-t=b>", "click|a", "press|Tab", "press|Space"),
    row(
        "Enter on a button",
        "<input data-t=a><button data-t=b onclick=\"say('go')\">B</button>",
        "click|a",
        "press|Tab",
        "press|Enter",
    ),
    row(
        "letters of a select",
        "<input data-t=i><select data-t=a><option>Ann<option>Bob<option>Cid</select>",
        "click|i",
        "press|Tab",
        "press|b",
    ),
    row(
        "validation when the field is left",
        "<input data-t=a onblur=\"setTimeout(() => out.innerText = /@/.test(this.value) ? 'fine' : 'wrong', 80)\"><input data-t=b><p id=out></p>",
        "type|a|me",
        "click|b",
    ),
    row(
        "field that is mended a moment after each key",
        '<input data-t=a oninput="setTimeout(() => this.value = this.value.toUpperCase(), 5)">',
        "type|a|abcd",
    ),
    row(
        "keys come one by one",
        "<input data-t=a><script>let last = -1000; $('a').onkeydown = e => { if (e.key.length > 1 || e.ctrlKey) return;"
        "if (e.timeStamp - last < 5) say('too fast ' + e.key); last = e.timeStamp }</script>",
        "type|a|abcdef",
    ),
    row(
        "drop zone that opens while dragging",
        "<div data-t=a draggable=true role=button style='width:80px;height:40px;background:tan' "
        "ondragstart=\"event.dataTransfer.setData('text', 'x');"
        "setTimeout(() => $('b').dataset.open = 1, 60)\">box</div><div data-t=b role=button "
        "style='margin-top:60px;width:200px;height:80px;background:silver'"
        ' ondragover="if (this.dataset.open) event.preventDefault()" ondrop="event.preventDefault(); say(\'dropped\')">zone</div>',
        "drag|a|b",
    ),
    row(
        "submenu after a hover's delay",
        '<button data-t=a onmouseenter="setTimeout(() => sub.hidden = false, 120)">Menu</button><div id=sub hidden>'
        "<button data-t=b onclick=\"say('chosen')\">Sub</button></div>",
        "hover|a",
        "click|b",
    ),
    row(
        "button that needs a hover's delay before the click",
        '<button data-t=a onmouseenter="setTimeout(() => this.armed = 1, 20)" onmousedown="say(\'down\')" onclick="say(\'click\')">A</button>',
        "click|a",
    ),
    row(
        "cell that is edited by a double click",
        "<table border=1><tr><td data-t=c role=button tabindex=0 ondblclick=\"this.innerHTML = '<input data-t=e>'; "
        'this.firstChild.focus()">12</td></tr></table>',
        "double|c",
        "type|e|34",
        "press|Enter",
    ),
    row(
        "combobox of roles",
        "<input data-t=a role=combobox onfocus='l.hidden = false'><ul id=l role=listbox hidden><li data-t=x "
        'role=option onmousedown="event.preventDefault();'
        "$('a').value = 'Oslo'; l.hidden = true; say('picked')\">Oslo</li></ul>",
        "click|a",
        "click|x",
    ),
    row(
        "frame in a frame",
        "<iframe style='width:500px;height:200px' srcdoc=\"<iframe style='width:400px;height:100px' srcdoc='<input "
        "data-t=a>'></iframe>\"></iframe>",
        "type|a|deep",
    ),
    row(
        "sticky header above a button",
        "<header style='position:sticky;top:0;height:60px;background:silver'>head</header><div style='height:600px'>text</div>"
        "<button data-t=b onclick=\"say('hit')\">B</button><div style='height:2000px'>text</div>",
        "scroll|",
        "click|b",
    ),
    row(
        "button that moves once a picture has loaded",
        "<div id=ad></div><button data-t=b onclick=\"say('hit')\">B</button><script>setTimeout(() => ad.style.height = '100px', 50)</script>",
        "click|b",
    ),
    row(
        "idle callback",
        "<button data-t=a onclick=\"requestIdleCallback(() => say('idle'))\">A</button>",
        "click|a",
    ),
    row(
        "resize observer",
        "<textarea data-t=t></textarea><button data-t=a onclick=\"$('t').style.height = '200px'\">A</button><script>let first = true;"
        "new ResizeObserver(() => { if (!first) say('resized'); first = false }).observe($('t'))</script>",
        "click|a",
    ),
    row(
        "worker that answers",
        "<button data-t=a onclick='go()'>A</button><script>const worker = new Worker(URL.createObjectURL(new Blob([`onmessage = e => {"
        "const end = Date.now() + 30; while (Date.now() < end); postMessage(e.data * 2) }`]))); worker.onmessage = e => say('got ' + e.data);"
        "function go() { worker.postMessage(21) }</script>",
        "click|a",
    ),
    row(
        "colour by its field",
        "<input data-t=a type=color value='#000000' onchange=\"say(this.value)\">",
        "type|a|#ff8800",
    ),
    row(
        "email field that checks itself",
        "<form onsubmit=\"say('sent'); return false\"><input data-t=a type=email><button data-t=go>Go</button></form>",
        "type|a|nobody",
        "click|go",
        "type|a|me@x.org",
        "click|go",
    ),
    row(
        "button disabled until the fields are filled",
        '<input data-t=a oninput="$(\'b\').disabled = this.value.length < 3"><button data-t=b disabled onclick="this.disabled = true;'
        "setTimeout(() => say('saved'), 150)\">Save</button>",
        "type|a|abcd",
        "click|b",
    ),
    row(
        "pages of a wizard",
        "<div id=w></div><script>const show = n => { w.innerHTML = n < 3 ? `<input data-t=f${n}><button data-t=n${n}>Next</button>` : 'end';"
        "if (n < 3) $('n' + n).onclick = () => { say($('f' + n).value); setTimeout(() => show(n + 1), 100) } }; show(1)</script>",
        "type|f1|one",
        "click|n1",
        "type|f2|two",
        "click|n2",
    ),
)

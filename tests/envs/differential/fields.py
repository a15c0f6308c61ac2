"""Rows of forms: fields of each kind, lists to choose from, text that a page changes while it is
typed."""

from __future__ import annotations

from tests.envs.differential.row import HEARD, row

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
)

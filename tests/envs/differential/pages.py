"""Rows of whole pages: trees in trees, routes, storage, and what takes time."""

from __future__ import annotations

from tests.envs.differential.row import row

ROWS = (
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

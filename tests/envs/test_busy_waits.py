"""Scripts that wait by reading the clock in a loop come to their end, and the page's time stays in
order."""

from __future__ import annotations

from typing import Any

from envs.settle import SettleReason
from envs.types import Click
from tests.builders import page_task

MILLISECONDS = "new Intl.DateTimeFormat('en', {fractionalSecondDigits: 3})"

WAITS = {
    "Date.now": "const t = Date.now(); while (Date.now() - t < 300); done(Date.now() - t >= 300)",
    "new Date": "const t = new Date().getTime() + 30; while (new Date().getTime() < t); done(true)",
    "+new Date": "const t = +new Date; while (new Date - t < 20); done(true)",
    "performance.now": "const t = performance.now(); while (performance.now() - t < 5); done(true)",
    "both": "const t = Date.now(), p = performance.now(); while (performance.now() - p < 50); done(Date.now() - t === 50)",
    "Date()": "const t = Date(); while (Date() === t); done(true)",
    "Temporal": "const t = Temporal.Now.instant(); while (Temporal.Now.instant().since(t).total('milliseconds') < 9); done(true)",
    "unique id": "const id = Date.now(); let n = id; while (n === id) n = Date.now(); done(n > id)",
    "time stamp": "const t = event.timeStamp; while (new Event('x').timeStamp - t < 10); done(true)",
    "work": "const t = Date.now(); while (Date.now() - t < 10) JSON.stringify(document.body.outerHTML); done(true)",
    "timer": "setTimeout(() => { const t = Date.now(); while (Date.now() - t < 20); done(true); }, 50)",
    "frame": "requestAnimationFrame((at) => { while (performance.now() - at < 20); done(performance.now() >= at + 20); })",
    "promise": "Promise.resolve().then(() => { const t = Date.now(); while (Date.now() - t < 20); done(true); })",
    "other frame": "const {Date: D} = document.querySelector('iframe').contentWindow; const t = D.now(); while (D.now() - t < 20); done(true)",
    "worker": "const w = new Worker(spinner); w.onmessage = () => done(true)",
    "not a wait": "const t = Date.now(); for (let i = 0; i < 900; i++) Date.now(); done(Date.now() === t)",
    "then a timer": "const t = Date.now(); while (Date.now() - t < 30); const u = Date.now(); setTimeout(() => done(Date.now() - u === 50), 50)",
    "formatted": f"const f = {MILLISECONDS}, t = f.format(); while (f.format() === t); done(f.format() === f.format(new Date()))",
    "formatted in parts": f"const f = {MILLISECONDS}, p = () => f.formatToParts()[0].value, t = p(); while (p() === t); done(p() === f.format())",
    "mark": "const t = performance.mark('a').startTime; while (performance.mark('a').startTime - t < 10); done(performance.now() - t >= 10)",
    "made mark": "const m = () => new PerformanceMark('a').startTime, t = m(); while (m() - t < 10); done(performance.now() - t >= 10)",
    "measure": "const m = () => performance.measure('m').duration, t = m(); while (m() - t < 10); done(performance.now() - t >= 10)",
    "measure since a mark": "performance.mark('b'); while (performance.measure('m', 'b').duration < 10); done(true)",
    "measure since a start": "const start = performance.now(); while (performance.measure('m', {start}).duration < 10); done(true)",
    "subclass": "class D extends Date {} const t = new D(); while (new D() - t < 5); done(new D() instanceof D && new D().constructor === D)",
}

SPINNER = """const spinner = URL.createObjectURL(new Blob([`
  const t = Date.now(), f = new Intl.DateTimeFormat("en", {fractionalSecondDigits: 3}), p = f.format(), m = performance.mark("m").startTime;
  while (Date.now() - t < 20);
  while (f.format() === p);
  while (performance.mark("m").startTime - m < 20 || performance.measure("n", "m", "m").duration > 0);
  postMessage(1);
`]));"""

DATES = """[
  new Date().constructor === Date, new Date() instanceof Date, typeof Date(), Date.length, Date.name, new Date(2020, 1).getFullYear(),
  Number.isNaN(+new Date(undefined)), structuredClone(new Date(0)) instanceof Date, Object.keys(window).includes("Date"),
  Date.UTC(2020, 0), /\\[native code\\]/.test(Date) && /\\[native code\\]/.test(Date.now), Reflect.construct(Date, []).getTime() === Date.now(),
]"""


async def test_finite_waits_end_and_the_clock_never_goes_back(pages: Any) -> None:
    buttons = "".join(f'<button onclick="{body}">{name}</button>' for name, body in WAITS.items())
    script = f"<script>const out = []; function done(right) {{ out.push(right); }} {SPINNER}</script><iframe srcdoc='x'></iframe>"
    async with pages({"waits.html": buttons + script}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/waits.html"), 1)
        tab = session.page.tab
        before = await tab.evaluate("Date.now()")
        for number, name in enumerate(WAITS, start=1):
            step = await session.step(Click(element=number))
            assert step.settled is not None and step.settled.reason in (SettleReason.RESTED, SettleReason.BACKGROUND), (
                name
            )
            assert await tab.evaluate("out.splice(0)") == [True], name
            now = await tab.evaluate("Date.now()")
            assert now > before, name
            before = now
        assert await tab.evaluate(DATES) == [
            True,
            True,
            "string",
            7,
            "Date",
            2020,
            True,
            True,
            False,
            1577836800000,
            True,
            True,
        ]


async def test_a_page_that_waits_while_it_loads_opens(pages: Any) -> None:
    spin = "<h1>Shop</h1><script>const t=Date.now();while(Date.now()-t<10);document.body.append('ready')</script>"
    async with (
        pages({"spin.html": spin, "endless.html": "<h1>Shop</h1><script>while (Date.now());</script>"}) as (
            pool,
            site,
        ),
        pool.lease(site) as session,
    ):
        await session.reset(page_task("/spin.html"), 1)
        assert await session.page.tab.evaluate("document.body.innerText") == "Shop\nready"

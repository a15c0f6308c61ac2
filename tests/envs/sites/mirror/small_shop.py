"""A site that is recorded: its answers depend on what was asked before."""

from __future__ import annotations

import hashlib

from playwright.async_api import Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

PICTURE = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89\0\0\0\rIDATx\x9cc\xf8\xff\xff?\0"
    b"\x05\xfe\x02\xfe\xa75\x81\x84\0\0\0\0IEND\xaeB`\x82"
)
PAGE = """<!doctype html><title>Shop</title><h1>Basket: {basket}</h1><img src="/lamp.png" alt="lamp">
<form method=post action=/add><label>Item <input name=item></label><input type=hidden name=time><button>Add</button></form>
<form method=post action=/up enctype=multipart/form-data><input name=note value="two words"><button>Send</button></form>
<a href="/away">Away</a><p id=stock></p>
<script>document.forms[0].time.value = Date.now()
fetch("/stock", {{method: "POST", body: JSON.stringify({{of: "lamp"}}), headers: {{"content-type": "application/json"}}}})
  .then(answer => answer.json()).then(stock => fetch(`/price?b=2&a=%c3%a9&time=${{Date.now()}}`).then(answer => answer.text())
  .then(price => {{ document.getElementById("stock").textContent = `${{stock.left}} left for ${{price}}` }}))
</script>"""


class SmallShop:
    """The application, and its answers in order: method, path, status and a hash of the body."""

    def __init__(self) -> None:
        self.answered: list[tuple[str, str, int, str]] = []
        self.basket: list[str] = []
        self._app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/lamp.png", self._picture),
                Route("/add", self._add, methods=["POST"]),
                Route("/up", self._up, methods=["POST"]),
                Route("/stock", self._stock, methods=["POST"]),
                Route("/price", self._price),
                Route("/away", self._away),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, status = b"", 0

        async def noted(message: Message) -> None:
            nonlocal body, status
            status = message.get("status", status)
            body += message.get("body", b"")
            await send(message)

        await self._app(scope, receive, noted)
        self.answered.append((scope["method"], scope["path"], status, hashlib.sha256(body).hexdigest()))

    async def _page(self, request: Request) -> Response:
        answer = HTMLResponse(PAGE.format(basket=", ".join(self.basket) or "empty"))
        answer.set_cookie("visit", "1")
        answer.set_cookie("second", "2")
        return answer

    async def _picture(self, request: Request) -> Response:
        return Response(PICTURE, media_type="image/png")

    async def _add(self, request: Request) -> Response:
        self.basket.append(str((await request.form())["item"]))
        return RedirectResponse("/", 303)

    async def _up(self, request: Request) -> Response:
        return PlainTextResponse(f"got {len(await request.body()) > 0}")

    async def _stock(self, request: Request) -> Response:
        return JSONResponse({"left": 7, "of": (await request.json())["of"]})

    async def _price(self, request: Request) -> Response:
        return PlainTextResponse("12 \N{EURO SIGN}")

    async def _away(self, request: Request) -> Response:
        return RedirectResponse(str(request.url_for("_page")), 302)


async def visit(page: Page) -> None:
    """Use all of the site."""
    await page.goto("/")
    await page.get_by_label("Item").fill("red lamp")
    await page.get_by_role("button", name="Add").click()
    await page.get_by_text("Basket: red lamp").wait_for()
    await page.get_by_text("7 left").wait_for()
    await page.get_by_role("button", name="Send").click()
    await page.get_by_text("got True").wait_for()
    await page.goto("/away")
    await page.get_by_text("7 left").wait_for()

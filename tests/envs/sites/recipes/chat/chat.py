"""A page with a WebSocket and a stream of events. Nothing imports it here: a recipe's build copies
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

PAGE = """<!doctype html><title>Chat</title><ul id=log></ul><button>Send</button><button>Leave</button><script>
const show = text => log.insertAdjacentHTML("beforeend", `<li>${text}</li>`)
const scheme = location.protocol.replace("http", "ws")
const chat = new WebSocket(`${scheme}//${location.host}/chat?room=2`, ["other", "talk"])
chat.binaryType = "arraybuffer"
chat.onmessage = event => show(event.data.byteLength ? `bytes ${[...new Uint8Array(event.data)]}` : event.data)
chat.onclose = event => show(`closed ${event.code} ${event.reason}`)
const [send, leave] = document.querySelectorAll("button")
send.onclick = () => { chat.send("hello"); chat.send(new Uint8Array([1, 2, 255])) }
leave.onclick = () => chat.send("leave")
const stray = new WebSocket(`${scheme}//other.example/chat`)
stray.onopen = () => show("stray open")
stray.onclose = () => show("stray closed")
const events = new EventSource("/events")
events.onmessage = event => show(`event ${event.data}`)
</script>"""
ENDED = list[str]()
"""Streams and sockets that a browser has left."""


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE)


async def ended(request: Request) -> Response:
    return PlainTextResponse(" ".join(sorted(ENDED)))


async def chat(socket: WebSocket) -> None:
    await socket.accept(subprotocol="talk")
    ours = "with" if "rollwright" in socket.headers.get("cookie", "") else "without"
    await socket.send_text(f"{socket.headers['host'].partition(':')[0]} {socket.url.query} {ours} our cookie")
    try:
        while (message := await socket.receive())["type"] == "websocket.receive":
            if message.get("text") == "leave":
                await socket.close(4001, "as asked")
                return
            if message.get("text") is not None:
                await socket.send_text(f"heard {message['text']}")
            else:
                await socket.send_bytes(message["bytes"][::-1])
    finally:
        ENDED.append("socket")


async def events(request: Request) -> Response:
    async def numbers() -> AsyncIterator[str]:
        try:
            for number in range(2):
                yield f"data: {number}\n\n"
            await asyncio.Event().wait()  # the stream stays open
        finally:
            ENDED.append("events")

    return StreamingResponse(numbers(), media_type="text/event-stream")


application = Starlette(
    routes=[Route("/", page), Route("/ended", ended), Route("/events", events), WebSocketRoute("/chat", chat)]
)

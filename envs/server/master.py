"""One address for several environment servers: ``python -m envs.server.master NODE NODE …``.

A node is the address of an environment server (``http://10.0.0.5:8700``). A session is opened on
the node with most free places, and all its requests go there. The master keeps nothing that the
nodes do not know: after its own restart it finds a session by asking them. Keys pass through, so
all nodes and the master have one key file. Nodes of ``flows.serve_environments`` know the master's
key alone, and it names the owner of each request.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from envs.background import start_background
from envs.server.app import MAX_BODY, REQUEST_SECONDS, read_body
from envs.server.gate import Gate, check_listens, master_headers, read_keys
from envs.server.metrics import add_up, metric
from envs.server.node import LOOK_DEADLINE, ServerNode
from envs.server.refusals import HANDLERS, Refusal, json_answer
from envs.server.sessions import SessionCode
from envs.types import ConfigError, RollwrightError

PORT = 8700

LOOK_SECONDS = 2.0
"""Seconds between two looks at the nodes' places, which sessions of other masters take too."""

MAX_KNOWN = 100_000
"""Sessions whose nodes are remembered; the nodes are asked for others."""

UNREACHED = "node_unreached"
"""Code of a request that did not come to its node: it was not done."""

PASSED = ("content-type", "retry-after", "www-authenticate", "allow")
"""Headers of a node's answer that the client gets."""


class Master:
    """Routes requests to nodes; `app` makes the ASGI application, which looks at the nodes."""

    def __init__(
        self,
        urls: Iterable[str] = (),
        *,
        keys: Mapping[str, str] | None = None,
        node_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """
        Args:
            urls: Addresses of the nodes; `add_node` adds others.
            keys: Keys by owner; none serves this machine alone.
            node_key: The nodes' key of a master; without it the nodes have the same keys.
            transport: Way to the nodes; the network if not given.

        Raises:
            ConfigError: An address is none.
        """
        self.nodes: dict[str, ServerNode] = {}
        self.draining = False
        """True once no further session is opened."""
        for url in urls:
            self.add_node(url)
        self._keys, self._node_key, self._transport = dict(keys or {}), node_key, transport
        self._node_of: OrderedDict[str, ServerNode] = OrderedDict()
        self._answers: Counter[int] = Counter()
        self._client: httpx.AsyncClient | None = None
        self._looking: set[asyncio.Task[None]] = set()

    def add_node(self, url: str) -> None:
        """Add a node, which gets sessions once it answers.

        Raises:
            ConfigError: The address is none.
        """
        url = url.rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"node {url}: write http://HOST:PORT")
        self.nodes[url] = ServerNode(url)

    def remove_node(self, url: str) -> None:
        """Remove a node that is gone; its sessions are refused as closed from now on."""
        node = self.nodes.pop(url)
        node.gone = True
        node.fail()

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/sessions", self._open, methods=["POST"]),
                Route("/sessions/{id}", self._session, methods=["GET", "DELETE"]),
                Route("/sessions/{id}/{what}", self._session, methods=["GET", "POST", "DELETE"]),
                Route("/tasks", self._tasks, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                Route("/get", self._open_instance, methods=["POST"]),
                Route("/execute", self._execute, methods=["POST"]),
                Route("/info", self._info, methods=["GET"]),
                *(Route(path, self._instance, methods=["GET"]) for path in ("/screenshot", "/metadata", "/probe")),
                Route("/reset", self._instance, methods=["POST"]),
            ],
            middleware=[Middleware(Gate, keys=self._keys, answers=self._answers)],
            exception_handlers=HANDLERS,
            lifespan=self.looking,
        )

    @asynccontextmanager
    async def looking(self, _: object = None) -> AsyncIterator[None]:
        """Keep connections to the nodes, and look at their places."""
        timeout = httpx.Timeout(LOOK_DEADLINE, read=REQUEST_SECONDS + LOOK_DEADLINE)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            transport=self._transport, timeout=timeout, limits=limits, trust_env=False
        ) as self._client:  # no proxy gets the nodes' key
            await self.look()
            task = start_background(self._look_again(), self._looking, "looking at the nodes")
            try:
                yield
            finally:
                task.cancel()

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look at the places of all nodes now."""
        assert self._client is not None
        await asyncio.gather(*(node.look(self._client) for node in self.nodes.values()))

    def _keyed(self, request: Request) -> dict[str, str]:
        """Return the headers that let a client's request in at a node."""
        if self._node_key:
            return master_headers(request.scope["owner"], self._node_key)
        return {name: request.headers[name] for name in ("x-api-key", "authorization") if name in request.headers}

    async def _send(self, node: ServerNode, request: Request, path: bytes, body: bytes) -> httpx.Response:
        """Pass a request on, with the client's key or its owner's name.

        Raises:
            Refusal: The node does not answer.
        """
        assert self._client is not None
        headers = self._keyed(request)
        if "content-type" in request.headers:
            headers["content-type"] = request.headers["content-type"]
        query = request.scope.get("query_string", b"")
        url = httpx.URL(node.url).copy_with(raw_path=path + (b"?" + query if query else b""))
        try:
            return await self._client.request(request.method, url, content=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            node.fail()
            raise Refusal(504, UNREACHED, f"node {node.url} cannot be reached") from error
        except httpx.TransportError as error:
            raise Refusal(504, "not_yet", f"node {node.url} does not answer ({type(error).__name__})") from error

    async def _pass(self, node: ServerNode, request: Request, body: bytes = b"") -> Response:
        return _answer(await self._send(node, request, _path(request), body))

    async def _place(self, request: Request, body: bytes, session_id: str = "") -> tuple[ServerNode, httpx.Response]:
        """Have a session opened by the node with most places, or the next one that has a place."""
        if self.draining:
            raise Refusal(503, SessionCode.DRAINING, "the server is draining: it opens no further sessions")
        if not any(node.free > 0 for node in self.nodes.values()):
            await self.look()  # one may have been closed since the last look
        refused: tuple[ServerNode, httpx.Response] | None = None
        for node in sorted(self.nodes.values(), key=lambda node: -node.free):
            if node.free <= 0:
                continue
            node.sessions += 1  # at once: others are being placed meanwhile
            if session_id:
                self._remember(session_id, node)  # the same request again goes there too
            try:
                answer = await self._send(node, request, _path(request), body)
            except Refusal as error:
                if error.code != UNREACHED:
                    raise  # it may have been opened: the client asks again
                self._node_of.pop(session_id, None)
                continue
            if answer.is_success:
                return node, answer
            self._node_of.pop(session_id, None)
            refused = node, answer
            if answer.status_code != 503:
                break
            node.sessions = node.capacity
        if refused is not None:
            return refused
        raise Refusal(503, "capacity", f"no place on {len(self.nodes)} nodes: close a session, or add a node")

    async def _open(self, request: Request) -> Response:
        body = await read_body(request, MAX_BODY)
        try:
            asked = orjson.loads(body or b"{}")
            given = asked.get("session_id")
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise Refusal(400, "json", "the body is no JSON object") from error
        known = await self._find(given, request) if isinstance(given, str) else None
        if known is not None and not known.gone:
            return await self._pass(known, request, body)
        if given is None:
            asked["session_id"] = given = uuid.uuid4().hex
        _, answer = await self._place(request, orjson.dumps(asked), str(given))
        return _answer(answer)

    def _remember(self, session_id: str, node: ServerNode) -> None:
        self._node_of[session_id] = node
        while len(self._node_of) > MAX_KNOWN:
            self._node_of.popitem(last=False)

    async def _find(self, session_id: str, request: Request) -> ServerNode | None:
        """Return the node of a session; the nodes are asked where the master does not know it."""
        if session_id in self._node_of:
            return self._node_of[session_id]
        assert self._client is not None
        headers, client = self._keyed(request), self._client

        async def has(node: ServerNode) -> bool:
            try:
                answer = await client.get(f"{node.url}/sessions/{quote(session_id, safe='')}", headers=headers)
            except httpx.TransportError as error:
                raise Refusal(504, "not_yet", f"node {node.url} does not answer ({type(error).__name__})") from error
            return answer.status_code in (200, 410)

        asked = [node for node in self.nodes.values() if node.reachable]
        having = await asyncio.gather(*map(has, asked))
        for node in (node for node, there in zip(asked, having, strict=True) if there):
            self._remember(session_id, node)
            return node
        return None

    async def _session(self, request: Request) -> Response:
        session_id = request.path_params["id"]
        body = await read_body(request, MAX_BODY)
        node = await self._find(session_id, request)
        if node is None:
            raise Refusal(404, "unknown_session", f"no session {session_id[:100]!r} on any node; open another one")
        if node.gone:
            lost = f"no session {session_id[:100]!r}: its node {node.url} is gone; open another one"
            raise Refusal(410, SessionCode.CLOSED, lost)
        return await self._pass(node, request, body)

    async def _tasks(self, request: Request) -> Response:
        node = next((node for node in self.nodes.values() if node.healthy), None)
        if node is None:
            raise Refusal(503, "capacity", "no node answers")
        return await self._pass(node, request)

    async def _health(self, request: Request) -> Response:
        healthy = [node for node in self.nodes.values() if node.healthy]
        counts = {
            "sessions": sum(node.sessions for node in self.nodes.values() if node.reachable),
            "capacity": sum(node.capacity for node in healthy),
            "nodes": len(healthy),
        }
        status = "draining" if self.draining else "ok" if healthy else "no node"
        return json_answer({"status": status, **counts}, 200 if status == "ok" else 503)

    async def _metrics(self, request: Request) -> Response:
        """Return the nodes' metrics added up, and how each of them is."""
        nodes = {f'node="{node.url}"': node for node in self.nodes.values()}
        assert self._client is not None
        headers = self._keyed(request)
        texts = await asyncio.gather(*(node.metrics(self._client, headers) for node in nodes.values()))
        lines = [
            *add_up(texts),
            *metric(
                "node_healthy", "gauge", "1 if it answers.", {name: int(node.healthy) for name, node in nodes.items()}
            ),
            *metric("node_capacity", "gauge", "Places.", {name: node.capacity for name, node in nodes.items()}),
            *metric("node_sessions", "gauge", "Sessions.", {name: node.sessions for name, node in nodes.items()}),
            *metric(
                "http_answers_total", "counter", "Answers.", {f'status="{k}"': n for k, n in self._answers.items()}
            ),
        ]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def _open_instance(self, request: Request) -> Response:
        node, answer = await self._place(request, b"")
        if not answer.is_success:
            return _answer(answer)
        return json_answer({**answer.json(), "node": node.url})

    async def _instance(self, request: Request) -> Response:
        return await self._pass(self._named(request.query_params.get("node")), request)

    async def _execute(self, request: Request) -> Response:
        body = await read_body(request, MAX_BODY)
        try:
            name = orjson.loads(body).get("node")
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise Refusal(400, "json", "the body is no JSON object") from error
        return await self._pass(self._named(name), request, body)

    def _named(self, name: Any) -> ServerNode:
        node = self.nodes.get(name) if isinstance(name, str) else None
        if node is None:
            raise Refusal(404, "unknown_node", f"no node {str(name)[:100]!r}; /info lists them")
        return node

    async def _info(self, request: Request) -> Response:
        healthy = [node for node in self.nodes.values() if node.healthy]
        answers = await asyncio.gather(*(self._send(node, request, b"/info", b"") for node in healthy))
        nodes = [
            {**answer.json()["nodes"][0], "url": node.url, "hash": node.url}
            for node, answer in zip(healthy, answers, strict=True)
            if answer.is_success
        ]
        return json_answer({"nodes": nodes})


def _path(request: Request) -> bytes:
    """Return the path as the client wrote it."""
    raw: bytes = request.scope["raw_path"]
    return raw.partition(b"?")[0]


def _answer(answer: httpx.Response) -> Response:
    headers = {name: answer.headers[name] for name in PASSED if name in answer.headers}
    return Response(answer.content, answer.status_code, headers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if it cannot serve."""
    parser = argparse.ArgumentParser(prog="python -m envs.server.master", description=__doc__)
    parser.add_argument("nodes", nargs="+", metavar="NODE", help="Address of an environment server.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on; others than loopback need keys.")
    parser.add_argument("--port", type=int, default=PORT, help="Port.")
    parser.add_argument("--key-file", type=Path, help="The nodes' file of keys.")
    options = parser.parse_args(arguments)
    try:
        keys = read_keys(options.key_file) if options.key_file else {}
        check_listens(options.host, keys)
        app = Master(options.nodes, keys=keys).app()
    except RollwrightError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"serving {len(options.nodes)} nodes at http://{options.host}:{options.port}", flush=True)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning", server_header=False, ws="none")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The proxy with real sockets and no browser: what it passes on, what it refuses, and that nothing
is left behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from envs.egress import AllowList, EgressProxy, Listener, Reason, SiteSecrets
from envs.egress import proxy as proxy_module
from envs.egress.relay import Relay, Upstream
from envs.types import BrowserError
from tests.envs.egress.servers import BLOCK, Canary, Site, canary, serve

Client = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[Site, EgressProxy, Listener]]:
    """A site, and a proxy that lets through to it."""
    async with serve(Site()) as site, EgressProxy(**options) as proxy:
        yield site, proxy, await proxy.open(AllowList.of(site.origin))


async def dial(listener: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(listener.address.rpartition(":")[2]))


def test_a_transport_of_another_event_loop_is_taken() -> None:
    """uvloop's transports are no subclasses of asyncio's."""
    transport: Any = SimpleNamespace()
    relay = Relay(cast(Listener, SimpleNamespace(opened=lambda _: None)))
    relay.connection_made(transport)
    upstream = Upstream(relay, ("127.0.0.1", 80))
    upstream.connection_made(transport)
    assert upstream.transport is transport


async def ask(listener: Listener, *lines: str, body: bytes = b"") -> tuple[str, dict[str, str], bytes]:
    """One request on a connection of its own: status line, headers, body as framed by its length or
    the connection's end."""
    reader, writer = await dial(listener)
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    try:
        async with asyncio.timeout(10):
            return await answer(reader)
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    if "content-length" in headers:
        return head[0], headers, await reader.readexactly(int(headers["content-length"]))
    return head[0], headers, await reader.read()


async def test_requests_of_one_connection_share_one_to_the_server() -> None:
    async with opened() as (site, _, listener):
        reader, writer = await dial(listener)
        for _ in range(3):
            writer.write(f"GET {site.origin}/headers HTTP/1.1\r\nHost: x\r\nX-Y: z\r\n\r\n".encode())
            status, _, body = await answer(reader)
            assert status == "HTTP/1.1 200 OK"
            assert b'"x-y":"z"' in body and site.origin[7:].encode() in body
        server_port = int(site.origin.rpartition(":")[2])
        own = psutil.Process().net_connections("tcp")
        to_site = [c for c in own if c.raddr and c.raddr.port == server_port and c.status == "ESTABLISHED"]
        assert len(to_site) == 1
        writer.close()
        assert listener.requests == 3


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with opened() as (site, _, listener):
        reader, writer = await dial(listener)
        codes = [201, 404, 500, 204, 200]
        writer.write(b"".join(f"GET {site.origin}/status/{code} HTTP/1.1\r\n\r\n".encode() for code in codes))
        for code in codes:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {code} ".encode())
            if code != 204:
                assert await reader.readexactly(2) == b"no"
        writer.close()


async def test_bodies_go_up_as_they_are_framed() -> None:
    content = os.urandom(3_000_000)
    chunked = b"".join(
        b"%x\r\n%s\r\n" % (len(content[at : at + 70_000]), content[at : at + 70_000])
        for at in range(0, 3_000_000, 70_000)
    )

    async with opened() as (site, _, listener):
        post = f"POST {site.origin}/sum HTTP/1.1"
        plain = await ask(listener, post, f"Content-Length: {len(content)}", body=content)
        pieces = await ask(listener, post, "Transfer-Encoding: chunked", body=chunked + b"0\r\n\r\n")
        digest = hashlib.sha256(content).hexdigest().encode()
        assert digest in plain[2] and digest in pieces[2]


async def test_a_large_response_does_not_grow_the_process() -> None:
    blocks = 3200  # of 64 KiB: 210 MB

    async with opened() as (site, _, listener):
        reader, writer = await dial(listener)
        writer.write(f"GET {site.origin}/big?blocks={blocks} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        before = most = psutil.Process().memory_info().rss
        left = blocks * len(BLOCK)
        while left:
            left -= len(await reader.read(1 << 20))
            most = max(most, psutil.Process().memory_info().rss)
        writer.close()
        found = most - before
    assert found < 30_000_000


async def test_a_reader_that_does_not_read_holds_the_server_back() -> None:
    async with opened() as (site, _, listener):
        _, writer = await dial(listener)
        before = psutil.Process().memory_info().rss
        writer.write(f"GET {site.origin}/big?blocks=3200 HTTP/1.1\r\n\r\n".encode())
        for _ in range(50):
            await asyncio.sleep(0.02)
        assert psutil.Process().memory_info().rss - before < 30_000_000
        writer.transport.abort()


async def test_events_are_not_held_back_and_a_lost_reader_ends_them() -> None:
    async with opened() as (site, _, listener), asyncio.timeout(10):
        reader, writer = await dial(listener)
        writer.write(f"GET {site.origin}/events HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"data: first\n\n")
        site.more.set()
        await reader.readuntil(b"data: second\n\n")
        writer.transport.abort()
        await site.gone.wait()


async def raw_server(answers: list[bytes]) -> asyncio.Server:
    """A server that answers the n-th connection's first request with ``answers[n]`` and closes."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    return await asyncio.start_server(serve_one, "127.0.0.1", 0)


async def test_a_response_that_breaks_off_breaks_for_the_browser_too() -> None:
    server = await raw_server(
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
            b"",
            b"nonsense\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
        ]
    )
    origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with EgressProxy() as proxy, server:
        listener = await proxy.open(AllowList.of(origin))
        get = f"GET {origin}/ HTTP/1.1"
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await ask(listener, get)
        assert (await ask(listener, get))[2] == b"until the end"
        for _ in ("nothing", "nonsense", "an upgrade"):
            status, headers, _ = await ask(listener, get)
            assert status == "HTTP/1.1 502 Bad Gateway" and headers["x-rollwright-error"] == "unreachable"
        reader, writer = await dial(listener)
        writer.write(get.encode() + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 103 Early Hints\r\n\r\n"
        assert (await answer(reader))[2] == b"ok"
        writer.close()


async def test_a_kept_connection_that_was_closed_is_opened_again() -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo",
    ]
    server = await raw_server(answers)
    origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with EgressProxy() as proxy, server:
        reader, writer = await dial(await proxy.open(AllowList.of(origin)))
        for expected in (b"one", b"two"):
            writer.write(f"GET {origin}/ HTTP/1.1\r\n\r\n".encode())
            assert (await answer(reader))[2] == expected
        writer.close()


async def refused(listener: Listener, *lines: str) -> str:
    status, headers, _ = await ask(listener, *lines)
    assert status == "HTTP/1.1 403 Forbidden"
    return headers["x-rollwright-blocked"]


async def test_refusals_say_why_and_are_counted_by_reason_and_host() -> None:
    async with canary() as bird, opened() as (site, proxy, listener):
        assert await refused(listener, f"GET {bird.origin}/ HTTP/1.1") == "loopback"
        assert await refused(listener, f"CONNECT 127.1:{bird.port} HTTP/1.1") == "loopback"
        assert await refused(listener, "GET http://169.254.169.254/latest HTTP/1.1") == "metadata"
        assert await refused(listener, "CONNECT example.com:443 HTTP/1.1") == "not_listed"
        assert (
            await refused(listener, f"GET {site.origin}/sw.js HTTP/1.1", "Service-Worker: script") == "service_worker"
        )
        assert await refused(listener, "GET ftp://x/ HTTP/1.1") == "scheme"
        assert await refused(listener, "BREW") == "bad_request"
        assert await refused(listener, "GET http://h/ HTTP/1.1", "A: " + "a" * 70_000) == "bad_request"
        assert bird.hits == []
        assert listener.refused[Reason.LOOPBACK, "127.0.0.1"] == 1
        assert listener.refused[Reason.LOOPBACK, "127.1"] == 1
        assert proxy.refusals[Reason.LOOPBACK] == 2
        assert sum(listener.refused.values()) == sum(proxy.refusals.values()) == 8
        assert listener.refused[Reason.NOT_LISTED, "example.com"] == 1


async def test_a_refused_upload_is_answered_not_reset() -> None:
    async with canary() as bird, opened() as (_, _, listener):
        line = f"POST {bird.origin}/ HTTP/1.1"
        status, _, _ = await ask(listener, line, "Content-Length: 5000000", body=b"x" * 5_000_000)
        assert status == "HTTP/1.1 403 Forbidden" and bird.hits == []


async def test_each_listener_has_its_own_list_and_counts() -> None:
    async with opened() as (site, proxy, first):
        second = await proxy.open(AllowList())
        assert (await ask(first, f"GET {site.origin}/ HTTP/1.1"))[0] == "HTTP/1.1 200 OK"
        assert await refused(second, f"GET {site.origin}/ HTTP/1.1") == "loopback"
        assert await refused(first, f"GET {second.address}/ HTTP/1.1") == "loopback"
        assert sum(second.refused.values()) == 1


async def test_a_page_cannot_fill_the_counters() -> None:
    async with EgressProxy() as proxy:
        listener = await proxy.open(AllowList())
        for number in range(proxy_module.MAX_HOSTS + 20):
            await refused(listener, f"GET http://h{number}.test/ HTTP/1.1")
        assert listener.refused[Reason.NOT_LISTED, proxy_module.OTHERS] == 20
        assert len(listener.refused) == proxy_module.MAX_HOSTS + 1


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["93.184.215.14", "127.0.0.1"], ["169.254.169.254"], ["::1"], ["0.0.0.0"]]
)
async def test_a_name_that_resolves_to_this_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        assert host == "shop.test"
        return [(0, 0, 0, "", (address, 0)) for address in answers]

    async def scenario(bird: Canary) -> str:
        async with EgressProxy() as proxy:
            listener = await proxy.open(AllowList.of(f"http://shop.test:{bird.port}"))
            monkeypatch.setattr(socket, "getaddrinfo", resolve)
            return await refused(listener, f"GET http://shop.test:{bird.port}/ HTTP/1.1")

    async with canary() as bird:
        reason = await scenario(bird)
        hits = bird.hits
    assert reason in ("loopback", "metadata", "reserved") and hits == []


async def test_a_name_is_resolved_once_and_its_checked_address_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that changes its answer after the check (rebinding) is not asked again."""
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(0, 0, 0, "", ("93.184.215.14" if len(asked) == 1 else "127.0.0.1", 0))]

    reached: list[str] = []
    async with canary() as bird, EgressProxy() as proxy:
        listener = await proxy.open(AllowList.of(f"http://shop.test:{bird.port}"))
        loop = proxy._thread._loop
        assert loop is not None

        async def connect(_: Any, host: str, port: int) -> None:
            reached.append(host)
            raise ConnectionRefusedError

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        monkeypatch.setattr(loop, "create_connection", connect)
        status, _, _ = await ask(listener, f"GET http://shop.test:{bird.port}/ HTTP/1.1")
        found = status, reached
    assert found == ("HTTP/1.1 502 Bad Gateway", ["93.184.215.14"])
    assert asked == ["shop.test"]


async def test_names_of_loopback_reach_loopback_only_when_they_are_named() -> None:
    async with serve(Site()) as site, EgressProxy() as proxy:
        port = site.origin.rpartition(":")[2]
        listener = await proxy.open(AllowList.of(f"http://shop.localhost:{port}"))
        assert (await ask(listener, f"GET http://shop.localhost:{port}/ HTTP/1.1"))[0] == "HTTP/1.1 200 OK"
        assert await refused(listener, f"GET http://localhost:{port}/ HTTP/1.1") == "loopback"
        assert await refused(listener, f"GET http://127.0.0.1:{port}/ HTTP/1.1") == "loopback"


async def test_credentials_reach_the_site_and_only_the_site() -> None:
    async with serve(Site()) as site, serve(Site()) as other:
        secrets = SiteSecrets({site.origin: {"Authorization": "Bearer t0p", "Cookie": "session=t0p"}})
        async with EgressProxy(secrets=secrets) as proxy:
            listener = await proxy.open(AllowList.of(site.origin, other.origin))
            _, headers, body = await ask(listener, f"GET {site.origin}/headers HTTP/1.1", "Cookie: a=1")
            assert b"Bearer t0p" in body and b"a=1; session=t0p" in body
            assert "t0p" not in str(headers)
            _, _, body = await ask(listener, f"GET {other.origin}/headers HTTP/1.1")
            assert b"t0p" not in body


async def test_closing_leaves_no_socket_and_no_thread() -> None:
    process = psutil.Process()
    async with serve(Site()) as site:
        before = process.num_fds()
        async with EgressProxy() as proxy:
            listeners = [await proxy.open(AllowList.of(site.origin)) for _ in range(20)]
            held = [await dial(listener) for listener in listeners]
            for reader, writer in held:
                writer.write(f"GET {site.origin}/events HTTP/1.1\r\n\r\n".encode())
                await reader.readuntil(b"first")
            await listeners[0].close()
            await listeners[0].close()
            with pytest.raises(ConnectionRefusedError):
                await dial(listeners[0])
            held.append(await dial(listeners[1]))
        for _, writer in held:
            writer.transport.abort()
        async with asyncio.timeout(10):
            while process.num_fds() > before:
                await asyncio.sleep(0.01)
        assert all(thread.name != "egress-proxy" for thread in threading.enumerate())
        with pytest.raises(BrowserError, match="not running"):
            await proxy.open(AllowList())

"""A master before two nodes: places, requests of a session, nodes that are gone, Omniboxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from envs import EnvHost
from envs.server import EnvServer, omniboxes
from envs.server.master import Master, main
from envs.server.metrics import add_up

from .serving import client_of, refused, remote, served

COUNT = "miniwob/click-button-sequence"
KEYS = {"ann": "a" * 20, "bob": "b" * 20}
NODES = ("http://one.example:1", "http://two.example:2")


class Wires(httpx.AsyncBaseTransport):
    """The way to the nodes; wires can be cut, before a request came to its node or after."""

    def __init__(self, servers: dict[str, EnvServer]) -> None:
        self.inner = {url: httpx.ASGITransport(server.app()) for url, server in servers.items()}
        self.cut: set[str] = set()
        self.lost: set[str] = set()
        self.sent: list[tuple[str, str]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = f"{request.url.scheme}://{request.url.host}:{request.url.port}"
        if url in self.cut:
            raise httpx.ConnectError("no route", request=request)
        self.sent.append((url, request.url.path))
        answer = await self.inner[url].handle_async_request(request)
        if url in self.lost:
            self.lost.discard(url)
            raise httpx.ReadError("the connection was lost", request=request)
        return answer


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=6) as host:
        yield host


@asynccontextmanager
async def two_nodes(host: EnvHost, **options: Any) -> AsyncIterator[tuple[dict[str, EnvServer], Wires]]:
    """Two servers on one host's browsers."""
    async with AsyncExitStack() as stack:
        servers = {}
        for url in NODES:
            server = served(host, fronts=[omniboxes.routes], **(options or {"keys": KEYS}))
            servers[url] = await stack.enter_async_context(server)
        yield servers, Wires(servers)


@asynccontextmanager
async def clients(
    wires: Wires, node_key: str = ""
) -> AsyncIterator[tuple[Master, httpx.AsyncClient, httpx.AsyncClient]]:
    """A master, and clients of two keys."""
    master = Master(NODES, keys=KEYS, node_key=node_key, transport=wires)
    headers = [{"x-api-key": key} for key in KEYS.values()]
    async with master.looking(), client_of(master, **headers[0]) as ann, client_of(master, **headers[1]) as bob:
        yield master, ann, bob


async def test_sessions_are_spread_over_nodes_and_their_requests_go_there(host: EnvHost) -> None:
    async with two_nodes(host) as (servers, wires), clients(wires) as (_, ann, bob), AsyncExitStack() as stack:
        envs = [await stack.enter_async_context(remote(ann, COUNT, seed=7)) for _ in range(4)]
        assert {len(server.table) for server in servers.values()} == {2}
        for env in envs:
            numbers = {element.text: element.index for element in (await env.reset()).observation.elements}
            await env.step(f"click [{numbers['ONE']}]")
            assert (await env.step(f"click [{numbers['TWO']}]")).reward == 1.0 and env.trajectory is not None
        assert [server.table.counters.steps for server in servers.values()] == [4, 4]
        session = next(iter(servers[NODES[0]].table.sessions))
        assert refused(await bob.get(f"/sessions/{session}")) == (404, "unknown_session")
        assert refused(await ann.get("/sessions/none")) == (404, "unknown_session")
        assert (await ann.get(f"/sessions/{session}/screenshot")).status_code == 204
        assert (await ann.get("/health")).json() == {"status": "ok", "sessions": 4, "capacity": 12, "nodes": 2}
        assert COUNT in (await ann.get("/tasks?family=miniwob")).json()["tasks"]
        assert 'rollwright_node_sessions{node="http://one.example:1"} 2' in (await ann.get("/metrics")).text
        other = Master(NODES, keys=KEYS, transport=wires)
        async with other.looking(), client_of(other, **{"x-api-key": KEYS["ann"]}) as again:
            assert (await again.get(f"/sessions/{session}")).json()["step"] == 2, "found after a restart"
            assert refused(await again.get("/sessions/%2e%2e%3f")) == (404, "unknown_session")
        assert refused(await ann.get("/tasks", headers={"x-api-key": "wrong"})) == (401, "key")


async def test_a_full_master_says_so_and_sees_what_was_closed(host: EnvHost) -> None:
    async with two_nodes(host) as (servers, wires), clients(wires) as (master, ann, _):
        for server in servers.values():
            server.max_per_owner = 1
        for node in master.nodes.values():
            node.sessions = node.capacity - 1
        opened = [await ann.post("/sessions", json={"task": COUNT, "session_id": f"session-{n}"}) for n in range(2)]
        assert [answer.status_code for answer in opened] == [201, 201]
        assert [list(server.table.sessions) for server in servers.values()] == [["session-0"], ["session-1"]]
        again = await ann.post("/sessions", json={"task": COUNT, "session_id": "session-1"})
        assert again.status_code == 200, "the same request is the same session"
        many = await ann.post("/sessions", json={"task": COUNT})
        assert refused(many) == (429, "too_many_sessions") and many.headers["retry-after"]
        for server in servers.values():
            server.table.draining = True
        await master.look()
        assert refused(await ann.post("/sessions", json={"task": COUNT})) == (503, "capacity")
        assert (await ann.get("/health")).status_code == 503
        assert (await ann.get("/sessions/session-0")).status_code == 200, "a draining node serves its sessions"


async def test_a_node_that_is_gone_and_a_lost_answer_open_no_second_session(host: EnvHost) -> None:
    async with two_nodes(host) as (servers, wires), clients(wires) as (master, ann, _):
        wires.cut.add(NODES[0])
        async with remote(ann, COUNT) as first, remote(ann, COUNT):
            assert [len(server.table) for server in servers.values()] == [0, 2]
            assert not master.nodes[NODES[0]].healthy
            wires.cut = {NODES[1]}
            assert refused(await ann.get(f"/sessions/{first.session_id}")) == (504, "node_unreached")
            wires.cut = set()
            await master.look()
            wires.lost.add(NODES[0])  # it has most places
            async with remote(ann, COUNT) as third:
                assert (await third.reset()).observation.elements
            assert sum(server.table.counters.opened for server in servers.values()) == 3


async def test_nodes_that_know_the_masters_key_alone_keep_owners_apart(host: EnvHost) -> None:
    key = "m" * 20
    async with (
        two_nodes(host, master_key=key) as (servers, wires),
        clients(wires, key) as (_, ann, bob),
        remote(ann, COUNT, seed=7) as env,
        remote(bob, COUNT),
        client_of(servers[NODES[0]]) as direct,
    ):
        numbers = {element.text: element.index for element in (await env.reset()).observation.elements}
        await env.step(f"click [{numbers['ONE']}]")
        sessions = {id_: one.owner for server in servers.values() for id_, one in server.table.sessions.items()}
        assert sorted(sessions.values()) == ["ann", "bob"]
        for owner, client in {"ann": ann, "bob": bob}.items():
            seen = {id_: (await client.get(f"/sessions/{id_}")).status_code for id_ in sessions}
            assert seen == {id_: 200 if whose == owner else 404 for id_, whose in sessions.items()}
        text = (await bob.get("/metrics")).text
        assert "\nrollwright_sessions_opened_total 2\n" in text and "\nrollwright_sessions_steps_total 1\n" in text
        for headers in ({}, {"x-api-key": KEYS["ann"]}, {"x-rollwright-owner": "ann"}):
            assert refused(await direct.get("/tasks", headers=headers)) == (401, "key")


async def test_the_sessions_of_a_node_that_was_removed_are_closed(host: EnvHost) -> None:
    async with two_nodes(host) as (servers, wires), clients(wires) as (master, ann, _):
        async with remote(ann, COUNT, seed=7) as env:
            await env.reset()
            (session,) = servers[NODES[0]].table.sessions
            wires.cut.add(NODES[0])
            master.remove_node(NODES[0])
            answer = await ann.get(f"/sessions/{session}")
            assert refused(answer) == (410, "closed_session") and f"node {NODES[0]} is gone" in answer.text
            step = await env.step("click [1]")
            assert step.done and step.reward is None and "is gone" in str(step.abstained)
            again = await ann.post("/sessions", json={"task": COUNT, "session_id": session})
            assert again.status_code == 201 and session in servers[NODES[1]].table.sessions
            assert (await env.reset()).observation.elements
            assert (await ann.get("/health")).json() == {"status": "ok", "sessions": 2, "capacity": 6, "nodes": 1}
        wires.cut.clear()
        master.add_node(NODES[0])
        await master.look()
        assert (await ann.get("/health")).json()["capacity"] == 12


async def test_a_draining_master_opens_nothing_and_serves_what_is_open(host: EnvHost) -> None:
    async with two_nodes(host) as (servers, wires), clients(wires) as (master, ann, _), remote(ann, COUNT) as env:
        master.draining = True
        assert refused(await ann.post("/sessions", json={"task": COUNT})) == (503, "draining")
        assert (await ann.get("/health")).status_code == 503
        for server in servers.values():
            server.table.draining = True
        await master.look()
        assert (await ann.get("/health")).json() == {"status": "draining", "sessions": 1, "capacity": 0, "nodes": 0}
        assert (await env.reset()).observation.elements


def test_metrics_of_nodes_are_added_up_by_label() -> None:
    one = ["# HELP rollwright_steps Steps.", "# TYPE rollwright_steps counter", "rollwright_steps 2"]
    kinds = ["# HELP rollwright_kinds Kinds.", "# TYPE rollwright_kinds gauge"]
    texts = [
        "\n".join([*one, *kinds, 'rollwright_kinds{kind="a"} 0.5']),
        "\n".join([*one, *kinds, 'rollwright_kinds{kind="b"} 1', 'rollwright_kinds{kind="a"} 1']),
        "",
    ]
    total = ["rollwright_steps 4", 'rollwright_kinds{kind="a"} 1.5', 'rollwright_kinds{kind="b"} 1']
    assert add_up(texts) == [*one[:2], total[0], *kinds, *total[1:]]
    assert add_up(["# HELP rollwright_draining D.\n# TYPE rollwright_draining gauge\nrollwright_draining 1"]) == []


async def test_instances_of_omniboxes_have_a_node(host: EnvHost) -> None:
    async with two_nodes(host) as (servers, wires), clients(wires) as (_, ann, _bob):
        instances = [(await ann.post("/get?lifetime_mins=5")).json() for _ in range(2)]
        assert Counter(instance["node"] for instance in instances) == Counter(NODES)
        for instance in instances:
            done = await ann.post("/execute", json={"get_page_metadata": {}, **instance})
            assert done.json()["title"] == "New tab"
            shot = await ann.get("/screenshot", params={**instance, "interaction_mode": "coordinates"})
            assert shot.content.startswith(b"\xff\xd8") and (await ann.get("/probe", params=instance)).json() is True
        nodes = (await ann.get("/info")).json()["nodes"]
        assert [(node["url"], node["hash"], node["capacity"], len(node["instances"])) for node in nodes] == [
            (url, url, 6, 1) for url in NODES
        ]
        wrong = {**instances[0], "node": "http://169.254.169.254"}
        assert refused(await ann.post("/execute", json={"back": {}, **wrong})) == (404, "unknown_node")
        assert refused(await ann.post("/reset", params=wrong)) == (404, "unknown_node")
        assert refused(await ann.post("/execute", content=b"[1]")) == (400, "json")
        for instance in instances:
            assert (await ann.post("/reset", params=instance)).json() == {"status": "success"}
        assert all(len(server.table) == 0 for server in servers.values())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["--host", "0.0.0.0", NODES[0]], "a server without keys"), (["one.example:1"], "write http://HOST:PORT")],
)
def test_a_master_refuses_what_is_not_safe_or_clear(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert problem in capsys.readouterr().err

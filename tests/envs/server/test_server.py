"""The environment server's routes over real browsers: episodes, repeats, refusals, failures."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from envs import BrowserError, CapacityError, EnvHost, TaskError
from envs.server import ClientRules, EnvServer, SessionError
from envs.server.devtools import DevToolsFront
from envs.server.gate import read_keys
from envs.supply import DevToolsSupply
from envs.types import ConfigError
from tests.envs.adapters.reference import CANARY, SCRIPTS, digest, reference
from tests.envs.devtools_client import bare_client

from .serving import client_of, refused, remote, served

COUNT = "miniwob/click-button-sequence"
"""Two buttons, to be clicked in turn: a click that is done twice fails."""

Opened = tuple[EnvServer, httpx.AsyncClient]


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=4) as host:
        yield host


@pytest.fixture
async def opened(host: EnvHost) -> AsyncIterator[Opened]:
    async with served(host) as server, client_of(server) as client:
        yield server, client


@pytest.mark.parametrize("task", SCRIPTS)
async def test_an_episode_over_http_is_that_of_open_env(opened: Opened, task: str) -> None:
    expected = await asyncio.to_thread(reference, task)
    async with remote(opened[1], task, seed=expected.seed) as env:
        steps = [await env.reset(), *[await env.step(text) for text in expected.texts]]
        assert [digest(step.observation) for step in steps] == expected.observations
        assert [hashlib.sha256(step.screenshot).hexdigest() for step in steps] == expected.screenshots
        assert steps[-1].done and steps[-1].reward == expected.reward
        assert steps[-1].stop == expected.steps[-1].stop
        assert env.trajectory is not None and digest(env.trajectory) == digest(expected.trajectory)
        assert env.reward == env.trajectory.reward and env.task == expected_task(expected)
    assert len(opened[0].table) == 0


def expected_task(expected: Any) -> Any:
    from envs import open_env

    return open_env(expected.task).task


async def numbers_of(client: httpx.AsyncClient, session: str, epoch: int) -> dict[str, int]:
    """Reset a session of `COUNT`; its buttons by label."""
    answer = (await client.post(f"/sessions/{session}/reset", json={"epoch": epoch})).json()
    assert answer["epoch"] == epoch and answer["step"] == 0 and "screenshot" not in answer
    assert "[1]" in answer["text"] and "Task:" in answer["text"]
    return {element["text"]: element["index"] for element in answer["observation"]["elements"]}


async def test_requests_that_are_sent_again_are_done_once(opened: Opened) -> None:
    server, client = opened
    opening = {"task": COUNT, "seed": 7, "session_id": "one-client-0001"}
    answers = await asyncio.gather(*(client.post("/sessions", json=opening) for _ in range(3)))
    assert {answer.status_code for answer in answers} <= {200, 201} and len(server.table) == 1
    assert (await client.post("/sessions", json=opening)).status_code == 200
    assert refused(await client.post("/sessions", json={**opening, "seed": 8})) == (409, "session_exists")
    two_seeds = [{**opening, "session_id": "one-client-0002", "seed": seed} for seed in (7, 8)]
    answers = await asyncio.gather(*(client.post("/sessions", json=asked) for asked in two_seeds))
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    await client.delete("/sessions/one-client-0002")
    numbers = await numbers_of(client, "one-client-0001", 1)
    assert numbers == await numbers_of(client, "one-client-0001", 1)
    path = "/sessions/one-client-0001/step"
    one = {"action": {"type": "click", "element": numbers["ONE"]}, "epoch": 1, "step": 1}
    first = await asyncio.gather(*(client.post(path, json=one) for _ in range(3)))
    assert len({answer.content for answer in first}) == 1 and first[0].json()["done"] is False
    assert refused(await client.post(path, json={**one, "action": "wait 1"})) == (409, "other_action")
    assert refused(await client.post(path, json={**one, "step": 3})) == (409, "wrong_step")
    assert refused(await client.post(path, json={**one, "epoch": 9})) == (409, "stale_epoch")
    assert refused(await client.get("/sessions/one-client-0001/trajectory")) == (409, "no_episode")
    two = {"action": f"click [{numbers['TWO']}]", "epoch": 1, "step": 2}
    last = (await client.post(path, json=two)).json()
    assert last["reward"] == 1.0 and last["done"] and last["abstained"] is None, "ONE was clicked once"
    assert refused(await client.post(path, json={**two, "step": 3})) == (409, "episode_over")
    record = (await client.get("/sessions/one-client-0001/trajectory")).json()
    assert len(record["steps"]) == 2 and record["reward"]["score"] == 1.0
    state = (await client.get("/sessions/one-client-0001")).json()
    assert (state["epoch"], state["step"], state["last"]["reward"]) == (1, 2, 1.0)
    assert (await client.delete("/sessions/one-client-0001")).json()["closed"] is True
    assert (await client.delete("/sessions/one-client-0001")).json()["closed"] is False
    assert refused(await client.post(path, json=two)) == (410, "closed_session")
    assert server.table.counters.steps == 2 and server.table.counters.opened == 2


async def test_a_request_without_an_answer_in_time_is_asked_again(host: EnvHost) -> None:
    async with served(host, request_seconds=0) as server, client_of(server) as client:
        opening = {"task": COUNT, "seed": 7, "session_id": "slow-server-01"}
        assert refused(await client.post("/sessions", json=opening)) == (504, "not_yet")
        async with remote(client, COUNT, seed=7) as env:  # asks until it is answered
            step = await env.reset()
            numbers = {element.text: element.index for element in step.observation.elements}
            await env.step(f"click [{numbers['ONE']}]")
            assert (await env.step(f"click [{numbers['TWO']}]")).reward == 1.0
        assert server.table.counters.steps == 2 and "slow-server-01" in server.table.sessions


class LossyTransport(httpx.AsyncBaseTransport):
    """Loses every answer once, after the server did what was asked; or everything."""

    def __init__(self, inner: httpx.AsyncBaseTransport, *, losing: bool = True) -> None:
        self.inner, self.losing, self.gone = inner, losing, False
        self.lost: set[bytes] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.gone:
            raise httpx.ConnectError("nobody listens", request=request)
        asked = f"{request.method} {request.url}".encode() + await request.aread()
        answer = await self.inner.handle_async_request(request)
        if self.losing and asked not in self.lost:
            self.lost.add(asked)
            raise httpx.ReadError("the connection was lost", request=request)
        return answer


async def test_a_client_that_loses_every_answer_plays_the_same_episode(opened: Opened) -> None:
    server, _ = opened
    expected = await asyncio.to_thread(reference, "miniwob/enter-text")
    transport = LossyTransport(httpx.ASGITransport(server.app()))
    async with httpx.AsyncClient(transport=transport) as client, remote(client, expected.task, seed=7) as env:
        steps = [await env.reset(), *[await env.step(text) for text in expected.texts]]
    assert [digest(step.observation) for step in steps] == expected.observations
    assert steps[-1].reward == expected.reward and digest(env.trajectory or {}) == digest(expected.trajectory)
    counters = server.table.counters
    assert (counters.opened, counters.episodes, counters.steps, counters.repeated) == (1, 1, 2, 3)


async def test_a_killed_browser_is_an_abstention_and_the_next_reset_works(opened: Opened, host: EnvHost) -> None:
    server, client = opened
    async with remote(client, COUNT, seed=7) as env:
        await env.reset()
        for pid in host.pool.browser_pids():
            os.kill(pid, signal.SIGKILL)
        step = await env.step("click [1]")
        assert step.done and step.reward is None and step.abstained
        assert env.trajectory is not None and env.trajectory.reward.score is None
        step = await env.reset()
        assert step.observation.elements and not step.done
    assert server.table.counters.abstained == 1 and len(server.table) == 0
    assert "rollwright_sessions_abstained_total 1" in (await client.get("/metrics")).text


async def test_a_client_that_vanishes_gives_its_place_back(host: EnvHost) -> None:
    async with served(host, lease_seconds=0.5) as server, client_of(server) as client:
        for _ in range(4):
            session = (await client.post("/sessions", json={"task": COUNT})).json()["session_id"]
        assert (await client.post(f"/sessions/{session}/reset")).status_code == 200
        full = await client.post("/sessions", json={"task": COUNT})
        assert refused(full) == (503, "capacity") and full.headers["retry-after"] == "2"
        async with remote(client, COUNT, keep_alive=True) as env:  # waits for a place
            await asyncio.sleep(1.2)  # more than its lease
            await env.reset()
        assert refused(await client.get(f"/sessions/{session}")) == (410, "expired_session")
        assert server.table.counters.expired == 4 and len(server.table) == 0
    assert host.pool.metrics()["lent"] == 0


async def test_an_episode_whose_session_is_lost_has_no_reward(opened: Opened) -> None:
    server, client = opened
    async with remote(client, COUNT) as env:
        await env.reset()
        await server.table.close(next(iter(server.table.sessions)))
        step = await env.step("click [1]")
        assert step.done and step.reward is None and "the session is lost" in str(step.abstained)
        with pytest.raises(TaskError, match="call reset"):
            await env.step("click [1]")
        assert (await env.reset()).observation.elements, "another session is opened"
    with pytest.raises(BrowserError, match="not open"):
        await env.reset()
    transport = LossyTransport(httpx.ASGITransport(server.app()), losing=False)
    async with httpx.AsyncClient(transport=transport) as lossy, remote(lossy, COUNT, retry_seconds=0.3) as env:
        await env.reset()
        transport.gone = True
        step = await env.step("click [1]")
        assert step.reward is None and "the session is lost: no answer from" in str(step.abstained)
        with pytest.raises(BrowserError, match="no answer from"):
            await env.reset()


async def test_clients_do_not_see_each_other(host: EnvHost) -> None:
    keys = {"ann": "a" * 20, "bob": "b" * 20}
    rules = ClientRules(allow_code=True)  # the canary's site is code
    async with (
        served(host, keys=keys, rules=rules, max_per_owner=2) as server,
        client_of(server, **{"x-api-key": keys["ann"]}) as ann,
        client_of(server, authorization=f"Bearer {keys['bob']}") as bob,
        remote(ann, CANARY) as first,
        remote(bob, CANARY) as second,
    ):
        for env in (first, second, first):
            step = await env.reset()
            assert "found: nothing" in env.text, "neither the other client nor an earlier episode left anything"
            assert not (await env.step(f"click [{step.observation.elements[-1].index}]")).observation.error
            assert (await env.step({"type": "refresh"})).observation.error is None and "k=cookie" in env.text
        session = next(session for session in server.table.sessions.values() if session.owner == "bob").session_id
        for method, path in (
            ("GET", ""),
            ("GET", "/screenshot"),
            ("GET", "/trajectory"),
            ("POST", "/reset"),
            ("DELETE", ""),
        ):
            assert refused(await ann.request(method, f"/sessions/{session}{path}")) == (404, "unknown_session")
        assert refused(await ann.post(f"/sessions/{session}/step", json={"action": "wait 1"})) == (
            404,
            "unknown_session",
        )
        assert (await bob.get(f"/sessions/{session}")).status_code == 200
        async with remote(ann, COUNT):
            many = await ann.post("/sessions", json={"task": COUNT})
            assert refused(many) == (429, "too_many_sessions") and many.headers["retry-after"]
            async with remote(bob, COUNT):
                pass


async def test_keys_open_the_server_and_nothing_else_does(host: EnvHost, tmp_path: Any) -> None:
    keys = {"ann": "a" * 20}
    async with served(host, keys=keys) as server, client_of(server) as client:
        for headers in ({}, {"x-api-key": ""}, {"x-api-key": "a" * 19}, {"authorization": "Basic " + "a" * 20}):
            answer = await client.get("/tasks", headers=headers)
            assert refused(answer) == (401, "key") and answer.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/tasks", headers={"x-api-key": "a" * 20, "host": "anywhere.example"})).json()["tasks"]
        assert (await client.get("/health")).json() == {"status": "ok", "sessions": 0, "capacity": 4}
        with pytest.raises(ConfigError, match="key is missing"):
            async with remote(client, COUNT):
                pass
    async with served(host) as server, client_of(server) as client:
        assert refused(await client.get("/tasks", headers={"host": "evil.example"})) == (403, "host")
        assert refused(await client.post("/sessions", headers={"origin": "https://evil.example"})) == (403, "origin")
    (tmp_path / "keys").write_text(f"# ours\nann:{'a' * 16}\n\n{'b' * 16}\n")
    assert read_keys(tmp_path / "keys") == {"ann": "a" * 16, "key 4": "b" * 16}
    for text, problem in (("", "has no key"), ("ann:short", "line 1"), ("é" * 20, "ASCII")):
        (tmp_path / "keys").write_text(text)
        with pytest.raises(ConfigError, match=problem):
            read_keys(tmp_path / "keys")


async def test_clients_name_no_code_and_reach_no_other_hosts(host: EnvHost) -> None:
    inline = CANARY.model_dump(mode="json")
    live = {**inline, "site": "shop.example", "path": "/"}
    near = {**inline, "site": "127.0.0.1:1", "path": "/"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"task": inline}, "code"),
        ({"task": COUNT, "reward": "os:getcwd"}, "code"),
        ({"task": COUNT, "parser": "os:getcwd"}, "code"),
        ({"task": live}, "host"),
        ({"task": near}, "host"),
        ({"task": "http://127.0.0.1:1/", "instruction": "x"}, "host"),
        ({"task": "https://169.254.169.254/latest", "instruction": "x"}, "host"),
        ({"task": "live/shop.example", "instruction": "x"}, "host"),
        ({"task": "https://a.example@evil.example/", "instruction": "x"}, "host"),
    ]
    rules = ClientRules(reach=("https://*.a.example", "https://a.example"))
    async with served(host, rules=rules) as server, client_of(server) as client:
        for asked, code in cases:
            assert refused(await client.post("/sessions", json=asked)) == (403, code), asked
        allowed = {"task": "https://sub.a.example/x", "instruction": "x"}
        session = (await client.post("/sessions", json=allowed)).json()["session_id"]
        assert server.table.find(session).env._live.reach == rules.reach
        assert refused(await client.post("/sessions", json={"task": COUNT, "reward": "none"})) == (422, "config")
        assert refused(await client.post("/sessions", json={"task": "miniwob/none"})) == (422, "task")
        assert refused(await client.post("/sessions", json={"task": COUNT, "seed": 2**40})) == (422, "task")
        assert len(server.table) == 1
    for wrong in ({"reach": ("a.example",)}, {"reach": ("http://10.0.0.1",)}, {"addresses": {"x": "file:///etc"}}):
        with pytest.raises(ConfigError):
            EnvServer(server.table, rules=ClientRules.model_validate(wrong))


async def test_pages_of_a_session_reach_what_the_operator_names(host: EnvHost, tmp_path: Any) -> None:
    from envs.sites import StaticServer

    (tmp_path / "index.html").write_text("<title>Named</title><p>Here.</p>")
    named, other = StaticServer(tmp_path), StaticServer(tmp_path)
    await named.start()
    await other.start()
    try:
        rules = ClientRules(addresses={"shop": named.origin})
        task = CANARY.model_copy(update={"site": "shop", "path": "/index.html", "instruction": "Look."})
        async with served(host, rules=rules) as server, client_of(server) as client, remote(client, task) as env:
            assert (await env.reset()).observation.title == "Named"
            for url in (f"{other.origin}/index.html", "file:///etc/passwd", "http://169.254.169.254/"):
                assert (await env.step({"type": "goto", "url": url})).observation.error
            assert "Here." in env.text
    finally:
        await named.close()
        await other.close()


async def test_marks_are_drawn_for_the_sessions_that_ask_for_them(opened: Opened) -> None:
    _, client = opened
    async with remote(client, COUNT, seed=7) as plain, remote(client, COUNT, seed=7, mode="set_of_marks") as marked:
        first, second = await plain.reset(), await marked.reset()
        assert first.observation == second.observation and first.screenshot != second.screenshot
        picture = await client.get(f"/sessions/{marked.session_id}/screenshot")
        assert picture.content == second.screenshot and picture.headers["content-type"] == "image/jpeg"


async def test_metrics_are_prometheus_text(opened: Opened) -> None:
    _, client = opened
    async with remote(client, COUNT) as env:
        await env.reset()
        await env.step("wait 1")
        await client.get("/nowhere")
        text = (await client.get("/metrics")).text
    values = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            matched = re.fullmatch(r'(rollwright_\w+(?:\{\w+="[^"]*"\})?) (\d+(?:\.\d+)?(?:e-?\d+)?)', line)
            assert matched, line
            assert matched[1] not in values
            values[matched[1]] = float(matched[2])
    assert values["rollwright_sessions"] == 1 and values["rollwright_capacity"] == 4
    assert values["rollwright_sessions_steps_total"] == 1 and values['rollwright_http_answers_total{status="404"}'] == 1
    assert values['rollwright_operations_done_total{kind="observation"}'] >= 2
    assert 'rollwright_operations_wait_seconds_total{kind="input"}' in values


async def test_a_draining_server_serves_its_sessions_and_opens_none(opened: Opened) -> None:
    server, client = opened
    async with remote(client, COUNT) as env:
        draining = asyncio.create_task(server.table.drain(10))
        await asyncio.sleep(0)
        health = await client.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "draining"
        with pytest.raises(CapacityError, match="draining"):
            async with remote(client, COUNT, retry_seconds=0):
                pass
        assert (await env.reset()).observation.elements and not draining.done()
    assert await draining == 0


async def test_an_agent_plays_a_session_over_its_devtools_address(host: EnvHost) -> None:
    async with (
        DevToolsSupply(host) as supply,
        served(host, lease_seconds=1.5, fronts=[DevToolsFront(supply).routes]) as server,
        client_of(server) as client,
    ):
        session = (await client.post("/sessions", json={"task": COUNT, "seed": 7})).json()["session_id"]
        path = f"/sessions/{session}/devtools"
        assert refused(await client.post(path)) == (409, "no_episode")
        assert refused(await client.delete(path)) == (409, "not_lent")
        await client.post(f"/sessions/{session}/reset")
        lent = (await client.post(path)).json()
        assert (await client.post(path)).json() == lent, "asked again, it is the same address"
        step = await client.post(f"/sessions/{session}/step", json={"action": "click [1]"})
        assert refused(step) == refused(await client.post(f"/sessions/{session}/reset")) == (409, "lent")
        async with bare_client(lent["cdp_url"]) as agent:
            _, page = await agent.attach()
            for _ in range(6):  # longer than the lease: what the agent says renews it
                await asyncio.sleep(0.4)
                assert "click" in str(await agent.evaluate(page, "document.body.innerText")).lower()
            await agent.evaluate(page, "document.getElementById('subbtn').click()")
        back = (await client.delete(path)).json()
        assert back["session_id"] == session and "ONE" in back["text"]
        numbers = {element["text"]: element["index"] for element in back["observation"]["elements"]}
        last = await client.post(f"/sessions/{session}/step", json={"action": f"click [{numbers['TWO']}]"})
        assert last.json()["reward"] == 1.0, "the agent clicked ONE"
        await client.post(f"/sessions/{session}/reset")
        lent = (await client.post(path)).json()
        while supply.leases:  # no request comes, so the session's lease ends
            await asyncio.sleep(0.05)
        assert refused(await client.get(f"/sessions/{session}")) == (410, "expired_session")
    assert host.pool.metrics()["lent"] == 0


async def test_a_session_ends_with_its_lifetime_also_if_it_is_used(host: EnvHost) -> None:
    async with served(host) as server:
        session = await server.table.open(COUNT, lifetime_seconds=0.4)
        with pytest.raises(SessionError, match="its time was over"):
            for _ in range(20):
                await asyncio.sleep(0.1)
                server.table.find(session.session_id)

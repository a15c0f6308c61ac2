"""10,000 malformed requests: each is refused with one clear error, and nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import orjson

from envs import EnvHost
from envs.server import omniboxes

from .serving import client_of, refused, served

COUNT = 10_000
TASK = "miniwob/click-test"
WRONG: list[Any] = [None, True, -1, 2**60, 1.5, "", "x" * 300, "é☃", [], {}, [[1]], {"type": "click"}, {"a": {"b": []}}]
"""Values of the wrong kind, or out of range, for at least one field each."""
BYTES = [
    b"{",
    b"\xff\xfe",
    b"nul",
    b"NaN",
    b'{"a": 1e999}',
    b'"\\ud800"',
    b"[" * 3000,
    b'{"a": 1} {}',
    b"[1]",
    b'"text"',
    b"7",
    b"null",
    b"\x00" * 50,
]
"""Bodies that are no JSON object."""
CODES = {400, 401, 403, 404, 405, 408, 409, 410, 413, 422}

Draw = Callable[[random.Random, str], tuple[str, str, bytes]]


def value(draw: random.Random) -> Any:
    """A wrong value, or a structure of them."""
    one = draw.choice(WRONG)
    return draw.choice([one, one, [one], {"x": one}])


def opening(draw: random.Random, session: str) -> tuple[str, str, bytes]:
    """A task that there is not, an unknown field, a field of the wrong kind, or code."""
    if draw.random() < 0.2:
        code = {draw.choice(["reward", "parser"]): draw.choice(["os:getcwd", "a.b:c.d"])}
        return "POST", "/sessions", orjson.dumps({"task": TASK, **code})
    body: dict[str, Any] = {"task": draw.choice(["miniwob/none", "", "nobody", "file:///etc/passwd", "live/h", *WRONG])}
    for name in draw.sample(["seed", "horizon", "mode", "lease_seconds", "session_id", "reward", "who", "pool"], 3):
        body[name] = value(draw)
    return "POST", "/sessions", orjson.dumps(body)


def step(draw: random.Random, session: str) -> tuple[str, str, bytes]:
    """A step of an epoch that there is not, or with wrong fields, of this session or another."""
    body = {"action": draw.choice(["click [1]", value(draw)]), "epoch": draw.choice([7, value(draw)]), "step": 99}
    if draw.random() < 0.5:
        body[draw.choice(["pool", "sites", "__class__"])] = value(draw)
    return "POST", f"/sessions/{draw.choice([session, 'x' * 300, '..', 'none'])}/step", orjson.dumps(body)


def reset(draw: random.Random, session: str) -> tuple[str, str, bytes]:
    """A reset to an epoch or a seed that there is not, or with wrong fields."""
    body = draw.choice([{"epoch": 9}, {"seed": 2**50}, {"epoch": value(draw), "who": 1}, {"seed": "x"}, {"seed": -1}])
    return "POST", f"/sessions/{session}/reset", orjson.dumps(body)


def no_json(draw: random.Random, session: str) -> tuple[str, str, bytes]:
    """A body that is no JSON object."""
    body = draw.choice([*BYTES, draw.randbytes(draw.randint(1, 40)) + b"\xff"])
    return (
        "POST",
        draw.choice(["/sessions", f"/sessions/{session}/step", f"/sessions/{session}/reset", "/execute"]),
        body,
    )


def nowhere(draw: random.Random, session: str) -> tuple[str, str, bytes]:
    """An address or a method that there is not."""
    paths = ["/", "/session", "/sessions/none", "/sessions/%00", f"/sessions/{session}/none", "/tasks?family=none"]
    method = draw.choice(["GET", "PUT", "PATCH", "OPTIONS"])
    return method, draw.choice(paths) + ("" if draw.random() < 0.5 else f"/{draw.randint(0, 9)}%ff"), b""


def instance(draw: random.Random, session: str) -> tuple[str, str, bytes]:
    """A request of Omniboxes for an instance that there is not, or with two commands or none."""
    method, path = draw.choice([("POST", "/reset"), ("GET", "/screenshot"), ("GET", "/metadata"), ("GET", "/probe")])
    if draw.random() < 0.3:
        return "POST", f"/get?lifetime_mins={draw.choice(['0', '-3', 'x', '1e9', '9' * 50, '½'])}", b""
    if draw.random() < 0.4:
        given = {"instance_id": draw.choice(["none", session, value(draw)]), "click_id": value(draw), "back": {}}
        return "POST", "/execute", orjson.dumps(dict(draw.sample(list(given.items()), draw.randint(1, 3))))
    return method, f"{path}?{draw.choice(['', 'instance_id=none', f'instance_id={session}'])}", b""


def large(draw: random.Random, session: str) -> tuple[str, str, bytes]:
    """A body above the limit."""
    return "POST", f"/sessions/{session}/step", b'{"action": "' + b"x" * 70_000 + b'"}'


KINDS: list[Draw] = [opening, step, reset, no_json, nowhere, instance, large]


async def test_each_malformed_request_gets_one_clear_error_and_leaves_nothing() -> None:
    draw, seen = random.Random(36), Counter[tuple[int, str]]()
    async with (
        EnvHost(max_sessions=3) as host,
        served(host, max_body=64_000, fronts=[omniboxes.routes]) as server,
        client_of(server) as client,
    ):
        session = (await client.post("/sessions", json={"task": TASK, "seed": 7})).json()["session_id"]
        before = (await client.post(f"/sessions/{session}/reset", json={"epoch": 1})).json()
        while (number := seen.total()) < COUNT:
            method, path, body = draw.choice(KINDS)(draw, session)
            asked = f"{number}: {method} {path} {body[:200]!r}"
            try:
                answer = await client.request(method, path, content=body)
            except httpx.InvalidURL:
                continue
            assert answer.status_code in CODES, f"{asked} {answer.status_code} {answer.text[:300]}"
            seen[refused(answer)] += 1
        assert {status for status, _ in seen} == {400, 403, 404, 405, 409, 413, 422}, seen
        assert list(server.table.sessions) == [session] and len(server.table) == 1
        assert host.pool.metrics()["lent"] == 1 and host.pool.counters.contexts_opened == 1
        assert not server._work and not server._opening
        state = (await client.get(f"/sessions/{session}")).json()
        assert state["last"] == before, "the session is where it was"
        after = await client.post(f"/sessions/{session}/step", json={"action": "click [1]", "epoch": 1, "step": 1})
        assert after.json()["reward"] == 1.0

"""A judge endpoint on loopback that answers as it is told, or misbehaves. HTTP by hand, so that it
can be broken by hand."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from envs.rewards.judge import Judge, JudgeCase, JudgeConfig, JudgedFact, JudgeModels, JudgeStep

Request = dict[str, Any]
Answerer = Callable[["FakeJudge", Request], bytes | Awaitable[bytes] | None]
"""Bytes to send, or ``None`` to drop the connection."""


def http(status: int, body: str, *headers: str, kind: str = "application/json") -> bytes:
    """A whole HTTP/1.1 response."""
    data = body.encode("utf-8", "surrogatepass")
    lines = [
        f"HTTP/1.1 {status} x",
        f"Content-Type: {kind}",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def completion(content: Any, *, finish: str = "stop", usage: Any = (100, 10)) -> bytes:
    """A chat completion; ``usage`` as (prompt, completion), or ``None`` to leave it out."""
    found: dict[str, Any] = {
        "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish}]
    }
    if isinstance(usage, tuple):
        found["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return http(200, json.dumps(found))


def says(verdict: str, reason: str = "seen") -> bytes:
    """A verdict in the form that was asked for."""
    return completion(json.dumps({"verdict": verdict, "reason": reason}))


def text_of(request: Request) -> str:
    """All words of a request, system turn first."""
    system, user = request["messages"]
    return "\n".join([system["content"], *(part["text"] for part in user["content"] if part["type"] == "text")])


def images_of(request: Request) -> list[str]:
    return [part["image_url"]["url"] for part in request["messages"][1]["content"] if part["type"] == "image_url"]


PURPOSES = {
    "Decide whether a screenshot": "keyframe",
    "Decide whether a website": "blocking",
    "Decide whether a web agent met": "criterion_a",
    "Check a web agent's answer": "criterion_b",
    "Compare a web agent's answer": "reference",
    "Grade a web agent": "verdict",
    "Grade a short answer": "same_answer",
    "List the requirements": "key_points",
    "Score how much": "relevance",
}


def purpose_of(request: Request) -> str:
    """By the first words of the system turn."""
    system = request["messages"][0]["content"]
    return next(purpose for words, purpose in PURPOSES.items() if system.startswith(words))


DEFAULTS = {
    "keyframe": says("RELEVANT"),
    "blocking": says("NOT BLOCKED"),
    "key_points": completion('{"key_points": ["the cheapest"]}'),
    "relevance": completion('{"score": 4, "reason": "a list"}'),
}


def judged(**answers: bytes | Answerer) -> Answerer:
    """Answers by purpose; SUCCESS and harmless ones where nothing is given."""

    def answer(fake: FakeJudge, request: Request) -> bytes | Awaitable[bytes] | None:
        found = answers.get(purpose_of(request)) or DEFAULTS.get(purpose_of(request)) or says("SUCCESS")
        return found if isinstance(found, bytes) else found(fake, request)

    return answer


@dataclass
class FakeJudge:
    """The server; ``answer`` may be changed while it runs."""

    answer: Answerer
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0

    def count(self, purpose: str) -> int:
        return sum(purpose_of(each) == purpose for each in self.requests)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            assert head.startswith("POST /v1/chat/completions ")
            length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            request = json.loads(await reader.readexactly(int(length.group(1))))
            self.headers.append(head)
            self.requests.append(request)
            self.busy += 1
            self.most_busy = max(self.busy, self.most_busy)
            try:
                found = self.answer(self, request)
                data = found if found is None or isinstance(found, bytes) else await found
            finally:
                self.busy -= 1
            if data is None:
                writer.transport.abort()
                return
            writer.write(data)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the judge gave up first, as it may
        finally:
            writer.close()


@asynccontextmanager
async def fake_judge(answer: Answerer) -> AsyncIterator[FakeJudge]:
    fake = FakeJudge(answer)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        server.close()


def config(url: str, **changes: Any) -> JudgeConfig:
    """Limits as short as a test wants them."""
    known: dict[str, Any] = {"models": JudgeModels(default="m"), "backoff": 0.001, "max_backoff": 0.01, "timeout": 5.0}
    return JudgeConfig(base_url=url, **(known | changes))


async def judge_once(answer: Answerer, episode: JudgeCase, **changes: Any) -> tuple[Any, FakeJudge]:
    """One episode, one judge, one server."""
    async with fake_judge(answer) as fake, Judge(config(fake.url, **changes)) as judge:
        return await judge.judge(episode), fake


def jpeg(shade: int) -> bytes:
    data = io.BytesIO()
    Image.new("L", (8, 8), shade % 256).save(data, "JPEG")
    return data.getvalue()


def episode(count: int = 3, **changes: Any) -> JudgeCase:
    """A shopping episode with two facts."""
    known: dict[str, Any] = {
        "instruction": "Find the price of the cheapest kettle.",
        "steps": tuple(
            JudgeStep(screenshot=jpeg(20 * each), action=f"click [{each}]", url=f"http://shop.test/{each}")
            for each in range(count)
        ),
        "answer": "19.99",
        "facts": (
            JudgedFact(fact_id="sorted", text="the list is sorted by price", group="search"),
            JudgedFact(fact_id="price", text="the answer is the first price of the list"),
        ),
    }
    return JudgeCase(**(known | changes))


def folder_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())

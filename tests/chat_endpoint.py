"""An endpoint of OpenAI's API of tests, on loopback: ``with endpoint(says) as (address,
served)``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from tests.loopback import Quiet, serving

Says = Callable[[dict[str, Any]], tuple[int, Any]]
"""Gives status and document of the answer to a request."""


class Endpoint(Quiet):
    """Answers with ``says``, and keeps what it was asked. Each test makes a class of its own."""

    says: ClassVar[Says]
    asked: ClassVar[list[dict[str, Any]]]
    keys: ClassVar[list[str | None]]
    paths: ClassVar[list[str]]

    def do_POST(self) -> None:
        kind = type(self)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind.asked.append(body)
        kind.keys.append(self.headers.get("Authorization"))
        kind.paths.append(self.path)
        known = self.path in ("/v1/chat/completions", "/v1/responses")
        status, document = kind.says(body) if known else (404, "no such route")
        self.answer(status, json.dumps(document), "application/json", Retry_After="0")


@contextmanager
def endpoint(says: Says) -> Iterator[tuple[str, type[Endpoint]]]:
    """Serve until the end of the block; gives the address with /v1, and the class that has been
    asked."""
    kind = type("Fake", (Endpoint,), {"says": staticmethod(says), "asked": [], "keys": [], "paths": []})
    with serving(kind) as origin:
        yield f"{origin}/v1", kind


def completion(content: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion with one choice."""
    return {"choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}]}

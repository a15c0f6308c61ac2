"""The routes of a vLLM server without a model, in a thread (`fake`) or as a program of two
processes.

Tokens are 7, 7, 7, …; the weights are the name of the folder that was loaded last.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.loopback import Quiet

IMAGE = 99
EXPANSION = 3
"""Ids that the server makes of one image's placeholder."""


class FakeVllm(Quiet):
    """Answers as vLLM 0.32 does. Each test makes a class of its own, which holds the server's
    state."""

    protocol_version = "HTTP/1.1"
    release: ClassVar[str] = "0.32.0"
    missing: ClassVar[tuple[str, ...]] = ()
    """Paths that are not served."""
    api_key: ClassVar[str] = ""
    generated: ClassVar[Callable[[dict[str, Any]], tuple[int, dict[str, Any]]] | None] = None
    """Takes the place of the turn that would be generated: status and document."""
    delay: ClassVar[float] = 0.0
    """Seconds before a turn is answered."""
    refused: ClassVar[str] = ""
    """A folder with this in its name is refused."""
    stuck: ClassVar[threading.Event | threading.Barrier | None] = None
    """Weights are neither read nor loaded before it is set."""
    readings: ClassVar[list[dict[str, Any]]] = []
    """Answers of `rollwright_read_files`, one after the other."""
    workers: ClassVar[int] = 1
    """Number that a broadcast reaches."""
    joins: ClassVar[list[dict[str, Any]]] = []
    """Answers of `rollwright_join`, one after the other; none: it has joined."""
    label: ClassVar[str] = "default"
    model: ClassVar[str] = "policy"
    max_model_len: ClassVar[int] = 64
    adapters: ClassVar[tuple[str, ...]] = ()
    """Names of those that are loaded."""
    calls: ClassVar[list[str]]
    bodies: ClassVar[list[dict[str, Any]]]

    def do_GET(self) -> None:
        self._respond({})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._respond(json.loads(content) if content else {})

    def _respond(self, body: dict[str, Any]) -> None:
        kind = type(self)
        path = self.path.partition("?")[0]
        kind.calls.append(self.path)
        if kind.api_key and self.headers.get("Authorization") != f"Bearer {kind.api_key}":
            return self._json(401, {"error": "Unauthorized"})
        if path in kind.missing:
            return self._json(404, {"detail": "Not Found"})
        models = [{"id": kind.model, "root": "/policies/v0", "max_model_len": kind.max_model_len}]
        answers: dict[str, dict[str, Any]] = {
            "/health": {},
            "/version": {"version": kind.release},
            "/v1/models": {"data": [*models, *({"id": name} for name in kind.adapters)]},
            "/is_paused": {"is_paused": False},
            "/weight_info": {"weight_version": kind.label},
        }
        if path in answers:
            return self._json(200, answers[path])
        if path == "/inference/v1/generate":
            return self._json(*self._generate(body))
        if path == "/update_weights" and kind.refused and kind.refused in body["update_info"]["path"]:
            return self._json(500, {"error": {"message": f"{body['update_info']['path']} is of another model"}})
        if path == "/v1/load_lora_adapter":
            if (name := body["lora_name"]) in kind.adapters:
                return self._json(400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}})
            kind.adapters = (*kind.adapters, body["lora_name"])
        if path == "/v1/unload_lora_adapter":
            kind.adapters = tuple(name for name in kind.adapters if name != body["lora_name"])
        if path in ("/start_weight_update", "/collective_rpc") and kind.stuck is not None:
            kind.stuck.wait(60)
        if path == "/collective_rpc" and body["method"] == "rollwright_read_files":
            return self._json(200, {"results": [kind.readings.pop(0)]})
        if path == "/collective_rpc" and body["method"] == "rollwright_device":
            return self._json(200, {"results": ["cpu"] * kind.workers})
        if path == "/collective_rpc" and body["method"] == "rollwright_join":
            kind.bodies.append(body)
            return self._json(200, {"results": [kind.joins.pop(0) if kind.joins else {"done": True, "fault": ""}]})
        if path == "/finish_weight_update":
            kind.label = body["weight_version"]
        return self._json(200, {})

    def _generate(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        kind = type(self)
        if not body:
            return 400, {"error": {"message": "token_ids: Field required"}}
        if body["model"] not in (kind.model, *kind.adapters):
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        kind.bodies.append(body)
        time.sleep(kind.delay)
        if kind.generated is not None:
            return kind.generated(body)
        return 200, turn(body, kind.label)

    def _json(self, status: int, document: dict[str, Any]) -> None:
        self.answer(status, json.dumps(document), "application/json")


def turn(body: dict[str, Any], label: str) -> dict[str, Any]:
    """vLLM's answer: one image placeholder becomes three."""
    ids: list[int] = []
    places = []
    for token in body["token_ids"]:
        if token == IMAGE:
            places.append({"offset": len(ids), "length": EXPANSION})
        ids += [token] * (EXPANSION if token == IMAGE else 1)
    count = body["sampling_params"]["max_tokens"]
    return {
        "prompt_token_ids": ids,
        "mm_placeholders": {"image": places} if places else None,
        "choices": [
            {
                "token_ids": [7] * count,
                "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}] * count},
                "finish_reason": "length",
                "weight_versions": [{"version": label, "start": 0, "end": count}],
            }
        ],
    }


def fake(**attributes: Any) -> type[FakeVllm]:
    """A server's class with a state of its own."""
    return type("Fake", (FakeVllm,), {"calls": [], "bodies": [], **attributes})


if __name__ == "__main__":
    worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    Path(sys.argv[2]).write_text(str(worker.pid))
    if "--broken" in sys.argv:
        raise SystemExit("ValueError: no such model")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), fake()).serve_forever()

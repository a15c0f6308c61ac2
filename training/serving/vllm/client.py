"""HTTP client of one vLLM server: token ids and images in, tokens and log-probs out.

A prompt is sent with one placeholder per image, which the server expands. The expanded prompt comes
back and is compared with ours, because the trainer trains on ours.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from envs.types import ConfigError, EngineError, FinishReason, PolicyError
from training.policy.rendered import RenderedPrompt
from training.serving.engine import Generation, GenerationRequest, Picture, VersionSpan, noise_seed
from training.serving.vllm.command import SERVED_NAME

GENERATE = "/inference/v1/generate"
VERSIONS = "0.32."
"""Prefix of the supported vLLM releases; scripts/setup_vllm installs one of them."""
ADAPTER_PREFIX = f"{SERVED_NAME}-v"
"""Prefix of adapter names; the version follows."""
CONNECT_SECONDS = 10.0
ASK_SECONDS = 60.0
"""Limit of a request without the model. Other jobs on the HTTP side's core delay it by seconds."""
TURN_SECONDS = 600.0
"""Limit of one turn, including the wait in the server's queue."""
KEPT_SECONDS = 3.0
"""Seconds for which an idle connection is reused; vLLM closes it after 5 s."""
BAN = -100.0
"""Logit bias of banned tokens: vLLM's minimum; e^-100 is zero in float32."""
_FINISHES: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "aborted"}
_ENGINE_DOWN = frozenset({429, 502, 503, 504})
_ENGINE_DEAD = ("EngineCore", "EngineDead", "method failed: cancelled")
"""Texts of a 500 from a server whose worker died, before or within a call of it; the server ends
soon."""
_CLIENT_MISTAKES = ("prompt replacement", "multi-modal", "multimodal", "placeholder")
"""Texts of a 500 that a retry would only repeat."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Properties that a server reports."""

    release: str
    """Release of vLLM."""
    model: str
    """Folder or name of the model that the server was started with."""
    max_model_len: int
    """Largest number of tokens of prompt and turn."""


class ServerClient:
    """Client of one server.

    Args:
        address: ``http://HOST:PORT``.
        api_key: Key that is sent with every request; empty: none.
        banned: Token ids that must never be generated.
        ends: Token ids that end a turn.
        media_root: Folder whose images the server reads by their paths; others are sent. ``None``:
            all are sent.
        turn_seconds: Limit of one turn.
        ask_seconds: Limit of a request that needs no model.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str = "",
        banned: Sequence[int] = (),
        ends: Sequence[int] = (),
        media_root: Path | None = None,
        turn_seconds: float = TURN_SECONDS,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self.address = address.rstrip("/")
        self._bias = {str(token): BAN for token in banned}
        self._banned = frozenset(banned)
        self._ends = list(ends)
        self._media_root = media_root.resolve() if media_root is not None else None
        self._turn_seconds = turn_seconds
        self._facts: ServerFacts | None = None
        self._http = httpx.AsyncClient(
            base_url=self.address,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(ask_seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEPT_SECONDS),
            trust_env=False,  # the machine's proxy must not get requests to its own ports
        )

    async def close(self) -> None:
        """Close the connections; the server aborts running turns."""
        await self._http.aclose()

    async def check(self) -> ServerFacts:
        """Check once that this server can serve the policy, and return its properties.

        Raises:
            ConfigError: the server is not vLLM, has another release or lacks a flag; the message
                says which.
            EngineError: the server does not answer.
        """
        if self._facts is None:
            release = str((await self._get("/version")).get("version", ""))
            if not release.startswith(VERSIONS):
                raise ConfigError(
                    f"{self.address} is vLLM {release or 'of an unknown release'}, and Rollwright knows {VERSIONS}x; "
                    "`make vllm` installs it"
                )
            await self._get("/weight_info")
            await self._check_route()
            models = (await self._get("/v1/models"))["data"]
            model = next((entry for entry in models if entry["id"] == SERVED_NAME), None)
            if model is None:
                raise ConfigError(
                    f"{self.address} serves {', '.join(str(entry['id']) for entry in models) or 'no model'}: start vLLM with "
                    f"--served-model-name {SERVED_NAME}"
                )
            self._facts = ServerFacts(release, str(model["root"]), int(model["max_model_len"]))
        return self._facts

    async def _check_route(self) -> None:
        """Check that the server has the generation route.

        An existing route refuses GET with 405; an empty POST would log a traceback on the server.
        """
        response = await self._send("GET", GENERATE)
        if response.status_code in (httpx.codes.NOT_FOUND, httpx.codes.FORBIDDEN):
            raise ConfigError(f"{self.address} does not serve {GENERATE}: start vLLM with --enable-scale-out")

    async def weight_version(self) -> int | None:
        """Return the served policy version; ``None`` for the weights of the server's start."""
        return read_version((await self._get("/weight_info"))["weight_version"])

    async def check_alive(self, seconds: float) -> None:
        """Send a request that the engine's process answers between two steps of its model.

        Raises:
            EngineError: the server does not answer within ``seconds``.
        """
        await self._ask(
            "GET", "/is_paused", "/is_paused", timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
        )

    async def adapters(self) -> list[int]:
        """Return the versions of the loaded adapters, ascending."""
        models = (await self._get("/v1/models"))["data"]
        names = (str(entry["id"]).removeprefix(ADAPTER_PREFIX) for entry in models if entry["id"] != SERVED_NAME)
        return sorted(int(name) for name in names if name.isdecimal())

    async def unload_adapter(self, version: int, seconds: float) -> None:
        """Unload the adapter of a version. Raises the errors of `post`."""
        await self.post("/v1/unload_lora_adapter", seconds, json={"lora_name": adapter_name(version)})

    async def generate(self, request: GenerationRequest, version: int, *, adapter: bool = False) -> Generation:
        """Generate one turn.

        Args:
            version: Served version; separates its cache entries from those of other versions.
            adapter: True if the version is an adapter; the server's label is its base model's then.

        Raises:
            EngineError: the server is dead, restarting or too slow, or does not have the version.
            PolicyError: the request is wrong, or the server expands its prompt differently; a retry
                does not help.
        """
        facts = await self.check()
        prompt = request.prompt
        if len(prompt.image_places) != len(request.pictures):
            raise PolicyError(
                f"turn {request.key}: the prompt has {len(prompt.image_places)} image placeholders and "
                f"{len(request.pictures)} pictures; it needs one placeholder per picture"
            )
        if len(prompt.ids) + request.max_new_tokens > facts.max_model_len:
            return Generation((), (), (), "context_overflow")
        body = {
            "model": adapter_name(version) if adapter else SERVED_NAME,
            "token_ids": prompt.short_ids,
            "content_parts": [self._content_part(picture, version) for picture in request.pictures],
            "sampling_params": self._sampling(request),
            "return_token_ids": True,
            "cache_salt": str(version),
        }
        try:
            answer = await self._ask("POST", GENERATE, f"turn {request.key}", json=body, timeout=self._turn_timeout())
        except PolicyError as error:
            if adapter and version not in await self.adapters():
                raise EngineError(f"{self.address} has no adapter of v{version} (was it restarted?)") from error
            raise
        compare_prompts(prompt, answer, f"turn {request.key} at {self.address}")
        return self._generation(answer, request.key, version if adapter else None)

    def _turn_timeout(self) -> httpx.Timeout:
        return httpx.Timeout(self._turn_seconds, connect=CONNECT_SECONDS, pool=None)

    def _content_part(self, picture: Picture, version: int) -> dict[str, str]:
        """Return the content part of an image. Its cache key names content and version.

        Each version's vision tower gives other embeddings, so the versions must not share them.
        """
        digest = hashlib.sha256(picture.jpeg).hexdigest()
        return {"type": "image_url", "url": self._url(picture), "uuid": f"{digest}@{version}"}

    def _url(self, picture: Picture) -> str:
        if self._media_root is not None and picture.path is not None:
            path = picture.path.resolve()
            if path.is_relative_to(self._media_root):
                return path.as_uri()
        return "data:image/jpeg;base64," + base64.b64encode(picture.jpeg).decode()

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        """Return vLLM's sampling parameters. Greedy turns have the log-probs of temperature 1."""
        return {
            "temperature": 0.0 if request.greedy else request.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "seed": noise_seed(request.seed, request.key),
            "max_tokens": request.max_new_tokens,
            "stop_token_ids": self._ends,
            "logit_bias": self._bias or None,
            "logprobs": 0,
            "detokenize": False,
            "skip_special_tokens": False,
        }

    def _generation(self, answer: Mapping[str, Any], key: str, adapter: int | None) -> Generation:
        choice = answer["choices"][0]
        tokens = tuple(choice["token_ids"] or ())
        logprobs = tuple(float(entry["logprob"]) for entry in (choice["logprobs"] or {}).get("content") or ())
        if choice["finish_reason"] not in _FINISHES or len(logprobs) != len(tokens):
            raise EngineError(
                f"turn {key} at {self.address}: {len(tokens)} tokens, {len(logprobs)} log-probs, "
                f"finish reason {choice['finish_reason']}"
            )
        if banned := sorted(self._banned.intersection(tokens)):
            raise PolicyError(f"turn {key} at {self.address}: the banned token ids {banned} were generated")
        spans = self._spans(choice, len(tokens)) if adapter is None else (VersionSpan(adapter, 0, len(tokens)),)
        return Generation(tokens, logprobs, spans, _FINISHES[choice["finish_reason"]])

    def _spans(self, choice: Mapping[str, Any], tokens: int) -> tuple[VersionSpan, ...]:
        spans = []
        for labelled in choice.get("weight_versions") or ():
            version = read_version(labelled["version"])
            if version is None:
                raise EngineError(f"{self.address} serves its first weights, no published version (was it restarted?)")
            spans.append(VersionSpan(version, labelled["start"], labelled["end"]))
        if tokens and (not spans or spans[-1].end != tokens):
            raise EngineError(f"{self.address} does not say which version made which of {tokens} tokens: {spans}")
        return tuple(spans)

    async def post(self, path: str, seconds: float, **send: Any) -> dict[str, Any]:
        """Send a control request that may take ``seconds``, and return the answer.

        It has its own connection, because vLLM closes a connection after an answer of 500.

        Raises:
            EngineError: the server is dead or too slow.
            PolicyError: the server refuses; the message has its reason.
        """
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
        return await self._ask("POST", path, path, timeout=timeout, headers={"Connection": "close"}, **send)

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            return await self._ask("GET", path, path)
        except PolicyError as error:
            raise ConfigError(
                f"{self.address} does not serve {path} ({error}): start vLLM with VLLM_SERVER_DEV_MODE=1"
            ) from error

    async def _ask(self, method: str, path: str, what: str, **send: Any) -> dict[str, Any]:
        response = await self._send(method, path, **send)
        if response.is_success:
            is_json = response.headers.get("Content-Type", "").startswith("application/json")
            return dict(response.json() or {}) if is_json else {}
        reason = error_text(response)
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ConfigError(
                f"{self.address} refuses us ({response.status_code}): set the API key that it was started with"
            )
        down = response.status_code in _ENGINE_DOWN or any(text in reason for text in _ENGINE_DEAD)
        unknown = path == GENERATE and response.is_server_error and not any(text in reason for text in _CLIENT_MISTAKES)
        if down or unknown:
            raise EngineError(f"{what} at {self.address}: {response.status_code}: {reason}")
        raise PolicyError(f"{what} at {self.address}: {response.status_code}: {reason}")

    async def _send(self, method: str, path: str, **send: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **send)
        except httpx.TimeoutException as error:
            raise EngineError(f"{self.address} does not answer {path} in time ({type(error).__name__})") from error
        except httpx.TransportError as error:
            raise EngineError(f"{self.address} cannot be reached: {error or type(error).__name__}") from error


def adapter_name(version: int) -> str:
    """Return the name under which a version's adapter is loaded."""
    return f"{ADAPTER_PREFIX}{version}"


def read_version(label: str) -> int | None:
    """Return the policy version of a weight label; ``None`` if it is not ours."""
    return int(label) if label.isdecimal() else None


def error_text(response: httpx.Response) -> str:
    """Return the reason in a server's refusal, as one line."""
    try:
        reason = response.json()
    except ValueError:
        reason = response.text
    if isinstance(reason, dict):
        reason = reason.get("error", reason.get("detail", reason))
    if isinstance(reason, dict):
        reason = reason.get("message", reason)
    return " ".join(str(reason).split())[:500]


def compare_prompts(ours: RenderedPrompt, answer: Mapping[str, Any], where: str) -> None:
    """Check that the server expanded the prompt and placed the images as we did.

    Raises:
        PolicyError: they differ; the message says where and names the likely cause.
    """
    theirs = tuple(answer.get("prompt_token_ids") or ())
    images = (answer.get("mm_placeholders") or {}).get("image") or ()
    places = tuple((image["offset"], image["length"]) for image in images)
    if theirs == ours.ids and places == ours.image_places:
        return
    same = next((index for index, pair in enumerate(zip(theirs, ours.ids, strict=False)) if pair[0] != pair[1]), None)
    first = f", from position {same} on" if same is not None else ""
    raise PolicyError(
        f"{where}: the server made another prompt than the trainer trains on{first}: {len(theirs)} ids with images "
        f"at {list(places)}, ours {len(ours.ids)} with images at {list(ours.image_places)}. The ids that are sent must have "
        "one placeholder for each image, and the server's checkpoint the policy's preprocessor_config.json"
    )

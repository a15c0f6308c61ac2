"""HTTP client of one vLLM server: token ids and images in, tokens and log-probs out.

Prompts are sent with one placeholder for each image, which the server expands itself; what it made of them comes back and is compared
with our own, because a turn of any other prompt is not what the trainer would train on.
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
"""The releases whose routes and answers are known here; scripts/setup_vllm installs one of them."""
ADAPTER_PREFIX = f"{SERVED_NAME}-v"
CONNECT_SECONDS = 10.0
ASK_SECONDS = 60.0
"""For an answer that needs no model: seconds pass where other jobs take the HTTP side's core."""
TURN_SECONDS = 600.0
"""For one turn, waiting in the server's queue included."""
KEPT_SECONDS = 3.0
"""An idle connection is used again for so long; vLLM closes it after 5 s."""
BAN = -100.0
"""vLLM's smallest bias of a logit; e^-100 is zero in float32."""
_FINISHES: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "aborted"}
_ENGINE_DOWN = frozenset({429, 502, 503, 504})
_ENGINE_DEAD = ("EngineCore", "EngineDead")
"""In the text of a 500 of a server whose worker died; it ends soon."""
_CLIENT_MISTAKES = ("prompt replacement", "multi-modal", "multimodal", "placeholder")
"""In the text of a 500 that asking again would give again."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself."""

    release: str
    """Of vLLM."""
    model: str
    """The folder or name that it was started with."""
    max_model_len: int


class ServerClient:
    """Asks one server.

    Args:
        address: ``http://HOST:PORT``.
        api_key: Sent with every request; empty: none.
        banned: Token ids that must never be generated.
        ends: Token ids that end a turn.
        media_root: Images below this folder are named, and the server reads them; others are sent. ``None``: all are sent.
        turn_seconds: Limit of one turn.
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
        self._ask_seconds = ask_seconds
        self._facts: ServerFacts | None = None
        self._http = httpx.AsyncClient(
            base_url=self.address,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(ask_seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEPT_SECONDS),
            trust_env=False,  # a proxy of the machine is none for its own ports
        )

    async def close(self) -> None:
        """Close the connections; turns under way are aborted by the server."""
        await self._http.aclose()

    async def check(self) -> ServerFacts:
        """Find out whether this server can serve us. Asked once.

        Raises:
            ConfigError: no vLLM, another release, or started without what we need; says what.
            EngineError: it does not answer.
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
            model = next((each for each in models if each["id"] == SERVED_NAME), None)
            if model is None:
                raise ConfigError(
                    f"{self.address} serves {', '.join(str(each['id']) for each in models) or 'no model'}: start vLLM with "
                    f"--served-model-name {SERVED_NAME}"
                )
            self._facts = ServerFacts(release, str(model["root"]), int(model["max_model_len"]))
        return self._facts

    async def _check_route(self) -> None:
        """GET is refused with 405 where the route is there; an empty POST would leave a traceback in the server's log."""
        response = await self._send("GET", GENERATE)
        if response.status_code in (httpx.codes.NOT_FOUND, httpx.codes.FORBIDDEN):
            raise ConfigError(f"{self.address} does not serve {GENERATE}: start vLLM with --enable-scale-out")

    async def weight_version(self) -> int | None:
        """The policy version that is served; ``None`` for the weights that the server was started with."""
        return read_version((await self._get("/weight_info"))["weight_version"])

    async def check_alive(self, seconds: float) -> None:
        """Ask something that the engine's own process answers between two steps of its model.

        Raises:
            EngineError: no answer after ``seconds``.
        """
        await self._ask(
            "GET", "/is_paused", "/is_paused", timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
        )

    async def adapters(self) -> list[int]:
        """The versions of the adapters that are loaded, ascending."""
        models = (await self._get("/v1/models"))["data"]
        names = (str(each["id"]).removeprefix(ADAPTER_PREFIX) for each in models if each["id"] != SERVED_NAME)
        return sorted(int(name) for name in names if name.isdecimal())

    async def unload_adapter(self, version: int, seconds: float) -> None:
        """Unload the adapter of a version. Raises as `post`."""
        await self.post("/v1/unload_lora_adapter", seconds, json={"lora_name": adapter_name(version)})

    async def generate(self, request: GenerationRequest, version: int, *, adapter: bool = False) -> Generation:
        """One turn.

        Args:
            version: That is served now: keeps what is cached for one version from the next.
            adapter: The version is an adapter's; the server's label is its base model's.

        Raises:
            EngineError: the server is dead, restarting, too slow, or does not have the version.
            PolicyError: the request is wrong, or the server makes another prompt of it; asking again does not help.
        """
        facts = await self.check()
        prompt = request.prompt
        if len(prompt.image_places) != len(request.pictures):
            raise PolicyError(
                f"turn {request.key}: the prompt has {len(prompt.image_places)} image placeholders and "
                f"{len(request.pictures)} pictures; one placeholder for each picture is needed"
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
                raise EngineError(f"{self.address} has no adapter of v{version} (it was restarted?)") from error
            raise
        compare_prompts(prompt, answer, f"turn {request.key} at {self.address}")
        return self._generation(answer, request.key, version if adapter else None)

    def _turn_timeout(self) -> httpx.Timeout:
        return httpx.Timeout(self._turn_seconds, connect=CONNECT_SECONDS, pool=None)

    def _content_part(self, picture: Picture, version: int) -> dict[str, str]:
        """One image, named by its content and the version: what the vision tower of one version made of it is not the next one's."""
        digest = hashlib.sha256(picture.jpeg).hexdigest()
        return {"type": "image_url", "url": self._url(picture), "uuid": f"{digest}@{version}"}

    def _url(self, picture: Picture) -> str:
        if self._media_root is not None and picture.path is not None:
            path = picture.path.resolve()
            if path.is_relative_to(self._media_root):
                return path.as_uri()
        return "data:image/jpeg;base64," + base64.b64encode(picture.jpeg).decode()

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        """vLLM's parameters of one turn. Greedy turns have the log-probs of temperature 1."""
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
        logprobs = tuple(float(each["logprob"]) for each in (choice["logprobs"] or {}).get("content") or ())
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
        for each in choice.get("weight_versions") or ():
            version = read_version(each["version"])
            if version is None:
                raise EngineError(
                    f"{self.address} serves the weights that it was started with, no published version (it was restarted?)"
                )
            spans.append(VersionSpan(version, each["start"], each["end"]))
        if tokens and (not spans or spans[-1].end != tokens):
            raise EngineError(f"{self.address} does not say which version made which of {tokens} tokens: {spans}")
        return tuple(spans)

    async def post(self, path: str, seconds: float, **send: Any) -> dict[str, Any]:
        """A control request that may take ``seconds``, on a connection of its own: vLLM closes one after it answered 500.

        Raises:
            EngineError: the server is dead or too slow.
            PolicyError: it refuses; has its reason.
        """
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
        return await self._ask("POST", path, path, timeout=timeout, headers={"Connection": "close"}, **send)

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            return await self._ask("GET", path, path)
        except PolicyError as error:
            raise ConfigError(
                f"{self.address} does not serve {path} ({error}): a vLLM server with VLLM_SERVER_DEV_MODE=1 in its environment is "
                "needed there"
            ) from error

    async def _ask(self, method: str, path: str, what: str, **send: Any) -> dict[str, Any]:
        response = await self._send(method, path, **send)
        if response.is_success:
            is_json = response.headers.get("Content-Type", "").startswith("application/json")
            return dict(response.json() or {}) if is_json else {}
        said = error_text(response)
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ConfigError(
                f"{self.address} refuses us ({response.status_code}): set the API key that it was started with"
            )
        down = response.status_code in _ENGINE_DOWN or any(each in said for each in _ENGINE_DEAD)
        unknown = path == GENERATE and response.is_server_error and not any(each in said for each in _CLIENT_MISTAKES)
        if down or unknown:
            raise EngineError(f"{what} at {self.address}: {response.status_code}: {said}")
        raise PolicyError(f"{what} at {self.address}: {response.status_code}: {said}")

    async def _send(self, method: str, path: str, **send: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **send)
        except httpx.TimeoutException as error:
            raise EngineError(f"{self.address} does not answer {path} in time ({type(error).__name__})") from error
        except httpx.TransportError as error:
            raise EngineError(f"{self.address} cannot be reached: {error or type(error).__name__}") from error


def adapter_name(version: int) -> str:
    """Name under which the adapter of a version is loaded."""
    return f"{ADAPTER_PREFIX}{version}"


def read_version(label: str) -> int | None:
    """A policy version from vLLM's label of weights; ``None`` for any label that we did not give."""
    return int(label) if label.isdecimal() else None


def error_text(response: httpx.Response) -> str:
    """What a server says of its refusal, in one line."""
    try:
        said = response.json()
    except ValueError:
        said = response.text
    if isinstance(said, dict):
        said = said.get("error", said.get("detail", said))
    if isinstance(said, dict):
        said = said.get("message", said)
    return " ".join(str(said).split())[:500]


def compare_prompts(ours: RenderedPrompt, answer: Mapping[str, Any], where: str) -> None:
    """The server's expanded prompt and image places must be ours.

    Raises:
        PolicyError: says where they differ and of what it may come.
    """
    theirs = tuple(answer.get("prompt_token_ids") or ())
    found = (answer.get("mm_placeholders") or {}).get("image") or ()
    places = tuple((each["offset"], each["length"]) for each in found)
    if theirs == ours.ids and places == ours.image_places:
        return
    same = next((index for index, pair in enumerate(zip(theirs, ours.ids, strict=False)) if pair[0] != pair[1]), None)
    first = f", from position {same} on" if same is not None else ""
    raise PolicyError(
        f"{where}: the server made another prompt than the trainer trains on{first}: {len(theirs)} ids with images at {list(places)}, "
        f"ours {len(ours.ids)} with images at {list(ours.image_places)}. The ids that are sent must have one placeholder for each "
        "image, and the server's checkpoint the same preprocessor_config.json as the policy's"
    )

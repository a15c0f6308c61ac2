"""A client of the environment server that is used as `envs.open_env` is.

::

    async with RemoteEnv("http://127.0.0.1:8700", "miniwob/click-test", seed=7) as env:
        step = await env.reset()
        step = await env.step(Click(element=1))
        print(step.reward, step.done)

A request that got no answer is sent again with the same epoch and number, and the server does it
once. An episode whose session is lost ends without a reward; the next reset opens another session.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Self

import httpx
import orjson

from envs.background import start_background
from envs.prompts import ObservationMode
from envs.server.sessions import SessionCode, SessionError
from envs.step_result import AnyAction, StepResult
from envs.types import (
    BrowserError,
    CapacityError,
    ConfigError,
    Observation,
    RewardBundle,
    RollwrightError,
    StopReason,
    TaskError,
    Trajectory,
    WebTask,
)

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""Seconds for which a request without an answer is sent again: a server's restart takes a few."""

CLOSE_SECONDS = 5.0
"""Seconds for which closing is tried: else the session's lease ends it."""

FIRST_WAIT, MAX_WAIT = 0.1, 5.0
"""Seconds before a request is sent again, first and at most; each wait is twice the one before."""

ANSWER_SECONDS = 150.0
"""Seconds until a connection without an answer counts as lost; the server answers within 120."""

LOST = (SessionCode.UNKNOWN, SessionCode.CLOSED, SessionCode.EXPIRED)
"""Refusals that say that there is no session any more: the server restarted, or the lease ended."""


class RemoteEnv:
    """A session on an environment server; used in ``async with``."""

    def __init__(
        self,
        url: str,
        task: str | WebTask,
        *,
        seed: int | None = None,
        key: str = "",
        mode: ObservationMode = "text",
        screenshots: bool = True,
        lease_seconds: float | None = None,
        keep_alive: bool = False,
        retry_seconds: float = RETRY_SECONDS,
        client: httpx.AsyncClient | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            url: Address of the server.
            task: The same as of `envs.open_env`.
            seed: The same as of `envs.open_env`.
            key: Key of the server; empty for a server without keys.
            mode: ``set_of_marks`` draws the elements' numbers on the screenshots.
            screenshots: False leaves the screenshots out of the answers.
            lease_seconds: Seconds without a call after which the server closes the session; the
                server's if not given.
            keep_alive: True renews the lease between calls, for slow policies.
            retry_seconds: Seconds for which a request without an answer, or an opening without a
                free place, is sent again.
            client: Client that several environments share; an own one if not given.
            options: ``instruction``, ``horizon``, ``date``, ``repeats``, ``stop_on_invalid``,
                ``reward``, ``parser``, as of `envs.open_env`; the last two are names.
        """
        self.text = ""
        """The last page as text, as the server renders it for an agent."""
        self.trajectory: Trajectory | None = None
        """The record of the last ended episode, with its reward."""
        self.seed = seed
        """Seed of the next episode; ``None`` before it is opened without one."""
        whole = task.model_dump(mode="json") if isinstance(task, WebTask) else task
        asked = {"task": whole, "seed": seed, "mode": mode, "lease_seconds": lease_seconds, **options}
        self._asked = {name: value for name, value in asked.items() if value is not None}
        self._url, self._headers = url.rstrip("/"), {"x-api-key": key} if key else {}
        self._screenshots, self._retry_seconds, self._keep_alive = screenshots, retry_seconds, keep_alive
        self._client = client
        self._is_open = False
        self._task: WebTask | None = None
        self.session_id = ""
        """Name of its session at the server; empty while it has none."""
        self._lease = 0.0
        self._epoch = self._number = 0
        self._last: StepResult | None = None
        self._stack = AsyncExitStack()
        self._keeping: set[asyncio.Task[None]] = set()

    @property
    def task(self) -> WebTask:
        """The task that is attempted.

        Raises:
            BrowserError: The environment is not open.
        """
        if self._task is None:
            raise BrowserError("the environment is not open: use `async with RemoteEnv(…) as env`")
        return self._task

    @property
    def reward(self) -> RewardBundle | None:
        """The parts of the last episode's reward; ``None`` before its end."""
        return None if self.trajectory is None else self.trajectory.reward

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._client is None:
                timeout = httpx.Timeout(10.0, read=ANSWER_SECONDS)
                self._client = await stack.enter_async_context(httpx.AsyncClient(timeout=timeout))
                stack.callback(self._forget_client)
            await self._open()
            stack.push_async_callback(self._close)
            self._stack, self._is_open = stack.pop_all(), True
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def close(self) -> None:
        """Close the session; closing twice is one close."""
        await self._stack.aclose()

    async def reset(self, seed: int | None = None) -> StepResult:
        """Begin an episode; a lost session is opened anew.

        Args:
            seed: Seed of this and the next episodes; the last one again if not given.

        Raises:
            BrowserError: The page did not come up, or the server does not answer.
            TaskError: The seed is not one of the task's.
        """
        self._check_open()
        self.seed = self.seed if seed is None else seed
        self.trajectory, self._last = None, None
        if not self.session_id:
            await self._open()
        try:
            return await self._begin()
        except SessionError as error:
            if error.code not in LOST:
                raise
            await self._open()
            return await self._begin()

    async def _begin(self) -> StepResult:
        body = {"seed": self.seed, "epoch": self._epoch + 1}
        answer = await self._ask("POST", f"/sessions/{self.session_id}/reset", body)
        self._epoch, self._number = self._epoch + 1, 0
        return await self._result(answer)

    async def step(self, action: AnyAction) -> StepResult:
        """Carry out an action, once.

        A session that is lost, or a server that does not answer, ends the episode with the reward
        ``None``.

        Raises:
            TaskError: No episode is going on.
            ConfigError: This is no action, dictionary or text.
        """
        self._check_open()
        last = self._last
        if last is None or last.done:
            raise TaskError("the episode is over, or did not begin: call reset()")
        body = {"action": _as_json(action), "epoch": self._epoch, "step": self._number + 1}
        try:
            answer = await self._ask("POST", f"/sessions/{self.session_id}/step", body)
            self._number += 1
            return await self._result(answer)
        except SessionError as error:
            if error.code not in LOST:
                raise
            cause: RollwrightError = error
        except BrowserError as failure:
            cause = failure
        self.session_id = ""
        stop, why = StopReason.BROWSER_ERROR, f"the session is lost: {cause}"
        self._last = StepResult(None, True, last.observation, last.screenshot, stop, why)
        return self._last

    async def lend(self) -> str:
        """Lend the episode's page to another agent and return its DevTools address.

        Each command of the agent renews the session's lease.

        Raises:
            SessionError: No episode is going on, or the session is lost.
        """
        self._check_open()
        return str((await self._ask("POST", f"/sessions/{self.session_id}/devtools"))["cdp_url"])

    async def _result(self, answer: Mapping[str, Any]) -> StepResult:
        self.text = answer["text"]
        stop = answer["stop"]
        result = StepResult(
            answer["reward"],
            answer["done"],
            Observation.model_validate(answer["observation"]),
            base64.b64decode(answer.get("screenshot", "")),
            None if stop is None else StopReason(stop),
            answer["abstained"],
        )
        if result.done:
            record = await self._ask("GET", f"/sessions/{self.session_id}/trajectory")
            self.trajectory = Trajectory.model_validate(record)
        self._last = result
        return result

    async def _open(self) -> None:
        session_id = uuid.uuid4().hex
        opened = await self._ask("POST", "/sessions", {**self._asked, "session_id": session_id})
        self.session_id, self._epoch, self._number = session_id, 0, 0
        self._task = WebTask.model_validate(opened["task"])
        self.seed = opened["seed"] if self.seed is None else self.seed
        self._lease = float(opened["lease_seconds"])
        if self._keep_alive and not self._keeping:
            start_background(self._keep(), self._keeping, f"lease of session {session_id}")

    async def _close(self) -> None:
        self._is_open = False
        for task in self._keeping:
            task.cancel()
        session_id, self.session_id = self.session_id, ""
        if session_id:
            try:
                seconds = min(CLOSE_SECONDS, self._retry_seconds)
                await self._ask("DELETE", f"/sessions/{session_id}", seconds=seconds)
            except SessionError as error:
                if error.code not in LOST:
                    raise
            except BrowserError as error:
                logger.warning("session %s is left to its lease: %s", session_id, error)

    async def _keep(self) -> None:
        """Renew the lease three times in its length."""
        while True:
            await asyncio.sleep(self._lease / 3)
            if self.session_id:
                try:
                    await self._ask("GET", f"/sessions/{self.session_id}")
                except (SessionError, BrowserError):
                    continue  # the next reset or step says it

    def _check_open(self) -> None:
        if not self._is_open:
            raise BrowserError("the environment is not open: use `async with RemoteEnv(…) as env`")

    def _forget_client(self) -> None:
        self._client = None  # it is closed: entering again makes another

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float | None = None
    ) -> Any:
        """Send a request until it is answered."""
        loop = asyncio.get_running_loop()
        end, wait = loop.time() + (self._retry_seconds if seconds is None else seconds), FIRST_WAIT
        while True:
            problem: RollwrightError
            try:
                return await self._send(method, path, body)
            except httpx.TransportError as error:
                problem = BrowserError(f"no answer from {self._url}: {type(error).__name__}: {error}")
                problem.__cause__ = error
            except (_NotYetError, CapacityError) as refused:
                problem = refused
            if loop.time() + wait > end:
                raise problem
            await asyncio.sleep(wait)
            wait = min(MAX_WAIT, wait * 2)

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        assert self._client is not None
        query = {"screenshot": "true"} if self._screenshots and method == "POST" and path != "/sessions" else None
        answer = await self._client.request(
            method, f"{self._url}{path}", json=body, params=query, headers=self._headers
        )
        if answer.is_success:
            return orjson.loads(answer.content)  # a fifth of the time of httpx
        raise _error_of(answer)


class _NotYetError(BrowserError):
    """The server is at it still."""


def _as_json(action: AnyAction) -> Any:
    if isinstance(action, str):
        return action
    if isinstance(action, Mapping):
        return dict(action)
    if hasattr(action, "model_dump"):
        return action.model_dump(mode="json")
    raise ConfigError(f"{action!r} is no action; give one of envs (Click(element=1)), a dictionary, or a text")


def _error_of(answer: httpx.Response) -> RollwrightError:
    """Return the error of a refused request, of the kind that `envs.open_env` raises."""
    try:
        error = answer.json()["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):  # of a proxy between us and the server
        return _NotYetError(f"{answer.url} answered {answer.status_code}: {answer.text[:200]}")
    if code == SessionCode.DRAINING or answer.status_code in (429, 503):
        return CapacityError(message)
    if code in set(SessionCode):
        return SessionError(SessionCode(code), message)
    if code in ("task", "episode_over"):
        return TaskError(message)
    if code == "browser":
        return BrowserError(message)
    if code == "no_body" or answer.status_code == 504:
        return _NotYetError(message)
    if answer.status_code >= 500:
        return BrowserError(f"{answer.url} answered {answer.status_code}: {message}")
    return ConfigError(message)

"""One client's session: OpenEnv's environment over a session of the server's table."""

from __future__ import annotations

import asyncio
import base64
import html
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any, TypeVar

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from envs.adapters.openenv.shared import SharedSessions
from envs.adapters.openenv.types import OpenEnvAction, OpenEnvObservation, OpenEnvState, read_reset
from envs.env import WebEnv
from envs.prompts.user_turn import element_line
from envs.server import SessionError
from envs.server.sessions import SessionCode
from envs.step_result import StepResult
from envs.types import Observation, WebTask

T = TypeVar("T")


class OpenEnvEnvironment(Environment):
    """One client's session: an environment of the server's table."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, shared: SharedSessions) -> None:
        super().__init__()
        self._shared = shared
        self._session_id = ""
        self._opened: tuple[str | WebTask, dict[str, Any]] = "", {}
        self._state = OpenEnvState()
        self._last: OpenEnvObservation | None = None
        self._request_id: str | None = None
        self._lock = asyncio.Lock()

    @property
    def holds_browser(self) -> bool:
        """True while the session has a place in the server's table."""
        return self._lock.locked() or self._session_id in self._shared.table.sessions

    @property
    def state(self) -> OpenEnvState:
        """The state, which needs no browser."""
        return self._state

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> OpenEnvObservation:
        """Begin an episode.

        Args:
            seed: Seed of the page; without one the task's first, then the last one again.
            options: ``task`` (an id; the last one again without it) or ``split`` and ``index``,
                ``instruction``, ``horizon``.

        Raises:
            ConfigError: An argument is wrong.
            TaskError: There is no such task or seed.
            CapacityError: All sessions are in use.
            BrowserError: The page did not come up.
        """
        given = read_reset({"seed": seed, "episode_id": episode_id, **options})
        async with self._lock:
            given = self._shared.choose(given, self._state.task)
            task, table = self._shared.find(given.task or "", given), self._shared.table
            of_address = {"instruction": given.instruction, "horizon": given.horizon} if isinstance(task, str) else {}
            if self._session_id not in table.sessions or (task, of_address) != self._opened:
                await self.give_back()
                options = {**of_address, "seed": given.seed}
                self._session_id = (await table.open(task, **options)).session_id
                self._opened = task, of_address
            session = table.find(self._session_id)
            episode_id = given.episode_id or f"{session.session_id}-{session.epoch + 1}"
            self._last, self._request_id = None, None
            result = await table.reset(self._session_id, seed=given.seed)
            self._state = OpenEnvState(episode_id=episode_id, task=given.task, seed=session.env.seed)
            self._last = self._shown(result, session.env)
            return self._last

    async def step_async(
        self, action: OpenEnvAction, timeout_s: float | None = None, *, request_id: str | None = None, **_: Any
    ) -> OpenEnvObservation:
        """Carry out an action.

        Args:
            timeout_s: Maximum wait for the answer. The action goes on, and the same request again
                gets its answer.
            request_id: Name of the request: one that is repeated is answered, not done twice.

        Raises:
            SessionError: No episode is going on, or the session's lease ended.
            ConfigError: This is no action.
            TimeoutError: The action was not done in time.
        """
        step = asyncio.ensure_future(self._step(action, request_id))
        done, _pending = await asyncio.wait({step}, timeout=timeout_s)
        if not done:
            raise TimeoutError(f"the step was not done in {timeout_s:g} s and goes on: send its request_id again")
        return step.result()

    async def _step(self, action: OpenEnvAction, request_id: str | None) -> OpenEnvObservation:
        async with self._lock:
            if self._last is None:
                raise SessionError(SessionCode.NO_EPISODE, "no episode: reset first")
            if request_id is not None and request_id == self._request_id:
                return self._last
            if self._state.done:
                over = f"the episode is over ({self._last.stop}): reset for the next one"
                raise SessionError(SessionCode.NO_EPISODE, over)
            env = self._shared.table.find(self._session_id).env
            result = await self._shared.table.step(self._session_id, action.action)
            self._state.step_count += 1
            self._state.done, self._state.abstained = result.done, result.abstained
            self._request_id = request_id
            self._last = self._shown(result, env)
            return self._last

    def _shown(self, result: StepResult, env: WebEnv) -> OpenEnvObservation:
        renderer = self._shared.renderer
        shown = result.screenshot if renderer.shows_screenshot else b""
        return OpenEnvObservation(
            text=renderer.text(result),
            screenshot=base64.b64encode(shown).decode("ascii"),
            page=result.observation.model_dump(mode="json"),
            episode_id=self._state.episode_id,
            stop=result.stop,
            abstained=result.abstained,
            done=result.done,
            reward=result.reward,
            metadata={"trajectory": env.trajectory.model_dump(mode="json")} if env.trajectory else {},
        )

    async def give_back(self) -> None:
        """Give the browser back; the state and the last observation stay."""
        session_id, self._session_id = self._session_id, ""
        if session_id:
            await self._shared.table.close(session_id)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> OpenEnvObservation:
        """`reset_async` from another thread."""
        return self._wait(self.reset_async(seed, episode_id, **options))

    def step(self, action: OpenEnvAction, timeout_s: float | None = None, **options: Any) -> OpenEnvObservation:
        """`step_async` from another thread, as OpenEnv's web interface calls it."""
        return self._wait(self.step_async(action, timeout_s, **options))

    def close(self) -> None:
        """`give_back` from another thread. Closing twice is one close."""
        if self._session_id:
            self._wait(self.give_back())

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._shared.loop).result()

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and description of the environment."""
        return EnvironmentMetadata(
            name="rollwright", description="Web tasks in real Chromium.", version=version("rollwright")
        )

    def list_splits(self) -> list[dict[str, str]]:
        """Splits of the tasks, for OpenEnv's routes of tasks."""
        return self._shared.splits()

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Tasks of a split; ``reset(split=, index=)`` chooses one."""
        return self._shared.specs(split)

    def num_tasks(self, split: str) -> int:
        """Number of tasks of a split."""
        return len(self._shared.specs(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A task of a split."""
        return self._shared.spec(split, index)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Tasks of a split, as of a slice."""
        return self._shared.specs(split)[start:stop]

    def render_web(self, observation: dict[str, Any]) -> str:
        """HTML of an observation for OpenEnv's web interface: the screenshot and the text."""
        picture = observation.get("screenshot")
        image = f'<img alt="The page" src="data:image/jpeg;base64,{picture}">' if picture else ""
        return f"{image}<pre>{html.escape(observation.get('text', ''))}</pre>"

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """A click on each element, for OpenEnv's web interface."""
        elements = Observation.model_validate(observation["page"]).elements if observation.get("page") else ()
        return [(f"click {element_line(one)}", {"action": f"click [{one.index}]"}) for one in elements]

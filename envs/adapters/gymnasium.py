"""Gymnasium environments: an agent reads texts (and screenshots) of pages and writes texts.

::

    env = gym.make("envs.adapters.gymnasium:rollwright/miniwob.click-test")
    observation, info = env.reset(seed=7)
    observation, reward, terminated, truncated, info = env.step("click [1]")

There is an id for each task of `envs.list_tasks` (``rollwright/<family>.<rest>``, with ``.`` for
``/``), and ``rollwright/tasks`` takes ``tasks=FILE``. ``gym.make_vec`` gives the vector environment
of `envs.adapters.gymnasium_vector`. With ``AsyncVectorEnv`` give ``shared_memory=False``:
Gymnasium's shared memory loses texts, so it is refused.

An episode without a reward has the reward NaN (0 would be a judgement of the policy), is truncated,
and ``info["abstained"]`` says why: leave it out of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

try:
    import gymnasium as gym
except ImportError as missing:
    raise ImportError("envs.adapters.gymnasium needs Gymnasium: pip install 'rollwright[gym]'") from missing

from envs.adapters.gymnasium_tasks import TaskChoice
from envs.adapters.gymnasium_text import AnyText
from envs.adapters.seats import Seat
from envs.adapters.shared_host import shared_host
from envs.prompts import StepRenderer
from envs.prompts.user_turn import ObservationMode
from envs.registry import list_tasks
from envs.types import ConfigError, Split, StopReason, WebTask

if TYPE_CHECKING:
    from envs.step_result import StepResult

CUT_SHORT = frozenset([StopReason.HORIZON, StopReason.REPETITION, StopReason.DEADLINE])
"""Ends that neither the page nor the agent declared: truncations."""


class RollwrightEnv(gym.Env):
    """Episodes of a task, or of the tasks of a file, on the browsers of this process's host.

    Observations have ``text`` and, where the renderer shows it, ``screenshot`` (height, width, RGB;
    black where the site shows nothing at the end, as MiniWoB does). ``info`` has ``task``,
    ``seed``, ``url``, ``error`` of the last action, ``stop``, ``abstained``, the ``observation``
    record, and at the end the ``trajectory`` record.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(
        self,
        task: str | WebTask | None = None,
        *,
        tasks: str | PathLike[str] | Sequence[WebTask] | None = None,
        split: Split | str = Split.TRAIN,
        mode: ObservationMode = "text",
        screenshot: bool = False,
        render_mode: str | None = None,
        pool: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            task: The same as of `envs.open_env`.
            tasks: Task file or tasks in the place of ``task``, of which each `reset` chooses one.
            split: Split whose seeds `reset` draws from.
            mode: Form in which pages are shown (`envs.prompts.StepRenderer`).
            screenshot: Show the screenshot beside the text.
            render_mode: ``rgb_array`` for `render`.
            pool: Fields of `envs.PoolOptions`.
            options: Further arguments of `envs.open_env`.

        Raises:
            TaskError: There is no such task, or it has no seeds of the split.
            ConfigError: Not exactly one of ``task`` and ``tasks``, or sites with unequal viewports.
        """
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode: got {render_mode!r}; there is 'rgb_array'")
        self._choice = TaskChoice(task, tasks, Split(split), options)
        self.tasks = self._choice.tasks
        """Tasks by id."""
        self.render_mode = render_mode
        self._renderer = StepRenderer(mode=mode, screenshot=screenshot)
        self._pool = {**self._renderer.pool_options, **(pool or {})}
        if render_mode is not None:
            self._pool["screenshots"] = True
        self._options = options
        self._size = self._choice.picture_size(self._pool.get("device")) if self._pool["screenshots"] else (1, 1)
        self._seat: Seat | None = None
        self._history: list[str] = []
        self._picture: np.ndarray[Any, Any] | None = None
        self.action_space = AnyText()
        self.observation_space = gym.spaces.Dict(self._spaces())

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Seed of the random numbers that choose the task and the page's seed; one of the
                task's own seeds is the page's seed itself.
            options: ``{"task": ID}`` chooses a task.

        Raises:
            BrowserError: The page did not come up.
            ConfigError: There is no such option or task.
        """
        return self.seat.call(self.begin, seed, options)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Carry out the action of a text. One that cannot be carried out is no exception: the next
        text says why."""
        return self.seat.call(self.act, action)

    def render(self) -> np.ndarray[Any, Any] | None:
        """Return the last screenshot: height, width, RGB."""
        return self._picture if self.render_mode is not None else None

    def close(self) -> None:
        """Give the browser back; a later `reset` takes another one."""
        if self._seat is not None:
            self._seat.closer()

    @property
    def seat(self) -> Seat:
        """The place on this process's host; it is taken when it is first needed."""
        if self._seat is None or not self._seat.closer.alive:
            self._seat = Seat(self, shared_host(**self._pool), self._options)
        return self._seat

    async def begin(self, seed: int | None, options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """`reset`, inside the host's event loop."""
        step = await self.begun(seed, options)
        return self._observation(step), self._info(step)

    async def begun(self, seed: int | None, options: Mapping[str, Any] | None) -> StepResult:
        """Choose a task and a seed, and begin an episode."""
        super().reset(seed=seed)
        task, page_seed = self._choice.draw(seed, dict(options or {}), self.np_random)
        self._history.clear()
        return await self.seat.reset(task, page_seed)

    async def act(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """`step`, inside the host's event loop."""
        if not isinstance(action, str):
            raise ConfigError(f"an action is a text such as {self.action_space.sample()!r}; got {action!r}")
        step = await self.seat.step(str(action))
        self._history.append(str(action))
        return self._result(step)

    def _result(self, step: StepResult) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Result of `step`."""
        truncated = step.done and (step.reward is None or step.stop in CUT_SHORT)
        reward = float("nan") if step.reward is None else step.reward
        return self._observation(step), reward, step.done and not truncated, truncated, self._info(step)

    def _observation(self, step: StepResult) -> dict[str, Any]:
        shown: dict[str, Any] = {"text": self._renderer.text(step, self._history)}
        if self._pool["screenshots"]:
            image = StepRenderer(screenshot=True).image(step)
            self._picture = np.zeros((*self._size, 3), np.uint8) if image is None else np.array(image)
        if self._renderer.shows_screenshot:
            shown["screenshot"] = self._picture
        return shown

    def _info(self, step: StepResult) -> dict[str, Any]:
        env = self.seat.env
        assert env is not None
        seen = step.observation
        info = {"task": env.task.task_id, "seed": env.seed, "url": seen.url, "error": seen.error, "stop": step.stop}
        info |= {"abstained": step.abstained, "observation": seen}
        return {**info, "trajectory": env.trajectory} if step.done else info

    def _spaces(self) -> dict[str, Any]:
        text = {"text": AnyText()}
        if not self._renderer.shows_screenshot:
            return text
        return {**text, "screenshot": gym.spaces.Box(0, 255, (*self._size, 3), np.uint8)}


def env_id(task_id: str) -> str:
    """Return Gymnasium's id of a task of `envs.list_tasks`."""
    return f"rollwright/{task_id.replace('/', '.')}"


def _register() -> None:
    points = {
        "entry_point": f"{__name__}:RollwrightEnv",
        "vector_entry_point": "envs.adapters.gymnasium_vector:RollwrightVectorEnv",
    }
    for task_id in list_tasks():
        gym.register(env_id(task_id), **points, kwargs={"task": task_id})
    gym.register("rollwright/tasks", **points)


_register()

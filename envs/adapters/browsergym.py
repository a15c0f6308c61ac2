"""A Gymnasium environment in BrowserGym's shape, for agents that were written for BrowserGym.

::

    env = gym.make("envs.adapters.browsergym:rollwright-browsergym/miniwob.click-test")
    observation, info = env.reset(seed=7)
    text = flatten_axtree_to_str(observation["axtree_object"])  # browsergym.utils.obs
    observation, reward, terminated, truncated, info = env.step('click("1")')

Observations have BrowserGym's keys; a ``bid`` is the number of an element in our observation, and
an element keeps it while the page stands still. Actions are BrowserGym's high-level action strings
(`envs.adapters.browsergym_actions`), each of which is a step of the episode; one that cannot be
mapped or carried out says why in ``last_action_error``. Differences: ``send_msg_to_user`` is the
answer and ends the episode; a dialog is dismissed, as Playwright does; addresses and titles of tabs
are those of their last look; pages are ready at once, so there is no ``pre_observation_delay``.

The package browsergym is not needed. Abstentions are as of `envs.adapters.gymnasium`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from envs.adapters.browsergym_actions import BrowserGymActions, map_call, read_calls
from envs.adapters.browsergym_calls import MappingError, chat_message
from envs.adapters.browsergym_page import RawPage, capture, extra_properties
from envs.adapters.gymnasium import RollwrightEnv
from envs.adapters.gymnasium_text import AnyText
from envs.prompts.step_renderer import picture_parts
from envs.registry import list_tasks
from envs.types import BrowserError, Dialog, Invalid, WebTask

if TYPE_CHECKING:
    from envs.step_result import StepResult

GREETING = "Hi! I am your UI assistant, I can perform web tasks for you. What can I help you with?"
"""First message of BrowserGym's chats."""


class AnyValue(gym.spaces.Space):
    """All values of a type: CDP's objects have no smaller honest space."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def contains(self, x: Any) -> bool:
        return isinstance(x, self.kind)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return self.kind()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyValue) and self.kind is other.kind

    __hash__ = None  # type: ignore[assignment] # as of other spaces

    def __repr__(self) -> str:
        return f"AnyValue({self.kind.__name__})"


class CallText(AnyText):
    """Texts of high-level actions; `sample` gives clicks."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f'click("{self.np_random.integers(1, 21)}")'


class BrowserGymEnv(RollwrightEnv):
    """Episodes of a task with BrowserGym's observations and actions."""

    def __init__(
        self, task: str | WebTask | None = None, *, pool: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """
        Args:
            task, options: The same as of `RollwrightEnv`, without ``mode`` and ``screenshot``.
            pool: Fields of `envs.PoolOptions`, without ``inspect``.
        """
        super().__init__(task, screenshot=True, pool={**(pool or {}), "inspect": capture}, **options)
        self.action_space = CallText()
        self._chat: list[dict[str, Any]] = []
        self._raw: RawPage | None = None
        self._tabs: dict[int, tuple[str, str]] = {}
        self._active = 1
        self._error = ""
        self._started = 0.0

    async def begin(self, seed: int | None, options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """`reset`, inside the host's event loop."""
        self._started, self._tabs, self._raw, self._error = time.monotonic(), {}, None, ""
        step = await self._without_dialogs(await self.begun(seed, options))
        self._chat = []
        self._say("assistant", GREETING)
        self._say("user", step.observation.instruction)
        return self._observation(step), self._info(step)

    async def act(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """`step`, inside the host's event loop: the calls of a text, until one fails."""
        self._error = ""
        step: StepResult | None = None
        try:
            for call in read_calls(action):
                for one in map_call(call, self._shown()):
                    step = await self._without_dialogs(await self.seat.step(one))
                    if step.done or self._error:
                        break
                if message := chat_message(call):
                    self._say(*message)
                if step is None or step.done or self._error:
                    break
        except MappingError as error:
            step = await self._without_dialogs(await self.seat.step(Invalid(reason=str(error))))
        assert step is not None
        self._history.append(action)
        return self._result(step)

    async def _without_dialogs(self, step: StepResult) -> StepResult:
        """Dismiss an open dialog, which BrowserGym's agents do not see; note the action's error."""
        self._error = step.abstained or step.observation.error or ""
        if step.observation.dialog and not step.done:
            step = await self.seat.step(Dialog(accept=False))
        seen = step.observation
        numbers = [tab.number for tab in seen.tabs] or [1]
        active = next((tab.number for tab in seen.tabs if tab.active), 1)
        self._tabs = {number: self._tabs.get(number, ("", "")) for number in numbers}
        self._tabs[active] = (seen.url, seen.title)
        self._active = active
        return step

    def _shown(self) -> BrowserGymActions:
        height, width = self._size
        return BrowserGymActions((width, height), tuple(self._tabs))

    def _say(self, role: str, message: str) -> None:
        self._chat.append({"role": role, "timestamp": time.time(), "message": message})

    def _observation(self, step: StepResult) -> dict[str, Any]:
        env, seen = self.seat.env, step.observation
        page = None if env is None else env.page_step
        if page is not None and page.inspected is not None:
            self._raw = page.inspected
        if self._raw is None:
            raise BrowserError(f"nothing could be read of {seen.url}")
        bids = {} if page is None else {node: str(number) for number, node in page.list_nodes().items()}
        focused = next((str(element.index) for element in seen.elements if element.focused), "")
        return {
            "chat_messages": tuple(dict(message) for message in self._chat),
            "goal": seen.instruction,
            "goal_object": ({"type": "text", "text": seen.instruction}, *picture_parts(step.pictures)),
            "open_pages_urls": tuple(url for url, _ in self._tabs.values()),
            "open_pages_titles": tuple(title for _, title in self._tabs.values()),
            "active_page_index": np.asarray([list(self._tabs).index(self._active)]),
            "url": seen.url,
            "screenshot": super()._observation(step)["screenshot"],
            "dom_object": self._raw.dom(bids),
            "axtree_object": self._raw.axtree(bids),
            "extra_element_properties": extra_properties(seen.elements, self._size[1] / seen.viewport[0]),
            "focused_element_bid": focused,
            "last_action": self._history[-1] if self._history else "",
            "last_action_error": self._error,
            "elapsed_time": np.asarray([time.monotonic() - self._started]),
        }

    def _spaces(self) -> dict[str, Any]:
        text, anything = AnyText, AnyValue(dict)
        message = gym.spaces.Dict({"role": text(), "timestamp": AnyValue(float), "message": text()})
        return {
            "chat_messages": gym.spaces.Sequence(message),
            "goal": text(),
            "goal_object": gym.spaces.Sequence(anything),
            "open_pages_urls": gym.spaces.Sequence(text()),
            "open_pages_titles": gym.spaces.Sequence(text()),
            "active_page_index": gym.spaces.Box(0, 255, (1,), int),
            "url": text(),
            "screenshot": super()._spaces()["screenshot"],
            "dom_object": anything,
            "axtree_object": anything,
            "extra_element_properties": anything,
            "focused_element_bid": text(),
            "last_action": text(),
            "last_action_error": text(),
            "elapsed_time": gym.spaces.Box(0, 1e9, (1,), float),
        }


def _register() -> None:
    for task_id in list_tasks():
        name = f"rollwright-browsergym/{task_id.replace('/', '.')}"
        # Times are part of the observations.
        gym.register(name, f"{__name__}:BrowserGymEnv", nondeterministic=True, kwargs={"task": task_id})


_register()

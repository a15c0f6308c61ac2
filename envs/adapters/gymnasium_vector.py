"""A Gymnasium vector environment on one event loop: no process and no thread for each environment.

::

    envs = gym.make_vec("envs.adapters.gymnasium:rollwright/miniwob.click-test", num_envs=8)
    observations, infos = envs.reset(seed=7)
    observations, rewards, terminations, truncations, infos = envs.step(["click [1]"] * 8)

All environments act at the same time, on the browsers of this process's host. What comes out is
Gymnasium's own: `SyncVectorEnv` puts the results together, in all three autoreset modes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from envs.adapters.gymnasium import RollwrightEnv
from envs.host import MAX_SESSIONS
from envs.tasks import load_tasks
from envs.types import WebTask


class PlayedEnv(RollwrightEnv):
    """An environment that is played ahead: `reset` and `step` hand out the results in turn."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._results: deque[Any] = deque()

    async def play_reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Begin an episode, and keep what came out for `reset`."""
        self._results.append(await self.begin(seed, options))

    async def play_step(self, action: str, *, reset_at_end: bool) -> None:
        """Carry out an action, and keep what came out for `step`; at the end also begin anew."""
        result = await self.act(action)
        self._results.append(result)
        if reset_at_end and (result[2] or result[3]):
            await self.play_reset()

    def forget(self) -> None:
        """Drop the results that were not handed out."""
        self._results.clear()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """Hand out the result of `play_reset`, which took the seed and the options."""
        observation, info = self._results.popleft()
        return observation, info

    def step(self, action: str) -> tuple[Any, float, bool, bool, Any]:
        """Hand out the result of `play_step`, which took the action."""
        observation, reward, terminated, truncated, info = self._results.popleft()
        return observation, reward, terminated, truncated, info


class RollwrightVectorEnv(SyncVectorEnv):
    """Environments of one task or task file that reset and step at the same time."""

    envs: list[PlayedEnv]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        task: str | WebTask | None = None,
        tasks: str | PathLike[str] | Sequence[WebTask] | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        pool: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            num_envs: Number of environments; each has a browser context of its own.
            task, tasks, pool, options: The same as of `RollwrightEnv`.
            autoreset_mode: Time at which an ended environment begins anew: at the next step, at
                once, or never (``reset(options={"reset_mask": …})``).
            copy: Hand out copies of the observations.
        """
        read = load_tasks(tasks) if isinstance(tasks, str | PathLike) else tasks
        room = {"max_sessions": num_envs} if num_envs > MAX_SESSIONS else {}
        make = partial(PlayedEnv, task=task, tasks=read, pool={**room, **(pool or {})}, **options)
        super().__init__([make] * num_envs, copy=copy, autoreset_mode=autoreset_mode)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes, in all environments or in those of ``options["reset_mask"]``.

        Args:
            seed: Seeds of the environments; a number is that of the first one.
            options: The same as of `SyncVectorEnv.reset` and `RollwrightEnv.reset`.

        Raises:
            BrowserError: A page did not come up; the other errors of `RollwrightEnv.reset`.
        """
        seeds = [seed] * self.num_envs if seed is None else seed
        if isinstance(seeds, int):
            seeds = [seeds + number for number in range(self.num_envs)]
        rest = {name: value for name, value in (options or {}).items() if name != "reset_mask"}
        mask = (options or {}).get("reset_mask", [True] * self.num_envs)
        if len(seeds) == len(mask) == self.num_envs:  # else Gymnasium refuses below
            chosen = zip(self.envs, seeds, mask, strict=True)
            self._play([env.play_reset(number, rest) for env, number, reset in chosen if reset])
        return super().reset(seed=list(seeds), options=options)  # type: ignore[no-any-return]

    def step(self, actions: Sequence[str]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Carry out one action in each environment, all at the same time.

        Raises:
            AssertionError: With `AutoresetMode.DISABLED`, an environment is over.
        """
        over = self._autoreset_envs
        if self.autoreset_mode == AutoresetMode.DISABLED and over.any():
            numbers = [i for i, ended in enumerate(over) if ended]
            raise AssertionError(f"the episodes of {numbers} are over: reset(options={{'reset_mask': …}}) them first")
        at_once = self.autoreset_mode == AutoresetMode.SAME_STEP
        given = zip(self.envs, iterate(self.action_space, actions), over, strict=True)
        self._play(
            [
                env.play_reset()
                if ended and self.autoreset_mode == AutoresetMode.NEXT_STEP
                else env.play_step(text, reset_at_end=at_once)
                for env, text, ended in given
            ]
        )
        return super().step(actions)  # type: ignore[no-any-return]

    def _play(self, plays: list[Coroutine[Any, Any, None]]) -> None:
        """Run the plays at the same time; of several errors raise the first, with the others."""

        async def play() -> list[BaseException]:
            results = await asyncio.gather(*plays, return_exceptions=True)
            return [result for result in results if isinstance(result, BaseException)]

        for env in self.envs:
            env.forget()  # what an error left behind
        errors = self.envs[0].seat.call(play)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and: {other!r}")
            raise errors[0]

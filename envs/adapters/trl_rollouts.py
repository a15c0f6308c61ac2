"""TRL: whole episodes for ``GRPOTrainer(rollout_func=…)`` (TRL 1.16).

::

    rollouts = BrowserRollouts(["miniwob/click-test", "miniwob/enter-text"], seeds=range(100))
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-4B",
        train_dataset=Dataset.from_list(rollouts.rows),
        rollout_func=rollouts,
        reward_funcs=episode_reward,
    )

The prompt of a row only names its episode; the model reads our system turn and the pages as text.
Its turns are texts of actions, and their sampled ids go into later prompts unchanged. Pages are
masked by ``env_mask``. Reward functions also get ``abstained`` of each episode, and ``trajectory``
where it is ``None`` (TRL logs all that it knows of an episode without a reward).

An episode that abstained has the reward ``None``, so TRL leaves it out of its group's baseline and
gives it no advantage; all its tokens are masked.

Nothing of TRL is imported. Turns are sampled by the trainer's own ``_generate_single_turn``, with
vLLM in one process alone. `envs.adapters.trl` offers actions as tools instead, also with pictures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.adapters.shared_host import shared_host
from envs.adapters.trl_tokens import ChatTokens
from envs.env import WebEnv
from envs.prompts import PromptName, StepRenderer
from envs.registry import choose_task, seed_of
from envs.step_result import StepResult
from envs.types import BrowserError, ConfigError, SiteError, TaskError, WebTask

OVERFLOW = "the next page does not fit into max_completion_length"


def episode_reward(reward: list[float | None], **_columns: Any) -> list[float | None]:
    """Return the rewards of the episodes, for ``reward_funcs``."""
    return reward


@dataclass(slots=True)
class TokenRollout:
    """One episode and its tokens so far."""

    task: str | WebTask
    seed: int | None
    env: WebEnv | None = None
    step: StepResult | None = None
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Tokens after the prompt: turns and pages."""
    mask: list[int] = field(default_factory=list)
    """1 for each sampled token, else 0."""
    log_probs: list[float | None] = field(default_factory=list)
    abstained: str = ""

    @property
    def live(self) -> bool:
        """True if the model has another turn."""
        return not self.abstained and self.step is not None and not self.step.done

    def add(self, ids: Sequence[int], log_probs: Sequence[float | None] | None, *, sampled: bool) -> None:
        """Add a turn, or a page."""
        self.ids += ids
        self.mask += [int(sampled)] * len(ids)
        self.log_probs += log_probs if log_probs is not None else [0.0] * len(ids)


class BrowserRollouts:
    """Plays the episode of each prompt, those of a batch side by side."""

    def __init__(
        self,
        tasks: Sequence[str | WebTask],
        *,
        seeds: Iterable[int] = (),
        prompt: PromptName = "vanilla",
        max_sessions: int = 64,
        **options: Any,
    ) -> None:
        """
        Args:
            tasks: The same as of `envs.open_env`.
            seeds: Seeds of each task; its first training seed if none are given.
            prompt: System turn, as of `envs.StepRenderer`.
            max_sessions: Episodes at a time; larger batches are played in parts.
            options: The same as of `envs.EnvHost.open`, for all episodes.

        Raises:
            TaskError: There is no such task, or a seed is not one of its own.
        """
        site, self._cases = options.get("site"), dict[str, tuple[str | WebTask, int | None]]()
        named = {"site": site and site.name, "instruction": options.get("instruction")}
        wanted: list[int | None] = [*seeds] or [None]
        for task in tasks:
            for seed in wanted:
                chosen = choose_task(task, seed=seed, **named)
                self._cases[f"{chosen.task_id} seed {seed_of(chosen, seed)}"] = (task, seed)
        self._shown = StepRenderer(prompt=prompt)
        self._max_sessions, self._options = max_sessions, options
        self._pool = {"max_sessions": max_sessions, **self._shown.pool_options}

    @property
    def rows(self) -> list[dict[str, str]]:
        """Rows of the trainer's data set: one prompt for each task and seed."""
        return [{"prompt": name} for name in self._cases]

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Play an episode for each prompt, which TRL repeats for the episodes of a group.

        Raises:
            TaskError: A prompt is none of `rows`.
            ConfigError: Several processes would have to call vLLM at once.
        """
        if trainer.use_vllm and trainer.accelerator.num_processes > 1:
            raise ConfigError("vLLM samples for all processes at once, and episodes differ in length: use one process")
        rollouts = [TokenRollout(*self._case(prompt)) for prompt in prompts]
        tokens = ChatTokens(trainer, self._shown)
        for first in range(0, len(rollouts), self._max_sessions):
            self._play(rollouts[first : first + self._max_sessions], tokens, trainer)
        known = all(None not in rollout.log_probs for rollout in rollouts)
        ended = [one.env.trajectory if one.env and not one.abstained else None for one in rollouts]
        return {
            "prompt_ids": [rollout.prompt for rollout in rollouts],
            "completion_ids": [rollout.ids for rollout in rollouts],
            "logprobs": [rollout.log_probs for rollout in rollouts] if known else None,
            "env_mask": [[0] * len(one.mask) if one.abstained else one.mask for one in rollouts],
            "reward": [one.step.reward if one.step and not one.abstained else None for one in rollouts],
            "abstained": [rollout.abstained or None for rollout in rollouts],
            "trajectory": [None if one is None else one.model_dump(mode="json") for one in ended],
        }

    def _case(self, prompt: Any) -> tuple[str | WebTask, int | None]:
        if not isinstance(prompt, str) or prompt not in self._cases:
            raise TaskError(f"the prompt {prompt!r} names no episode: make the data set of BrowserRollouts.rows")
        return self._cases[prompt]

    def _play(self, rollouts: Sequence[TokenRollout], tokens: ChatTokens, trainer: Any) -> None:
        """Begin the episodes, and take turns in all of them until they are over."""
        host = shared_host(**self._pool)
        try:
            host.portal.call(self._begin_all, host.host, rollouts, tokens)
            while live := [rollout for rollout in rollouts if rollout.live]:
                asked = [[*rollout.prompt, *rollout.ids] for rollout in live]
                sampled, log_probs = trainer._generate_single_turn(asked, None, {}, 1)
                for place, (rollout, ids) in enumerate(zip(live, sampled, strict=True)):
                    unknown = [None] * len(ids)
                    rollout.add(ids, unknown if log_probs is None else log_probs[place], sampled=True)
                turns = zip(live, sampled, strict=True)
                host.portal.call(self._step_all, list(turns), tokens, trainer.max_completion_length)
        finally:
            host.portal.call(_close_all, rollouts)
        for rollout in rollouts:
            if not rollout.ids:  # TRL takes no empty completion
                rollout.prompt = rollout.prompt or [tokens.end]
                rollout.add([tokens.end], None, sampled=False)

    async def _begin_all(self, host: Any, rollouts: Sequence[TokenRollout], tokens: ChatTokens) -> None:
        async def begin(rollout: TokenRollout) -> None:
            try:
                rollout.env = await host.open(rollout.task, seed=rollout.seed, **self._options)
                rollout.step = await rollout.env.reset()
                rollout.prompt = tokens.first(rollout.step)
            except (BrowserError, SiteError) as error:
                rollout.abstained = str(error)

        await _all_of(begin(rollout) for rollout in rollouts)

    async def _step_all(
        self, turns: Sequence[tuple[TokenRollout, list[int]]], tokens: ChatTokens, max_length: int
    ) -> None:
        async def take(rollout: TokenRollout, ids: list[int]) -> None:
            assert rollout.env is not None
            try:
                rollout.step = step = await rollout.env.step(tokens.text(ids))
            except (BrowserError, SiteError) as error:
                rollout.abstained = str(error)
                return
            rollout.abstained = step.abstained or ""
            if not step.done:
                page = tokens.following(ids, step)
                if len(rollout.ids) + len(page) >= max_length:
                    rollout.abstained = OVERFLOW
                else:
                    rollout.add(page, None, sampled=False)

        await _all_of(take(rollout, ids) for rollout, ids in turns)


async def _close_all(rollouts: Sequence[TokenRollout]) -> None:
    """Give the browsers back."""
    await _all_of(rollout.env.close() for rollout in rollouts if rollout.env is not None)


async def _all_of(work: Iterable[Awaitable[None]]) -> None:
    """Await all, also if one fails; raise the first error."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if result is not None:
            raise result

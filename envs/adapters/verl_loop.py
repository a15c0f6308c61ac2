"""verl: an agent loop that plays whole episodes (verl 0.9).

Set ``actor_rollout_ref.rollout.agent.agent_loop_config_path`` to
``deployments/frameworks/verl_loop.yaml``, and give each row of the data set its task::

    {"prompt": [{"role": "user", "content": ""}], "agent_name": "rollwright",
     "extra_info": {"task": "miniwob/click-test", "seed": 7}}

The prompts are ours (`envs.prompts.StepRenderer`), not the row's. The model's turns are texts of
actions; their sampled ids go into later prompts unchanged. The reward is ``reward_score``, so no
reward function is asked.

An episode that abstained is played again, and after ``retries`` its ``response_mask`` is all 0, so
that no token of it is trained on. Its ``reward_score`` is 0, since verl needs a number there; its
group's baseline counts it. ``extra_fields["abstained"]`` says why.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.adapters.shared_host import on_host, shared_host
from envs.env import WebEnv
from envs.prompts import StepRenderer
from envs.prompts.step_renderer import ShownStep
from envs.types import BrowserError, ConfigError, SiteError, TaskError, Trajectory

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
    from verl.utils.profiler import simple_timer
except ImportError as error:
    raise ConfigError("verl is missing: it needs an environment of its own (pip install 'verl==0.9.1')") from error

OVERFLOW = "the prompt leaves no room for a turn (rollout.response_length)"


@dataclass
class TokenRecord:
    """An episode's tokens so far, as verl keeps them."""

    ids: list[int]
    """Prompt, turns and pages."""
    mask: list[int] = field(default_factory=list)
    """1 for a sampled token after the first prompt, else 0."""
    log_probs: list[float] = field(default_factory=list)
    """One for each of ``mask``, 0 for tokens that were not sampled; empty if none are known."""
    images: list[Any] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 0
    reward: float | None = None
    abstained: str = ""
    trajectory: Trajectory | None = None


@register("rollwright")
class BrowserAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode for a row of the data set."""

    def __init__(
        self,
        *args: Any,
        mode: str = "text",
        screenshot: bool = False,
        prompt: str = "vanilla",
        retries: int = 1,
        max_sessions: int = 64,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            mode, screenshot, prompt: Fields of `envs.StepRenderer`.
            retries: Number of times that an episode that abstained is played again.
            max_sessions: Episodes at a time in a worker; others wait up to an hour.
        """
        super().__init__(*args, **kwargs)
        self._shown = StepRenderer(mode=mode, screenshot=screenshot, prompt=prompt)
        self._retries = retries
        self._pool = {"max_sessions": max_sessions, "lease_deadline": 3600.0, **self._shown.pool_options}

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Play the row's episode.

        Args:
            kwargs: The row: ``extra_info`` with ``task``, and ``seed`` or other options of
                `envs.EnvHost.open`.

        Raises:
            TaskError: The row names no task, or one that does not exist.
        """
        settings = {**(kwargs.get("extra_info") or {})}
        options = {name: settings[name] for name in ("seed", "horizon", "instruction") if name in settings}
        if "task" not in settings:
            raise TaskError("the row names no task: it needs extra_info.task")
        metrics: dict[str, Any] = {}
        for _ in range(self._retries + 1):
            record = await self._play(settings["task"], options, sampling_params, metrics)
            if not record.abstained:
                break
        return self._output(record, metrics)

    async def _play(
        self, task: str, options: Mapping[str, Any], sampling_params: dict[str, Any], metrics: dict[str, Any]
    ) -> TokenRecord:
        """Play an episode once; a browser or site that fails is an abstention."""
        record = TokenRecord([])
        host = await asyncio.to_thread(shared_host, **self._pool)
        env = host.host.open(task, **options)
        try:
            await on_host(host, env.__aenter__)
            try:
                await self._turns(record, host, env, sampling_params, metrics)
            finally:
                await on_host(host, env.close)
        except (BrowserError, SiteError) as error:
            record.abstained = str(error)
        return record

    async def _turns(
        self, record: TokenRecord, host: Any, env: WebEnv, sampling_params: dict[str, Any], metrics: dict[str, Any]
    ) -> None:
        """Take turns until the episode is over, or its tokens are too many."""
        request_id = uuid.uuid4().hex
        step = await on_host(host, env.reset)
        record.messages = [*self._shown.system_messages(), self._message(step, record)]
        self._assert_mm_supported(bool(record.images))
        record.ids = await self.ct_build_initial_tokens(record.messages, images=record.images or None)
        while not step.done:
            with simple_timer("generate_sequences", metrics):
                sampled = await self.server_manager.generate(
                    request_id=request_id,
                    prompt_ids=record.ids,
                    sampling_params=sampling_params,
                    image_data=record.images or None,
                )
            record.turns += 1
            known = record.log_probs or sampled.log_probs
            merged, record.mask, log_probs = await self.ct_merge_assistant_token(
                record.ids,
                sampled.token_ids,
                record.mask,
                record.log_probs if known else None,
                assistant_logprobs=sampled.log_probs or None,
            )
            record.ids, record.log_probs = merged.token_ids, log_probs or []
            text = self.tokenizer.decode(sampled.token_ids, skip_special_tokens=True)
            with simple_timer("tool_calls", metrics):
                step = await on_host(host, env.step, text)
            if step.done:
                break
            before = [*record.messages, {"role": "assistant", "content": text}]
            record.messages = [*before, self._message(step, record)]
            merged, mask, log_probs = await self.ct_merge_context_msg(
                before, record.messages, record.ids, record.mask, record.log_probs or None
            )
            if len(mask) >= self.rollout_config.response_length:
                record.abstained = OVERFLOW
                return
            record.ids, record.mask, record.log_probs = merged.token_ids, mask, log_probs or []
        record.reward, record.abstained, record.trajectory = step.reward, step.abstained or "", env.trajectory

    def _message(self, step: ShownStep, record: TokenRecord) -> dict[str, Any]:
        """Return the page as a message, and add its picture to the episode's."""
        image = self._shown.image(step)
        if image is None:
            return {"role": "user", "content": self._shown.text(step)}
        record.images.append(image)
        parts = [{"type": "image", "image": image}, {"type": "text", "text": self._shown.text(step)}]
        return {"role": "user", "content": parts}

    def _output(self, record: TokenRecord, metrics: dict[str, Any]) -> Any:
        """Return the episode as verl takes it; of one that abstained, all tokens are masked."""
        length = self.rollout_config.response_length
        if not record.mask:  # it ended before its first turn, and verl pads no empty response
            end = self.tokenizer.eos_token_id
            record.ids, record.mask, record.log_probs = [*(record.ids or [end]), end], [0], [0.0]
        prompt, response = record.ids[: -len(record.mask)], record.ids[-len(record.mask) :]
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=response[:length],
            response_mask=[0 if record.abstained else one for one in record.mask[:length]],
            response_logprobs=record.log_probs[:length] or None,
            multi_modal_data={"images": record.images} if record.images else {},
            reward_score=record.reward or 0.0,
            num_turns=2 * record.turns,
            metrics=AgentLoopMetrics(**metrics),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "abstained": record.abstained,
                "trajectory": None if record.trajectory is None else record.trajectory.model_dump(mode="json"),
            },
        )

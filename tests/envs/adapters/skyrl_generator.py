"""SkyRL's own generator plays our episodes, with a script for an inference engine.

Run with the overlay ``skyrl`` of `scripts/setup_frameworks`: ``… TOKENIZER``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from transformers import AutoTokenizer

from envs.adapters.skyrl import RepeatAbstained, register
from envs.sync import SyncWebEnv
from envs.types import BrowserError

from .reference import SCRIPTS

TASKS = ("miniwob/enter-text", "bundled/shop-open/200000/0")
LONG = 1 << 20


class ScriptedEngine:
    """The calls of SkyRL's engine that a generator makes: it answers each session, which begins
    with its task's id, with the texts of its script."""

    model_name = "policy"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.asked = dict[str, list[list[int]]]()
        """Prompts of each session."""
        self.finished = list[str]()

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        (session,), (prompt,) = input_batch["session_ids"], input_batch["prompt_token_ids"]
        prompts = self.asked.setdefault(session, [])
        if prompts and len(prompt) <= len(prompts[0]):
            prompts.clear()  # it is played again
        prompts.append([*prompt])
        text = SCRIPTS[session.rpartition("_")[0]][1][len(prompts) - 1]
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        answer = {"responses": [text], "response_ids": [ids], "stop_reasons": ["stop"]}
        return {**answer, "response_logprobs": [[-0.5] * len(ids)]}

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)


class WebGenerator(RepeatAbstained, SkyRLGymGenerator):
    """SkyRL's generator; an abstained episode is played again."""


async def play(tokenizer: Any, step_wise: bool) -> dict[str, Any]:
    """What the trainer would get of two episodes of each task, and what the engine was asked."""
    engine = ScriptedEngine(tokenizer)
    config = GeneratorConfig(max_turns=10, max_input_length=LONG, step_wise_trajectories=step_wise)
    generator = WebGenerator(config, SkyRLGymConfig(max_env_workers=4), engine, tokenizer)
    episodes = [(task, repetition) for task in TASKS for repetition in range(2)]
    given = {
        "prompts": [[{"role": "user", "content": task}] for task, _ in episodes],
        "env_classes": ["rollwright"] * len(episodes),
        "env_extras": [{"task": task, "seed": SCRIPTS[task][0]} for task, _ in episodes],
        "trajectory_ids": [TrajectoryID(task, repetition) for task, repetition in episodes],
        "sampling_params": {"logprobs": 0},
        "batch_metadata": None,
    }
    output = await generator.generate(given, disable_tqdm=True)
    rows = zip(output["response_ids"], output["loss_masks"], output["rewards"], strict=True)
    kept = ("stop_reasons", "rollout_metrics", "is_last_step")
    return {
        **{name: output[name] for name in kept},
        "rows": [
            {
                "trained": tokenizer.decode([token for token, trained in zip(ids, mask, strict=True) if trained]),
                "response": tokenizer.decode(ids),
                "rewards": rewards,
            }
            for ids, mask, rewards in rows
        ],
        "asked_in_order": [task for task, _ in episodes],
        "first": {name: tokenizer.decode(prompts[0]) for name, prompts in engine.asked.items()},
        "asked": {name: len(prompts) for name, prompts in engine.asked.items()},
        "finished": sorted(engine.finished),
    }


def lose_a_browser() -> list[str]:
    """Fail the first step of the next episode, as if its browser went away; names its task."""
    played, lost = SyncWebEnv.step, list[str]()

    def step(self: SyncWebEnv, action: Any) -> Any:
        if not lost:
            lost.append(self.task.task_id)
            self._env._session.step = gone
        return played(self, action)

    async def gone(*_: Any) -> Any:
        raise BrowserError("Chromium went away")

    SyncWebEnv.step = step  # type: ignore[method-assign]
    return lost


async def main(checkpoint: str) -> None:
    """Print what came of whole episodes, of single steps, and of a lost browser."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    register()
    out: dict[str, Any] = {"whole": await play(tokenizer, False), "steps": await play(tokenizer, True)}
    out["lost"] = lose_a_browser()
    out["again"] = await play(tokenizer, False)
    print(json.dumps(out, default=str))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

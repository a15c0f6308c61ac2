"""Plays groups by tinker_cookbook's own rollouts and data processing; prints what came out.

Run with the overlay ``tinker`` of `scripts/setup_frameworks`: ``… CHECKPOINT``.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.image_processing_utils import get_image_processor
from tinker_cookbook.rl import types
from tinker_cookbook.rl.data_processing import compute_advantages, trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout

from envs import StepRenderer
from envs.adapters import close_hosts, shared_host
from envs.adapters.tinker import HOST, TinkerEnv, TinkerGroupBuilder
from envs.adapters.tinker_dataset import TinkerDataset, TinkerDatasetBuilder

from .overlay import snippet
from .reference import SCRIPTS, digest

SHOP = "bundled/shop-open/200000/0"


class Scripted(TokenCompleter):
    """A policy that says scripted texts, letter by letter: each rollout of a group its own."""

    def __init__(self, tokenizer: Any, scripts: Sequence[Sequence[str]], before: Callable[[int, int], Any]) -> None:
        self.tokenizer, self.scripts, self.before = tokenizer, scripts, before
        self.turns: dict[Any, list[int]] = {}

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
        place = self.turns.setdefault(asyncio.current_task(), [len(self.turns), 0])
        await self.before(*place)
        text = self.scripts[place[0] % len(self.scripts)][place[1]]
        place[1] += 1
        ids = [token for letter in text for token in self.tokenizer.encode(letter, add_special_tokens=False)] + stop
        return TokensWithLogprobs(ids, [-0.5] * len(ids), "stop")


class Group(TinkerGroupBuilder):
    """Keeps its environments, to be looked at after the rollouts."""

    async def make_envs(self) -> list[TinkerEnv]:
        self.kept = await super().make_envs()
        return self.kept


async def at_once(member: int, turn: int) -> None:
    """Says the next text without a wait."""


async def play(
    group: Group, tokenizer: Any, scripts: Sequence[Sequence[str]], before: Callable[[int, int], Any] = at_once
) -> Any:
    result = await do_group_rollout(group, Scripted(tokenizer, scripts, before))
    (advantages,) = compute_advantages([result])
    data = [
        trajectory_to_data(trajectory, float(advantage))
        for trajectory, advantage in zip(result.trajectories_G, advantages, strict=True)
    ]
    return {
        "rewards": result.get_total_rewards(),
        "advantages": advantages.tolist(),
        "stops": [trajectory.stop_reason for trajectory in result.trajectories_G],
        "turns": [len(trajectory.transitions) for trajectory in result.trajectories_G],
        "data": [len(datums) for datums in data],
        "trained": [sum(float(sum(datum.loss_fn_inputs["mask"].data)) for datum in datums) for datums in data],
        "sampled": [
            sum(len(turn.ac.tokens) for turn in trajectory.transitions) for trajectory in result.trajectories_G
        ],
        "trajectories": [env.trajectory and digest(env.trajectory) for env in group.kept],
        "abstained": [env.abstained for env in group.kept],
    }


async def main(checkpoint: str) -> None:
    tokenizer = tokenizer_utils.get_tokenizer(checkpoint)
    text = renderers.get_renderer("qwen3_instruct", tokenizer, model_name=checkpoint)
    thinking = renderers.get_renderer("qwen3", tokenizer, model_name=checkpoint)
    images = get_image_processor(checkpoint)
    vision = renderers.get_renderer("qwen3_vl_instruct", tokenizer, images, model_name=checkpoint)
    found: dict[str, Any] = {}
    shown = StepRenderer(mode="coordinates")
    for task, (seed, texts) in SCRIPTS.items():
        found[task] = await play(Group(task, vision, seed=seed, group_size=2, shown=shown), tokenizer, [texts])
    found["text"] = await play(Group(SHOP, text, group_size=1), tokenizer, [SCRIPTS[SHOP][1]])
    found["thinking"] = await play(Group(SHOP, thinking, group_size=1), tokenizer, [SCRIPTS[SHOP][1]])

    async def kill_when_alone(member: int, turn: int) -> None:
        if member == 2 and turn == 1:
            while sum(env.abstained is None for env in group.kept) < 2:
                await asyncio.sleep(0.01)
            pool = shared_host(**HOST, **StepRenderer().pool_options).host.pool
            os.kill(pool.browser_pids()[0], signal.SIGKILL)

    terminate = ('{"action": "terminate"}',)
    group = Group(SHOP, text, group_size=3)
    scripts = [SCRIPTS[SHOP][1], terminate, ("click [1]", "click [2]")]
    found["killed"] = await play(group, tokenizer, scripts, kill_when_alone)

    builder = TinkerDatasetBuilder(
        tasks="miniwob/enter-text",
        model_name=checkpoint,
        renderer_name="qwen3_vl_instruct",
        groups_per_batch=1,
        group_size=2,
        mode="set_of_marks",
    )
    train, held_out = await builder()
    (first,) = pickle.loads(pickle.dumps(train.get_batch(0)))
    result = await do_group_rollout(first, Scripted(tokenizer, [("click [1]",) * 50], at_once))
    found["data set"] = {
        "bases": isinstance(builder, types.RLDatasetBuilder) and isinstance(train, types.RLDataset),
        "held out": isinstance(held_out, TinkerDataset) and len(held_out),
        "stops": [trajectory.stop_reason for trajectory in result.trajectories_G],
        "tags": first.logging_tags(),
    }
    names: dict[str, Any] = {"model": checkpoint, "policy": Scripted(tokenizer, [("click [1]",) * 50], at_once)}
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    await eval(compile(snippet("Tinker"), "docs/frameworks.md, Tinker", "exec", flags=flags, dont_inherit=True), names)
    found["snippet"] = names["result"].get_total_rewards()
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    close_hosts()

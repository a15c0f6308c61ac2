"""Trains two steps by TRL's own GRPOTrainer and our `rollout_func`; prints what it computed.

Run with the overlay ``trl`` of `scripts/setup_frameworks`: ``… CHECKPOINT``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from tempfile import TemporaryDirectory
from typing import Any

from trl import GRPOTrainer

from datasets import Dataset
from envs import StepRenderer
from envs.adapters import close_hosts, shared_host
from envs.adapters.trl_rollouts import BrowserRollouts, episode_reward

from .overlay import ROOT
from .reference import SCRIPTS, TERMINATE, digest, without_texts
from .trl_training import SHOP, tiny_model, two_steps


def main(checkpoint: str) -> None:
    model, tokenizer = tiny_model(checkpoint)
    found: dict[str, Any] = {"rounds": []}
    rollouts = BrowserRollouts([SHOP])
    sampled: list[int] = []

    def single_turn(prompt_ids: list[list[int]], *_: Any) -> tuple[list[list[int]], list[list[float]]]:
        """In place of the model's sampling: the first rollout of a group says a script, the others
        end at once."""
        turn = len(sampled)
        if len(found["rounds"]) == 1 and turn == 2:
            pool = shared_host(max_sessions=64, **StepRenderer().pool_options).host.pool
            os.kill(pool.browser_pids()[0], signal.SIGKILL)
        texts = [SCRIPTS[SHOP][1][turn], *[TERMINATE] * (len(prompt_ids) - 1)]
        completions = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts]
        sampled.append(len(completions[0]))
        return completions, [[-1.0] * len(ids) for ids in completions]

    def played(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        sampled.clear()
        output = rollouts(prompts, trainer)
        ended = [trajectory and digest(without_texts(trajectory)) for trajectory in output["trajectory"]]
        masks = [sum(mask) for mask in output["env_mask"]]
        found["rounds"].append({"prompts": len(prompts), "trajectories": ended, "sampled": [*sampled], "masks": masks})
        return output

    with TemporaryDirectory() as folder:
        config = two_steps(folder)
        trainer = GRPOTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rollouts.rows * 4),
            processing_class=tokenizer,
            rollout_func=played,
            reward_funcs=episode_reward,
        )
        trainer._generate_single_turn = single_turn
        compute, score = trainer._calculate_rewards, trainer._generate_and_score_completions

        def calculate_rewards(*args: Any) -> Any:
            rewards = compute(*args)
            found["rounds"][-1]["rewards"] = [None if one != one else one for one in rewards[:, 0].tolist()]
            return rewards

        def generate_and_score(inputs: Any) -> Any:
            output = score(inputs)
            found["rounds"][-1]["advantages"] = output["advantages"].tolist()
            found["rounds"][-1]["trained"] = (output["completion_mask"] * output["tool_mask"]).sum(dim=1).tolist()
            return output

        trainer._calculate_rewards, trainer._generate_and_score_completions = calculate_rewards, generate_and_score
        trainer.train()
        found["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

        page = (ROOT / "docs/frameworks.md").read_text()
        (block,) = re.findall(r"^```py\n(from envs\.adapters\.trl_rollouts .*?)^```", page, re.DOTALL | re.MULTILINE)
        names: dict[str, Any] = {"model": model, "config": config, "tokenizer": tokenizer}
        names |= {"Dataset": Dataset, "GRPOTrainer": GRPOTrainer}
        exec(compile(block, "docs/frameworks.md, TRL", "exec"), names)
        found["snippet"] = names["trainer"].reward_func_names
        own = BrowserRollouts(["miniwob/click-test"], seeds=[3])  # sampled by the model itself
        tiny = GRPOTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(own.rows * 4),
            processing_class=tokenizer,
            rollout_func=own,
            reward_funcs=episode_reward,
        )
        tiny.max_completion_length = tiny.generation_config.max_new_tokens = 8
        found["own"] = {name: len(values) for name, values in own([own.rows[0]["prompt"]] * 2, tiny).items() if values}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
    close_hosts()

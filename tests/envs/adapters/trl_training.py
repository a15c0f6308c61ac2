"""Trains two steps by TRL's own GRPOTrainer with scripted turns; prints what it computed.

Run with the overlay ``trl`` of `scripts/setup_frameworks`: ``… CHECKPOINT``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import trl
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from datasets import Dataset
from envs import StepRenderer
from envs.actions.parsing import parse
from envs.adapters import close_hosts, shared_host
from envs.adapters.trl import TrlEnvironment
from envs.types.actions import ACTIONS

from .overlay import snippet
from .reference import SCRIPTS, digest, without_texts

SHOP = "bundled/shop-open/200000/0"


def tool_call(text: str) -> str:
    """A script's text as the model's tool call."""
    action = parse(text, ACTIONS).action
    arguments = {name: value for name, value in action.model_dump(exclude_defaults=True).items() if name != "type"}
    return f'<tool_call>\n{{"name": "{action.type}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


class Scripted:
    """In place of the model's sampling: the first rollout of a group says a script, the others
    end at once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.turns = [tool_call(text) for text in SCRIPTS[SHOP][1]]
        self.round = 0
        self.prompts: list[str] = []

    def __call__(
        self, prompt_ids: list[list[int]], images: Any, fields: Any, *_: Any, **options: Any
    ) -> tuple[Any, Any]:
        texts = []
        for place, ids in enumerate(prompt_ids):
            prompt = self.tokenizer.decode(ids)
            self.prompts.append(prompt)
            said = prompt.count("<|im_start|>assistant") - 1
            if said == 0:
                self.round += place == 0
                texts.append(self.turns[0] if place == 0 else tool_call('{"action": "terminate"}'))
            elif '<tool_call>\n{"name": "terminate"' in prompt:
                texts.append("That is all.")
            else:
                if self.round == 2 and said == 2:
                    pool = shared_host(max_sessions=64, **StepRenderer().pool_options).host.pool
                    os.kill(pool.browser_pids()[0], signal.SIGKILL)
                texts.append(self.turns[said])
        completions = [[*self.tokenizer.encode(text), self.tokenizer.eos_token_id] for text in texts]
        return completions, [[-1.0] * len(ids) for ids in completions]


def tiny_model(checkpoint: str) -> tuple[Any, Any]:
    """A model of one layer, and a tokenizer with a chat template that has tools."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 32_768}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **shape)), tokenizer


def two_steps(folder: str) -> Any:
    """Two steps on one group of three rollouts each."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=2,
        per_device_train_batch_size=3,
        num_generations=3,
        max_completion_length=16_384,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        scale_rewards="none",
    )


def main(checkpoint: str) -> None:
    model, tokenizer = tiny_model(checkpoint)
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        config = two_steps(folder)
        rows = [{"prompt": [{"role": "user", "content": "Use the browser.\n"}], "task": SHOP}] * 4
        trainer = GRPOTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=TrlEnvironment,
        )
        scripted = Scripted(trainer._tokenizer)
        trainer._generate_single_turn = scripted
        found["rounds"] = rounds = []
        compute, score = trainer._calculate_rewards, trainer._generate_and_score_completions

        def calculate_rewards(*args: Any) -> torch.Tensor:
            rewards = compute(*args)
            envs = trainer.environments
            rounds.append(
                {
                    "rewards": [None if torch.isnan(one) else float(one) for one in rewards[:, 0]],
                    "abstained": [env.abstained for env in envs],
                    "trajectories": [env.trajectory and digest(without_texts(env.trajectory)) for env in envs],
                }
            )
            return rewards

        def generate_and_score(inputs: Any) -> Any:
            output = score(inputs)
            rounds[-1]["advantages"] = output["advantages"].tolist()
            rounds[-1]["trained"] = (output["completion_mask"] * output["tool_mask"]).sum(dim=1).tolist()
            return output

        trainer._calculate_rewards, trainer._generate_and_score_completions = calculate_rewards, generate_and_score
        trainer.train()
        found["prompt"] = scripted.prompts[0]
        found["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found["tools"] = sorted(tool.__name__ for tool in trainer.tools)

        names: dict[str, Any] = {"model": model, "config": config, "tokenizer": tokenizer}
        block = snippet("TRL").replace("trainer.train()", "")  # it was run above
        exec(compile(block, "docs/frameworks.md, TRL", "exec"), names)
        found["snippet"] = names["trainer"].reward_func_names
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
    close_hosts()

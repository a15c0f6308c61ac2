"""Plays episodes by verl's own agent loops, tools and tokens; prints what came out.

Run with the overlay ``verl`` of `scripts/setup_frameworks`: ``… CHECKPOINT``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from transformers import AutoProcessor, AutoTokenizer
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopWorker,
    DictConfigWrap,
    ToolListWrap,
    _agent_loop_registry,
)
from verl.experimental.agent_loop.tool_agent_loop import AgentData, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.tool_registry import initialize_tools_from_config
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

from datasets import Dataset
from envs.actions.parsing import parse
from envs.adapters import close_hosts
from envs.adapters.verl import NAME, BrowserTool, compute_score
from envs.adapters.verl_loop import BrowserAgentLoop
from envs.types.actions import ACTIONS

from .overlay import snippet
from .reference import CANARY, SCRIPTS, TERMINATE, digest, without_texts

SHOP = "bundled/shop-open/200000/0"
AGENTS = {
    "rollwright": ("click [1]",),
    "tool_agent": (
        '<tool_call>{"name": "step_browser", "arguments": {"action": "wait"}}</tool_call>',
        '<tool_call>{"name": "step_browser", "arguments": {"action": "click", "element": 1}}</tool_call>',
        "That is all.",
    ),
}
"""A model's turns by the ``agent_name`` of a row."""


def arguments(text: str) -> dict[str, Any]:
    """A script's text as arguments of the tool."""
    action = parse(text, ACTIONS).action.model_dump(exclude_defaults=True)
    return {
        "action": json.loads(parse(text, ACTIONS).action.model_dump_json())["type"],
        **{k: v for k, v in action.items() if k != "type"},
    }


class Server:
    """An engine that says scripted texts, letter by letter; a new request begins at the first."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts = tokenizer, texts
        self.prompts: dict[str, list[list[int]]] = {}
        self.sampled: dict[str, list[list[int]]] = {}
        self.kills: set[tuple[int, int]] = set()
        """Requests and turns before whose answers Chromium is killed."""
        self.before_last: Callable[[], Awaitable[object]] | None = None
        """Called before the last text."""

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: Any, **data: Any) -> TokenOutput:
        prompts = self.prompts.setdefault(request_id, [])
        prompts.append(list(prompt_ids))
        if (len(self.prompts), len(prompts)) in self.kills:
            kill_browsers()
        if self.before_last is not None and len(prompts) == len(self.texts):
            await self.before_last()
        text = self.texts[min(len(prompts), len(self.texts)) - 1]
        ids = [token for letter in text for token in self.tokenizer.encode(letter, add_special_tokens=False)]
        ids.append(self.tokenizer.eos_token_id)
        self.sampled.setdefault(request_id, []).append(ids)
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


def kill_browsers() -> None:
    from envs.adapters.shared_host import _hosts

    for host in _hosts.values():
        for pid in host.host.pool.browser_pids()[:1]:
            with suppress(ProcessLookupError):  # of a host that was not used since the last time
                os.kill(pid, signal.SIGKILL)


def common(checkpoint: str, server: Any, *, vision: bool = False, response_length: int = 20_000) -> dict[str, Any]:
    rollout = {
        "prompt_length": 4096,
        "response_length": response_length,
        "full_determinism": False,
        "multi_turn": {
            "max_user_turns": 20,
            "max_assistant_turns": 20,
            "max_parallel_calls": 1,
            "max_tool_response_length": 100_000,
            "tool_response_truncate_side": "middle",
            "format": "hermes",
        },
    }
    return {
        "trainer_config": DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})),
        "server_manager": server,
        "tokenizer": AutoTokenizer.from_pretrained(checkpoint),
        "processor": AutoProcessor.from_pretrained(checkpoint) if vision else None,
        "dataset_cls": RLHFDataset,
        "data_config": DictConfigWrap(OmegaConf.create({})),
        "hf_model_type": "qwen3_vl" if vision else "qwen3",
    }


def agent_data(request_id: str) -> AgentData:
    return AgentData([], [], [], None, None, {}, request_id, {})


def outcome(response: Any, reward: Any, data: AgentData) -> dict[str, Any]:
    trajectory = data.extra_fields.get("trajectory")
    return {
        "text": response.text,
        "images": [list(image.size) for image in response.image or []],
        "reward": reward,
        "abstained": data.extra_fields.get("abstained"),
        "trajectory": trajectory and digest(without_texts(trajectory)),
        "score": compute_score("", "", "", {"tool_rewards": [reward or 0.0], **data.extra_fields}),
    }


async def tool_calls(checkpoint: str) -> dict[str, Any]:
    """Each script by the real `ToolAgentLoop._call_tool`, and the cases that end otherwise."""
    (tool,) = initialize_tools_from_config("deployments/frameworks/verl_tool.yaml")
    assert isinstance(tool, BrowserTool)
    config = {"type": "native", "screenshot": True, "max_parallel": 2, "max_sessions": 2, "lease_seconds": 60.0}
    shows = BrowserTool(config)
    found: dict[str, Any] = {"schema": tool.tool_schema.model_dump(exclude_none=True)}
    loop = ToolAgentLoop(**common(checkpoint, None), tools=ToolListWrap([shows]))

    async def call(data: AgentData, task: str, seed: int | None, parameters: Any) -> dict[str, Any]:
        kwargs = {NAME: {"create_kwargs": {"task": task, "seed": seed}}}
        response, reward, _ = await loop._call_tool(
            FunctionCall(name=NAME, arguments=json.dumps(parameters)), kwargs, data
        )
        return outcome(response, reward, data)

    async def episode(task: str) -> list[dict[str, Any]]:
        (seed, texts), data = SCRIPTS[task], agent_data(f"trajectory {task}")
        calls = [{"action": "wait"}, *(arguments(text) for text in texts)]
        return [await call(data, task, seed, parameters) for parameters in calls]

    # More episodes at a time than sessions: the others wait.
    played = await asyncio.gather(*(episode(task) for task in SCRIPTS))
    found["episodes"] = dict(zip(SCRIPTS, played, strict=True))
    found["after the end"] = await call(agent_data(f"trajectory {SHOP}"), SHOP, None, {"action": "wait"})
    data = agent_data("no object")
    found["no object"] = [await call(data, SHOP, None, parameters) for parameters in ([1], [1], {"click": {"x": 1}})]
    found["no task"] = (await loop._call_tool(FunctionCall(name=NAME, arguments="{}"), {}, agent_data("no task")))[
        0
    ].text
    data = agent_data("killed")
    await call(data, SHOP, None, {})
    kill_browsers()
    found["killed"] = await call(data, SHOP, None, {"action": "click", "element": 1})

    # verl 0.4 and older made one instance for a trajectory and named no trajectory.
    instance, _ = await shows.create(create_kwargs={"task": SHOP})
    first, *_ = await shows.execute(instance, {})
    second, reward, _ = await shows.execute(instance, {"action": "terminate"})
    found["instance"] = [first.text, second.text, reward, await shows.calc_reward(instance)]
    left, _ = await shows.create(create_kwargs={"task": SHOP})
    await shows.execute(left, {})
    await shows.release(left)
    assert shows._table is not None
    found["released"] = left not in shows._table.sessions
    return found


async def canary(checkpoint: str) -> list[str]:
    shows = BrowserTool({"type": "native"})
    loop = ToolAgentLoop(**common(checkpoint, None), tools=ToolListWrap([shows]))
    first, second = agent_data("first"), agent_data("second")

    async def call(data: AgentData, **parameters: Any) -> str:
        kwargs = {NAME: {"create_kwargs": {"task": CANARY}}}
        response, _, _ = await loop._call_tool(FunctionCall(name=NAME, arguments=json.dumps(parameters)), kwargs, data)
        return str(response.text)

    seen = [await call(first)]
    await call(first, action="click", element=1)
    return [*seen, await call(first, action="refresh"), await call(second)]


async def loop_canary(checkpoint: str) -> list[str]:
    """What two episodes of our loop show; the second is played while the first one is open."""
    shown: list[str] = []

    async def play(texts: list[str], before_last: Callable[[], Awaitable[object]] | None = None) -> None:
        given = common(checkpoint, None)
        server = given["server_manager"] = Server(given["tokenizer"], [*texts, TERMINATE])
        server.before_last = before_last
        await BrowserAgentLoop(**given, retries=0).run({}, raw_prompt=[], extra_info={"task": CANARY})
        ((*_, prompt),) = server.prompts.values()
        shown.append(given["tokenizer"].decode(prompt))

    looks = '{"action": "refresh"}'
    await play(["click [1]", looks], lambda: play([looks]))
    return shown


async def whole_tool_loop(checkpoint: str) -> dict[str, Any]:
    """An episode by the real `ToolAgentLoop.run`."""
    (tool,) = initialize_tools_from_config("deployments/frameworks/verl_tool.yaml")
    calls = [{"action": "wait"}, *(arguments(text) for text in SCRIPTS[SHOP][1])]
    texts = [f'<tool_call>{{"name": "{NAME}", "arguments": {json.dumps(call)}}}</tool_call>' for call in calls]
    options = common(checkpoint, None)
    server = options["server_manager"] = Server(options["tokenizer"], [*texts, "That is all."])
    loop = ToolAgentLoop(**options, tools=ToolListWrap([tool]))
    prompt = [{"role": "user", "content": "Use the browser."}]
    output = await loop.run(
        {}, raw_prompt=prompt, tools_kwargs={NAME: {"create_kwargs": {"task": SHOP}}}, extra_info={}
    )
    return {
        "rewards": output.extra_fields["tool_rewards"],
        "abstained": output.extra_fields["abstained"],
        "turns": output.num_turns,
        "trained": sum(output.response_mask),
        "sampled": sum(len(ids) for ids in next(iter(server.sampled.values()))),
    }


async def whole_episodes(checkpoint: str) -> dict[str, Any]:
    """Each script by our agent loop, and the cases that end otherwise."""
    assert _agent_loop_registry["rollwright"]["_target_"] == "envs.adapters.verl_loop.BrowserAgentLoop"
    found: dict[str, Any] = {}

    async def play(
        task: str, texts: Sequence[str], kills: Sequence[tuple[int, int]] = (), length: int = 20_000, **options: Any
    ) -> dict[str, Any]:
        shown = options.get("mode", "text") != "text"
        given = common(checkpoint, None, vision=shown, response_length=length)
        server = given["server_manager"] = Server(given["tokenizer"], texts)
        server.kills = set(kills)
        loop = BrowserAgentLoop(**given, **options)
        output = await loop.run({}, raw_prompt=[], extra_info={"task": task, "seed": SCRIPTS[task][0]})
        output.as_dict()  # as verl's worker turns it into tensors
        last = list(server.prompts)[-1]
        prompts, sampled = server.prompts[last], server.sampled[last]
        trajectory = output.extra_fields["trajectory"]
        return {
            "reward": output.reward_score,
            "abstained": output.extra_fields["abstained"],
            "trajectory": trajectory and digest(trajectory),
            "attempts": len(server.prompts),
            "trained": sum(output.response_mask),
            "sampled": sum(map(len, sampled)),
            "lengths": [len(output.response_ids), len(output.response_mask), len(output.response_logprobs)],
            "kept": all(
                later[: len(prompt) + len(ids)] == [*prompt, *ids]
                for prompt, ids, later in zip(prompts, sampled, prompts[1:], strict=False)
            ),
            "images": len(output.multi_modal_data.get("images", [])),
        }

    for task, (_, texts) in SCRIPTS.items():
        found[task] = await play(task, texts, mode="coordinates")
    found["text"] = await play(SHOP, SCRIPTS[SHOP][1])
    found["retried"] = await play(SHOP, SCRIPTS[SHOP][1], [(1, 2)])
    found["lost"] = await play(SHOP, SCRIPTS[SHOP][1], [(1, 2)], retries=0)
    found["too long"] = await play(SHOP, SCRIPTS[SHOP][1], length=60, retries=0)
    return found


async def whole_worker(checkpoint: str) -> dict[str, Any]:
    """The row of docs/frameworks.md from a file, by verl's own configuration, data set and
    `AgentLoopWorker`, which loads both of our YAML files."""
    del _agent_loop_registry["rollwright"]  # made by an import; a worker process has the file's alone
    names: dict[str, Any] = {}
    exec(snippet("verl"), names)
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder, initialize_config_module("verl.trainer.config", version_base=None):
        file = f"{folder}/train.parquet"
        Dataset.from_list([{**names["row"], "agent_name": name} for name in AGENTS]).to_parquet(file)
        rollout = {
            "name": "vllm",
            "prompt_length": 4096,
            "response_length": 2048,
            "agent.agent_loop_config_path": "deployments/frameworks/verl_loop.yaml",
            "multi_turn.tool_config_path": "deployments/frameworks/verl_tool.yaml",
        }
        given = [f"actor_rollout_ref.rollout.{key}={value}" for key, value in rollout.items()]
        given += [f"actor_rollout_ref.model.path={checkpoint}", f"+data.cache_dir={folder}"]
        config = compose("ppo_trainer", overrides=given)
        server = Server(None, ())
        worker = AgentLoopWorker(config, server)
        server.tokenizer = worker.tokenizer
        rows = RLHFDataset(file, worker.tokenizer, config.data, worker.processor)
        for row, texts in zip(rows, AGENTS.values(), strict=True):
            server.texts = texts
            output = await worker.generate_sequences(DataProto.from_single_dict(collate_fn([row])))
            scores = output.batch.get("rm_scores")
            found[row["agent_name"]] = {
                "score": None if scores is None else scores.sum().item(),
                "tool_rewards": output.non_tensor_batch["tool_rewards"][0],
                "abstained": output.non_tensor_batch["abstained"][0],
                "trained": output.batch["response_mask"].sum().item(),
                "sampled": sum(map(len, list(server.sampled.values())[-1])),
            }
    found["loaded"] = dict(_agent_loop_registry["rollwright"])
    return found


async def main(checkpoint: str) -> None:
    found = {
        "calls": await tool_calls(checkpoint),
        "canary": await canary(checkpoint),
        "loop canary": await loop_canary(checkpoint),
        "tool loop": await whole_tool_loop(checkpoint),
        "loop": await whole_episodes(checkpoint),
        "worker": await whole_worker(checkpoint),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    close_hosts()

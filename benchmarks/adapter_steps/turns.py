"""Adapters of frameworks that play whole episodes and ask a model for each turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from benchmarks.adapter_steps.inner_clock import InnerClock

TASK = "bundled/shop-open/200000/0"
MOVES: Sequence[dict[str, Any]] = (
    {"action": "type", "element": 8, "text": "Zephra Pillow"},
    {"action": "click", "element": 9},
    {"action": "click", "element": 12},
    {"action": "terminate"},
)
"""An episode. Its last step is left out: it is graded, and servers hand out the record."""
TOKENIZER = Path(__file__).parents[2] / "datasets" / "policies" / "reader"
"""Folder of the tokenizer and chat template, for frameworks that take tokens."""
MAX_TOKENS = 1 << 20

Step = Callable[[dict[str, Any]], Awaitable[float | None]]
"""Carries out a move; the reward, which counts after the last one."""
Begin = Callable[[], Awaitable[Step]]
"""Begins an episode and returns its step function."""


class Turns:
    """The model's turns of one episode. A step lasts until the next turn is asked for."""

    def __init__(self) -> None:
        self.moves = asyncio.Queue[dict[str, Any]]()
        self.asked = asyncio.Queue[None]()
        """One for each turn that is asked for, and one for the end."""
        self._loop = asyncio.get_running_loop()

    async def next(self) -> dict[str, Any]:
        """Return the model's next move."""
        self.asked.put_nowait(None)
        return await self.moves.get()

    def next_text(self) -> str:
        """Return the next move as the model's text, in another thread."""
        return json.dumps(asyncio.run_coroutine_threadsafe(self.next(), self._loop).result())


async def begin_episode(play: Callable[[Turns], Awaitable[float | None]]) -> Step:
    """Begin an episode, until its first turn is asked for.

    Args:
        play: Plays an episode with these turns; returns its reward.
    """
    turns = Turns()

    async def whole() -> float | None:
        try:
            return await play(turns)
        finally:
            turns.asked.put_nowait(None)

    episode = asyncio.create_task(whole())

    async def step(move: dict[str, Any]) -> float | None:
        turns.moves.put_nowait(move)
        await turns.asked.get()
        return await episode if episode.done() else 0.0

    await turns.asked.get()
    if episode.done():
        await episode  # raises why it did not begin
    return step


@asynccontextmanager
async def trl_rollouts(clock: InnerClock) -> AsyncIterator[Begin]:
    """TRL's trainer is a stand-in that asks for turns."""
    from transformers import AutoTokenizer

    from envs.adapters.trl_rollouts import BrowserRollouts

    tokenizer, rollouts = AutoTokenizer.from_pretrained(TOKENIZER), BrowserRollouts([TASK])
    (row,) = rollouts.rows

    async def play(turns: Turns) -> float | None:
        def sample(*_: Any) -> tuple[list[list[int]], None]:
            return [[*tokenizer.encode(turns.next_text()), tokenizer.eos_token_id]], None

        trainer = SimpleNamespace(
            processing_class=tokenizer,
            chat_template_kwargs={},
            max_completion_length=MAX_TOKENS,
            use_vllm=False,
            _generate_single_turn=sample,
        )
        reward: float | None = (await asyncio.to_thread(rollouts, [row["prompt"]], trainer))["reward"][0]
        return reward

    yield lambda: begin_episode(play)


@asynccontextmanager
async def verl_loop(clock: InnerClock) -> AsyncIterator[Begin]:
    """verl's server of the model is a stand-in that asks for turns."""
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.replica import TokenOutput

    from envs.adapters.verl_loop import BrowserAgentLoop

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    rollout = {"prompt_length": MAX_TOKENS, "response_length": MAX_TOKENS, "full_determinism": False}
    config = {"actor_rollout_ref": {"rollout": {**rollout, "multi_turn": {}}}}

    async def play(turns: Turns) -> float | None:
        async def generate(**_: Any) -> TokenOutput:
            ids = [*tokenizer.encode(json.dumps(await turns.next())), tokenizer.eos_token_id]
            return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")

        loop = BrowserAgentLoop(
            trainer_config=DictConfigWrap(OmegaConf.create(config)),
            server_manager=SimpleNamespace(generate=generate),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(OmegaConf.create({})),
            hf_model_type="qwen3",
        )
        reward: float = (await loop.run({}, raw_prompt=[], extra_info={"task": TASK})).reward_score
        return reward

    yield lambda: begin_episode(play)


@asynccontextmanager
async def verifiers_v1(clock: InnerClock) -> AsyncIterator[Begin]:
    """Over HTTP, with a thread of this process for the model; without verifiers' own proxy."""
    from envs.adapters.verifiers_v1 import BrowserHarness, BrowserHarnessConfig, BrowserTaskset, BrowserTasksetConfig

    harness = BrowserHarness(BrowserHarnessConfig())
    (task,) = BrowserTaskset(BrowserTasksetConfig(tasks=[TASK])).load()
    present = list[Turns]()

    class Model(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"role": "assistant", "content": present[-1].next_text()}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = json.dumps({**answer, "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    context, runtime = SimpleNamespace(model="m"), SimpleNamespace()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1"

    async def play(turns: Turns) -> float | None:
        present.append(turns)
        trace = SimpleNamespace(info={}, stop_condition=None)
        await harness.launch(context, trace, runtime, endpoint, "none", {}, task.data)
        reward: float = trace.info["page_reward"]
        return reward

    yield lambda: begin_episode(play)
    await asyncio.to_thread(server.shutdown)
    server.server_close()

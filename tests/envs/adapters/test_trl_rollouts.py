"""TRL's `rollout_func`, called as GRPOTrainer calls it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from envs import StepRenderer, TaskError
from envs.adapters import close_hosts, shared_host
from envs.adapters.trl_rollouts import OVERFLOW, BrowserRollouts, episode_reward
from envs.types import ConfigError

from ...training.vision_models import make_checkpoint
from .reference import CANARY, SCRIPTS, TERMINATE, digest, reference, without_pictures, without_texts

SHOP = "bundled/shop-open/200000/0"
LENGTH = 16_384


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    yield
    close_hosts()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(make_checkpoint("qwen2_vl", tmp_path_factory.mktemp("model")))


class ScriptedTrainer:
    """The parts of `GRPOTrainer` that are used; the first rollout says a script, others end."""

    def __init__(self, tokenizer: Any, *, before: Callable[[int], None] = lambda _turn: None, **changes: Any) -> None:
        self.processing_class = tokenizer
        self.chat_template_kwargs: dict[str, Any] = {}
        self.max_completion_length = LENGTH
        self.use_vllm, self.accelerator = False, SimpleNamespace(num_processes=1)
        self.sampled: list[list[int]] = []
        """Turns of the first rollout."""
        self._before = before
        vars(self).update(changes)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any) -> tuple[list[list[int]], Any]:
        turn = len(self.sampled)
        self._before(turn)
        texts = [SCRIPTS[SHOP][1][turn], *[TERMINATE] * (len(prompt_ids) - 1)]
        ids = [[*self.processing_class.encode(text), self.processing_class.eos_token_id] for text in texts]
        self.sampled.append(ids[0])
        return ids, [[-0.5] * len(one) for one in ids]


def test_an_episode_is_the_reference(tokenizer: Any) -> None:
    rollouts, trainer = BrowserRollouts([SHOP]), ScriptedTrainer(tokenizer)
    (row,) = rollouts.rows
    output = rollouts([row["prompt"]] * 3, trainer)
    expected, shown = reference(SHOP), StepRenderer()
    assert output["reward"] == [expected.reward, *output["reward"][1:]] and max(output["reward"][1:]) < expected.reward
    assert output["abstained"] == [None] * 3 and episode_reward(**output) == output["reward"]
    played = output["trajectory"][0]  # only text is shown, so there are no pictures
    assert digest(without_texts(played)) == digest(without_texts(without_pictures(expected.trajectory)))

    turns = [{"role": "assistant", "content": text} for text in expected.texts]
    pages = [shown.user_message(step) for step in expected.steps[:-1]]
    messages = [message for pair in zip(pages, turns, strict=True) for message in pair]
    whole = tokenizer.apply_chat_template([*shown.system_messages(), *messages], tokenize=False)
    (prompt, *_), (ids, *_), (mask, *_) = output["prompt_ids"], output["completion_ids"], output["env_mask"]
    assert tokenizer.decode([*prompt, *ids]).strip() == whole.strip()
    assert [token for token, sampled in zip(ids, mask, strict=True) if sampled] == [
        *chain.from_iterable(trainer.sampled)
    ]
    probabilities = [-0.5 if sampled else 0.0 for sampled in mask]
    assert output["logprobs"][0] == probabilities
    assert prompt == output["prompt_ids"][1], "a group has one prompt"


def test_an_abstention_has_no_reward_and_is_masked(tokenizer: Any) -> None:
    def kill(turn: int) -> None:
        if turn == 1:
            pool = shared_host(max_sessions=1, **StepRenderer().pool_options).host.pool
            os.kill(pool.browser_pids()[0], signal.SIGKILL)

    rollouts = BrowserRollouts([SHOP], max_sessions=1)  # a batch of two is played in parts
    prompts = [row["prompt"] for row in rollouts.rows] * 2
    for trainer, cause in (
        (ScriptedTrainer(tokenizer, before=kill), ""),
        (ScriptedTrainer(tokenizer, max_completion_length=64), OVERFLOW),
    ):
        output = rollouts(prompts[:1], trainer)
        assert output["reward"] == [None] and cause in output["abstained"][0]
        assert output["completion_ids"][0] and set(output["env_mask"][0]) == {0}
    trainer = ScriptedTrainer(tokenizer, sampled=[[]] * 3)  # the script's end: it terminates
    assert None not in rollouts(prompts[:1], trainer)["reward"], "the next episode has a browser again"


def test_rollouts_share_nothing(tokenizer: Any) -> None:
    looks = '{"action": "refresh"}'
    turns = iter((("click [1]", looks), (looks, looks), (TERMINATE, TERMINATE)))  # of a writer and a reader

    def sample(*_: Any) -> tuple[list[list[int]], Any]:
        return [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in next(turns)], None

    rollouts = BrowserRollouts([CANARY])
    prompts = [row["prompt"] for row in rollouts.rows] * 2
    output = rollouts(prompts, ScriptedTrainer(tokenizer, _generate_single_turn=sample))
    writer, reader = (
        tokenizer.decode([*prompt, *ids])
        for prompt, ids in zip(output["prompt_ids"], output["completion_ids"], strict=True)
    )
    assert reader.count("found: nothing") == 3 and reader.count("found: ") == 3
    assert "found: k=cookie,local,session,name" in writer, "an episode must see its own marks"


def test_an_episode_that_does_not_begin_is_an_abstention(tokenizer: Any) -> None:
    rollouts = BrowserRollouts(["http://127.0.0.1:9/"], instruction="Look.")
    output = rollouts([row["prompt"] for row in rollouts.rows], ScriptedTrainer(tokenizer))
    assert output["reward"] == [None] and output["abstained"][0]
    assert output["prompt_ids"][0] and output["env_mask"] == [[0]]


def test_wrong_uses_are_refused(tokenizer: Any) -> None:
    with pytest.raises(TaskError, match="seed 999999999"):
        BrowserRollouts([SHOP], seeds=[999_999_999])
    rollouts = BrowserRollouts([SHOP])
    with pytest.raises(TaskError, match=r"BrowserRollouts\.rows"):
        rollouts(["Use the browser."], ScriptedTrainer(tokenizer))
    several = ScriptedTrainer(tokenizer, use_vllm=True, accelerator=SimpleNamespace(num_processes=2))
    with pytest.raises(ConfigError, match="one process"):
        rollouts([rollouts.rows[0]["prompt"]], several)

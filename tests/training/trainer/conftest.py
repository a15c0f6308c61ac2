"""Runs made by hand: a tiny random policy as version 0, stored episodes with real screenshots, and
batches over them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from envs.types import Click, ContextMessage, Observation, RewardBundle, Step, StopReason, Trajectory
from training.config import AlgorithmConfig, TrainerConfig
from training.ledger.store import RunStore, write_json
from training.records.batches import BatchRow, TrainingBatch
from training.records.groups import StepShape, shapes_of
from training.trainer.spec import TrainerSpec
from training.warm_start.tiny_checkpoint import TinyShape, build_model, build_tokenizer, save_checkpoint

WIDTH, HEIGHT = 168, 224
BANNED = (760, 761)
"""Two special tokens that no response holds."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2-VL of half a million parameters with a real tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    shape = TinyShape(layers=2)
    tokenizer = build_tokenizer(shape.letter_merges_below)
    assert tokenizer.convert_tokens_to_ids(["<|box_start|>", "<|box_end|>"]) == list(BANNED)
    save_checkpoint(build_model(shape, tokenizer), tokenizer, folder)
    return folder


def screenshot(seed: int) -> bytes:
    """A JPEG of a few coloured boxes."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(5):
        x, y = int(rng.integers(0, WIDTH - 40)), int(rng.integers(0, HEIGHT - 30))
        draw.rectangle((x, y, x + 38, y + 24), fill=tuple(int(c) for c in rng.integers(0, 255, 3)))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


@dataclass
class HandMadeRun:
    """A run's folder with helpers to fill it."""

    store: RunStore
    tokenizer: object

    def add_episode(
        self,
        episode_id: str,
        steps: int,
        score: float,
        *,
        seed: int,
        behaviour: float = -6.9,
        append: bool = False,
        pictures: bool = True,
    ) -> Trajectory:
        """Store an episode whose texts differ in length; every token with the same stored
        log-probability.

        With ``append`` each prompt is the one before, its response and a further turn.
        """
        made: list[Step] = []
        for index in range(steps):
            rng = np.random.default_rng([seed, index])
            elements = "".join(f'[{n}] button "{rng.integers(0, 99)}"\n' for n in range(1, int(rng.integers(2, 9))))
            prompt = f'Task: Click on the "{rng.integers(0, 99)}" button.\n{elements}'
            response = f"click({rng.integers(1, 9)})" if rng.random() < 0.7 else f'type(1,"{rng.integers(0, 9999)}")'
            response_ids = tuple(self._encode(response + "<|im_end|>"))
            name = self.store.put_blob(screenshot(seed * 100 + index)) if pictures else ""
            before, context = (), ()
            if append and made:
                last = made[-1]
                before = (*last.prompt_ids, *last.response_ids, *self._encode("\n"))
                shown = ContextMessage(role="user", text=last.prompt, pictures=(last.screenshot,) if pictures else ())
                context = (*last.context, shown, ContextMessage(role="assistant", text=last.response, pictures=()))
            made.append(
                Step(
                    index=index,
                    observation=Observation(instruction="", elements=(), url="", viewport=(WIDTH, HEIGHT)),
                    screenshot=name,
                    prompt=prompt,
                    context=context,
                    prompt_ids=(*before, *self._prompt_ids(prompt, pictures)),
                    response=response,
                    response_ids=response_ids,
                    logprobs=(behaviour,) * len(response_ids),
                    policy_version=0,
                    action=Click(element=1),
                )
            )
        trajectory = Trajectory(
            episode_id=episode_id,
            group_id="g",
            task_id="t",
            kind="k",
            seed=seed,
            sample=0,
            policy_version=0,
            steps=tuple(made),
            stop_reason=StopReason.DONE,
            reward=RewardBundle(score=score, passed=score >= 0.5),
        )
        self.store.put_trajectory(trajectory)
        return trajectory

    def row(self, episode_id: str, step: int = 0, advantage: float = 1.0) -> BatchRow:
        """A step as a batch names it; one that is not stored has some shape."""
        shapes = shapes_of(self.store.trajectory(episode_id)) if self.store.trajectory_path(episode_id).exists() else ()
        shape = shapes[step] if step < len(shapes) else StepShape(1, 1, step)
        return BatchRow(episode_id=episode_id, step=step, advantage=advantage, shape=shape)

    def add_batch(self, version: int, rows: list[BatchRow], algorithm: str = "grpo") -> TrainingBatch:
        """Write a batch over stored episodes."""
        batch = TrainingBatch(
            version=version,
            policy_version_before=version - 1,
            algorithm=algorithm,
            rows=tuple(rows),
            group_ids=("g",),
            versions=((version - 1, version - 1),) * len(rows),
            zero_variance_groups=0,
            episodes=len({row.episode_id for row in rows}),
        )
        write_json(self.store.batch_path(version), batch)
        return batch

    def fill(self, version: int, rows: int, algorithm: str = "grpo") -> TrainingBatch:
        """A batch of ``rows`` one- and two-step episodes with advantages of both signs."""
        made: list[BatchRow] = []
        episode = 0
        while len(made) < rows:
            name, steps = f"v{version}-e{episode}", 1 + episode % 2
            self.add_episode(name, steps, float(episode % 3 == 0), seed=version * 10_000 + episode)
            advantage = 1.0 if algorithm != "grpo" else (1.5 if episode % 3 == 0 else -0.75)
            made += [self.row(name, step, advantage) for step in range(steps)]
            episode += 1
        return self.add_batch(version, made[:rows], algorithm)

    def _prompt_ids(self, text: str, picture: bool) -> list[int]:
        pads = f"<|vision_start|>{'<|image_pad|>' * (WIDTH // 28 * HEIGHT // 28)}<|vision_end|>" if picture else ""
        return self._encode(f"<|im_start|>user\n{pads}{text}<|im_end|>\n<|im_start|>assistant\n")

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))  # type: ignore[attr-defined]


def make_run(folder: Path, checkpoint: Path) -> HandMadeRun:
    """An empty run at version 0."""
    from transformers import AutoTokenizer

    store = RunStore(folder)
    store.publish_policy(0, checkpoint, {})
    return HandMadeRun(store, AutoTokenizer.from_pretrained(checkpoint))


@pytest.fixture
def run(tmp_path: Path, checkpoint: Path) -> HandMadeRun:
    return make_run(tmp_path / "run", checkpoint)


def make_spec(*, algorithm: dict | None = None, trainer: dict | None = None, **changes: object) -> TrainerSpec:
    """Small settings in which a change of weights is easy to see."""
    settings = {"learning_rate": 1e-3, "minibatch_rows": 16, "micro_batch_rows": 8, "torch_threads": 1} | (
        trainer or {}
    )
    return TrainerSpec(
        **{
            "total_updates": 2,
            "algorithm": AlgorithmConfig(**(algorithm or {})),
            "trainer": TrainerConfig(**settings),
            **changes,
        }
    )

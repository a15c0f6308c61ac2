"""Takes stored successful episodes of other runs as demonstrations, encoded for the new policy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs.prompts import system_text, tools_text
from envs.types import ConfigError, Step, TrainingError, Trajectory
from tasks_lib.rollouts.shards import RolloutResult
from tasks_lib.worker.turns import picture_size
from training.config import PolicyConfig
from training.ledger.journal import read_group
from training.ledger.store import RunStore, write_json
from training.policy.context import Message
from training.records.groups import EpisodeSummary, GroupRecord

if TYPE_CHECKING:  # importing torch takes seconds
    from training.policy.renderer import Renderer


def check_runs(runs: Sequence[Path]) -> None:
    """Raise ``ConfigError`` if a folder holds no groups of training episodes."""
    for run in runs:
        if not RunStore(run).group_ids("i*"):
            raise ConfigError(f"episodes: {run} holds no training episodes; give the folder of a run")


def take_successes(
    store: RunStore, runs: Sequence[Path], policy: PolicyConfig, phase: str, limit: int
) -> RolloutResult:
    """Store the successes of ``runs`` as groups of a phase, one episode each.

    Prompts and turns are encoded by the tokenizer of version 0 from their recorded text. A turn's
    thought is trained on; those of earlier turns are not shown. Existing files are written again
    with the same content.

    Args:
        store: Holds version 0.
        limit: Maximum number of episodes, in the order of the runs and their groups.

    Raises:
        TrainingError: there is no success.
        StorageError: an episode, or an image of one, is damaged.
    """
    from training.policy.renderer import Renderer

    began = time.perf_counter()
    renderer = Renderer(store.policy_path(0), policy.template)
    records = []
    for number, (source, trajectory) in zip(range(limit), _successes(runs), strict=False):
        group_id = f"{phase}-g{number:04d}"
        copied = _copy(source, store, trajectory, renderer, policy, group_id)
        summary = EpisodeSummary.of(copied, store.put_trajectory(copied))
        records.append(
            GroupRecord(
                token="",
                group_id=group_id,
                task_id=copied.task_id,
                kind=copied.kind,
                policy_version=0,
                episodes=(summary,),
            )
        )
        write_json(store.group_path(group_id), records[-1], sealed=True)
    if not records:
        raise TrainingError(
            f"episodes: no training episode of {', '.join(map(str, runs))} passed, so there is nothing to clone"
        )
    return RolloutResult(records, {"wall": time.perf_counter() - began})


def _successes(runs: Sequence[Path]) -> Iterator[tuple[RunStore, Trajectory]]:
    for run in runs:
        source = RunStore(run)
        for group_id in sorted(source.group_ids("i*")):
            for episode in read_group(source, group_id).episodes:
                if episode.passed and episode.steps:
                    yield source, source.trajectory(episode.episode_id)


def _copy(
    source: RunStore, store: RunStore, trajectory: Trajectory, renderer: Renderer, policy: PolicyConfig, group_id: str
) -> Trajectory:
    """Return an episode under its new name, and copy its images."""
    steps = tuple(_encoded(source, store, step, renderer, policy) for step in trajectory.steps)
    changes = {"group_id": group_id, "sample": 0, "attempt": 0, "policy_version": 0, "steps": steps}
    not_copied = {"final_dom": "", "final_screenshot": "", "judgement": ""}
    return trajectory.model_copy(update={"episode_id": f"{group_id}-s00-a0", **changes, **not_copied})


def _encoded(source: RunStore, store: RunStore, step: Step, renderer: Renderer, policy: PolicyConfig) -> Step:
    sizes = []
    for name in step.pictures:
        jpeg = source.blob(name)
        store.put_blob(jpeg)
        sizes.append(picture_size(jpeg))
    messages = [*(Message(message.role, message.text, message.pictures) for message in step.context)]
    messages.append(Message("user", step.prompt, (step.screenshot,)))
    system, tools = system_text(policy.prompt, policy.observation), tools_text(policy.prompt, policy.observation)
    prompt = renderer.encode_conversation(messages, sizes, system, tools)
    response = tuple(renderer.encode_response(step.response))
    return step.model_copy(
        update={
            "prompt_ids": prompt.ids,
            "response_ids": response,
            "logprobs": (0.0,) * len(response),
            "policy_version": 0,
            "version_spans": (),
            "finish_reason": None,
            "dom_diff": "",
        }
    )

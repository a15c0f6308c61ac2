"""Tasks, rubrics, pages, steps and trajectories of tests; keyword arguments replace the
defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envs.rewards import read_rubric
from envs.types import (
    Observation,
    RewardBundle,
    Rubric,
    SeedRange,
    Split,
    Step,
    StopReason,
    Terminate,
    Trajectory,
    WebTask,
)
from training.ledger.store import RunStore


def make_task(task_id: str = "shop/lamp", **fields: Any) -> WebTask:
    """A task of difficulty 1 and three steps; its site and kind are those of its id."""
    site, _, kind = task_id.partition("/")
    defaults: dict[str, Any] = {
        "site": site,
        "kind": kind,
        "path": "/",
        "instruction": "Do it.",
        "difficulty": 1,
        "horizon": 3,
        "seeds": {Split.TRAIN: SeedRange(start=10, stop=20), Split.HELD_OUT: SeedRange(start=0, stop=10)},
    }
    return WebTask(task_id=task_id, **(defaults | fields))


def page_task(path: str = "/index.html", **fields: Any) -> WebTask:
    """A task on a page of the static site of the fixture ``pages``."""
    return make_task(f"pages{path}", **({"site": "pages", "kind": "page", "path": path} | fields))


def make_rubric(*facts: dict[str, Any], **fields: Any) -> Rubric:
    """A rubric of one group; a fact without an id has its place, from 0."""
    numbered = [{"id": str(place), **fact} for place, fact in enumerate(facts)]
    return read_rubric({"fact_groups": [{"name": "g", "facts": numbered}], **fields})


def make_observation(text: str = "", **fields: Any) -> Observation:
    """A page without elements."""
    defaults: dict[str, Any] = {"instruction": "", "elements": (), "url": "http://shop.test/", "viewport": (1, 1)}
    return Observation(text=text, **(defaults | fields))


def make_step(index: int = 0, **fields: Any) -> Step:
    """A step without tokens."""
    defaults: dict[str, Any] = {
        "observation": make_observation(),
        "screenshot": "0" * 64,
        "prompt": "",
        "prompt_ids": (),
        "response": "",
        "response_ids": (),
        "logprobs": (),
        "policy_version": 0,
        "action": Terminate(),
    }
    return Step(index=index, **(defaults | fields))


def make_trajectory(**fields: Any) -> Trajectory:
    """An episode of ``shop/lamp`` without steps, by policy 0."""
    defaults: dict[str, Any] = {
        "episode_id": "e",
        "group_id": "g",
        "task_id": "shop/lamp",
        "kind": "lamp",
        "seed": 0,
        "sample": 0,
        "policy_version": 0,
        "steps": (),
        "stop_reason": StopReason.ANSWER,
        "reward": RewardBundle(score=1.0, passed=True),
    }
    return Trajectory(**(defaults | fields))


def stored_blob(store: RunStore, sha256: str) -> Path:
    """The file of a blob."""
    (path,) = store.blobs_path.glob(f"*/*/{sha256}.*")
    return path

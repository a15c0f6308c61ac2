"""Parts that the sessions of one OpenEnv server share: tasks, table of sessions, event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from envs.adapters.openenv.types import ResetOptions
from envs.prompts import StepRenderer
from envs.registry import choose_task, find_task, list_tasks
from envs.server import SessionTable
from envs.types import ConfigError, Split, TaskError, WebTask

SPLIT_TYPES = {Split.TRAIN: "train", Split.HELD_OUT: "test"}
"""OpenEnv's types of our splits; the others are ``validation``."""


@dataclass
class SharedSessions:
    """Parts that the sessions of one server share."""

    renderer: StepRenderer
    tasks: Mapping[str, WebTask]
    """Tasks of a file by id; the front door's ids are taken too."""
    default_task: str
    live: bool
    """True takes addresses and ``live/…`` as tasks."""
    table: SessionTable = field(init=False)
    """Made when the server starts, in its event loop."""
    loop: asyncio.AbstractEventLoop = field(init=False)

    @cached_property
    def listed(self) -> dict[str, WebTask]:
        """Tasks that clients can list by id: those of the file, else those of the front door."""
        return dict(self.tasks) or {task_id: find_task(task_id) for task_id in list_tasks()}

    def choose(self, options: ResetOptions, current: str) -> ResetOptions:
        """Return the options with a task: the given one, that of a split, or the current one.

        Raises:
            ConfigError: They name a task in two ways, or a split without an index.
            TaskError: There is no such split or index.
        """
        if (options.split is None) != (options.index is None) or (options.task and options.split):
            raise ConfigError("reset: give the task, or its split and index")
        if options.split is None or options.index is None:
            return options.model_copy(update={"task": options.task or current or self.default_task})
        try:
            spec = self.spec(options.split, options.index)
        except IndexError as error:
            raise TaskError(str(error)) from None
        seed = options.seed if options.seed is not None else spec["seeds"][0]
        return options.model_copy(update={"task": spec["id"], "seed": seed})

    def find(self, task_id: str, options: ResetOptions) -> str | WebTask:
        """Return a task by its id, with the changes of a reset; an address as it is.

        Raises:
            TaskError: There is none, or it is on the open web and ``live`` is not set.
        """
        if "://" in task_id or task_id.startswith("live/"):
            if not self.live:
                raise TaskError(f"{task_id}: this server opens no addresses; start it with --live")
            return task_id
        known = self.tasks.get(task_id, task_id)
        return choose_task(known, seed=options.seed, instruction=options.instruction, horizon=options.horizon)

    def splits(self) -> list[dict[str, str]]:
        """Return name and type of the splits that the tasks have."""
        splits = [split for split in Split if any(split in task.seeds for task in self.listed.values())]
        return [{"name": split.value, "type": SPLIT_TYPES.get(split, "validation")} for split in splits]

    def specs(self, split: str) -> list[dict[str, Any]]:
        """Return the tasks of a split as OpenEnv lists them; rubrics stay here.

        Raises:
            TaskError: There is no such split.
        """
        if split not in (names := [one["name"] for one in self.splits()]):
            raise TaskError(f"no split {split!r}: there are {', '.join(names)}")
        chosen = [(task_id, task) for task_id, task in self.listed.items() if Split(split) in task.seeds]
        return [
            {
                "id": task_id,
                "index": index,
                "instruction": task.instruction,
                "difficulty": task.difficulty,
                "horizon": task.horizon,
                "seeds": [task.seeds[Split(split)].start, task.seeds[Split(split)].stop],
            }
            for index, (task_id, task) in enumerate(chosen)
        ]

    def spec(self, split: str, index: int) -> dict[str, Any]:
        """Return one of `specs`.

        Raises:
            TaskError: There is no such split.
            IndexError: It has fewer tasks.
        """
        specs = self.specs(split)
        if not 0 <= index < len(specs):
            raise IndexError(f"task {index} of split {split!r}: it has {len(specs)}")
        return specs[index]

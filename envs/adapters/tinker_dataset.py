"""Tinker: data sets of groups of episodes, as ``tinker_cookbook.rl.train`` takes them.

::

    builder = TinkerDatasetBuilder(
        tasks="miniwob", model_name="Qwen/Qwen3-8B", renderer_name="qwen3_disable_thinking",
        groups_per_batch=16, group_size=8, batches=100,
    )
    config = train.Config(dataset_builder=builder, ...)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.adapters.tinker import TinkerGroupBuilder
from envs.adapters.tinker_prompts import MessageRenderer
from envs.adapters.tinker_types import HAS_COOKBOOK, BuilderBase, DatasetBase, configured
from envs.prompts import StepRenderer
from envs.registry import families, find_task, list_tasks
from envs.tasks import load_tasks
from envs.types import ConfigError, Split, TaskError, WebTask


class TinkerDataset(DatasetBase):  # type: ignore[misc]
    """Batches of groups: each lap goes through all tasks in a random order, with its own seeds."""

    def __init__(
        self,
        tasks: Sequence[WebTask],
        renderer: MessageRenderer,
        *,
        groups_per_batch: int,
        group_size: int,
        batches: int | None = None,
        split: Split = Split.TRAIN,
        order_seed: int = 0,
        **options: Any,
    ) -> None:
        """
        Args:
            tasks: Tasks, of which those without seeds of the split are left out.
            renderer: Renderer of the model's chat template.
            batches: Number of batches; one lap if not given.
            split: Split whose seeds are played.
            order_seed: Seed of the order of the tasks.
            options: The same as of `envs.adapters.tinker.TinkerEnv`.

        Raises:
            TaskError: No task has seeds of the split.
        """
        self._tasks = [task for task in tasks if split in task.seeds]
        if not self._tasks:
            raise TaskError(f"none of {len(tasks)} tasks has seeds of the split {split}")
        self._renderer, self._options = renderer, {"group_size": group_size, **options}
        self._groups_per_batch = groups_per_batch
        self._batches = batches if batches is not None else -(-len(self._tasks) // groups_per_batch)
        self._split, self._order_seed = split, order_seed

    def __len__(self) -> int:
        return self._batches

    def get_batch(self, index: int) -> list[TinkerGroupBuilder]:
        """Return the builders of a batch's groups, the same ones at each call."""
        first = index * self._groups_per_batch
        return [self._group(place) for place in range(first, first + self._groups_per_batch)]

    def _group(self, place: int) -> TinkerGroupBuilder:
        lap, position = divmod(place, len(self._tasks))
        order = random.Random(f"{self._order_seed}/{lap}").sample(range(len(self._tasks)), len(self._tasks))
        task = self._tasks[order[position]]
        seeds = task.seeds[self._split]
        return TinkerGroupBuilder(task, self._renderer, seed=seeds.start + lap % len(seeds), **self._options)


@configured
class TinkerDatasetBuilder(BuilderBase):  # type: ignore[misc]
    """The data set of a training run, and one of held-out seeds.

    It is a ``chz`` class where ``tinker_cookbook`` can be imported.
    """

    tasks: str
    """A family of `envs.list_tasks`, one of its ids, or a task file."""
    model_name: str
    """Model whose tokenizer (and image processor) is loaded."""
    renderer_name: str
    """Name of the cookbook's renderer for it."""
    groups_per_batch: int
    group_size: int
    batches: int | None = None
    """Number of training batches; one lap through the tasks if not given."""
    mode: str = "text"
    """Form of a page: ``text``, ``set_of_marks`` or ``coordinates`` (the latter two with the
    screenshot)."""
    horizon: int | None = None
    """Maximum number of steps of an episode; the task's own if not given."""
    max_tokens: int | None = None
    """Tokens that a prompt may have."""
    order_seed: int = 0

    async def __call__(self) -> tuple[TinkerDataset, TinkerDataset | None]:
        """Return the training data set, and the held-out one if any task has held-out seeds.

        Raises:
            ConfigError: ``tinker_cookbook`` cannot be imported.
            TaskError: There are no such tasks.
        """
        if not HAS_COOKBOOK:
            raise ConfigError(
                "the cookbook's renderers are missing: make TinkerDataset with your own, or "
                "pip install --no-deps tinker-cookbook with what it imports (scripts/setup_frameworks)"
            )
        from tinker_cookbook import renderers, tokenizer_utils
        from tinker_cookbook.image_processing_utils import get_image_processor

        shown = StepRenderer(mode=self.mode)
        images = get_image_processor(self.model_name) if shown.shows_screenshot else None
        renderer = renderers.get_renderer(
            self.renderer_name, tokenizer_utils.get_tokenizer(self.model_name), images, model_name=self.model_name
        )
        tasks = _find_tasks(self.tasks)
        options: dict[str, Any] = {"shown": shown, "horizon": self.horizon, "max_tokens": self.max_tokens}
        train = TinkerDataset(
            tasks,
            renderer,
            groups_per_batch=self.groups_per_batch,
            group_size=self.group_size,
            batches=self.batches,
            order_seed=self.order_seed,
            **options,
        )
        if not any(Split.HELD_OUT in task.seeds for task in tasks):
            return train, None
        held_out = TinkerDataset(
            tasks, renderer, groups_per_batch=len(tasks), group_size=1, split=Split.HELD_OUT, **options
        )
        return train, held_out


def _find_tasks(name: str) -> list[WebTask]:
    """Return the tasks of a family, of an id or of a file."""
    if name in families():
        return [find_task(task_id) for task_id in list_tasks(name)]
    return load_tasks(name) if Path(name).is_file() else [find_task(name)]

"""The tasks of a Gymnasium environment, of which each reset draws one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from envs.registry import choose_task, split_of
from envs.sites import make_site
from envs.tasks import load_tasks
from envs.types import ConfigError, Split, TaskError, WebTask


class TaskChoice:
    """One task, or those of a file, with the seeds of a split."""

    def __init__(
        self,
        task: str | WebTask | None,
        tasks: str | PathLike[str] | Sequence[WebTask] | None,
        split: Split,
        options: Mapping[str, Any],
    ) -> None:
        """
        Args:
            task, tasks: Exactly one of them, as of `RollwrightEnv`.
            options: Further arguments of `envs.open_env`.

        Raises:
            TaskError: There is no such task, or it has no seeds of the split.
            ConfigError: Not exactly one of ``task`` and ``tasks``.
        """
        if (task is None) == (tasks is None):
            raise ConfigError("give either task= (an id of envs.list_tasks) or tasks= (a task file)")
        given = (
            [task]
            if task is not None
            else load_tasks(tasks)
            if isinstance(tasks, str | PathLike)
            else list(tasks or ())
        )
        changes = {name: options.get(name) for name in ("instruction", "horizon", "date")}
        self.tasks = {chosen.task_id: chosen for chosen in (choose_task(one, **changes) for one in given)}
        """Tasks by id."""
        # An address that a person names may be reached, so it is opened as such.
        self._address = task if isinstance(task, str) and "://" in task else None
        self._split, self._live = split, options.get("live")
        for one in self.tasks.values():
            if one.seeds and self._split not in one.seeds:
                raise TaskError(f"{one.task_id} has no seeds of split={self._split.value!r}: {', '.join(one.seeds)}")

    def draw(self, seed: int | None, options: dict[str, Any], random: Any) -> tuple[str | WebTask, int]:
        """Return the task and the page's seed of the next episode.

        Raises:
            ConfigError: There is no such option or task.
        """
        name = options.pop("task", None)
        if options or (name is not None and name not in self.tasks):
            raise ConfigError(
                f"reset takes options={{'task': ID}}, ID one of {', '.join([*self.tasks][:9])} …; got {options or name}"
            )
        ids = [*self.tasks]
        if name is None:
            name = ids[random.integers(len(ids))] if len(ids) > 1 else ids[0]
        task = self.tasks[name]
        if not task.seeds:
            return self._address or task, 0
        if seed is not None and split_of(task, seed) is not None:
            return self._address or task, seed
        seeds = task.seeds[self._split]
        return self._address or task, int(random.integers(seeds.start, seeds.stop))

    def picture_size(self, device: Any) -> tuple[int, int]:
        """Return height and width of screenshots.

        Raises:
            ConfigError: The sites' viewports differ, and no device is given.
        """
        if device is not None:
            return round(device.height * device.scale), round(device.width * device.scale)
        sizes = {make_site(site, self._live).viewport for site in {task.site for task in self.tasks.values()}}
        if len(sizes) > 1:
            raise ConfigError(f"the sites' viewports differ ({sizes}); give all one: pool={{'device': Device(…)}}")
        ((width, height),) = sizes
        return height, width

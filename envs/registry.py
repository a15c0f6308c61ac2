"""Finds tasks by the ids of the front door: ``miniwob/click-test``, ``bundled/shop-open``,
``design2code/1``, ``oscar/oscar-open/1``, ``live/example.com``.

A site recipe with `tasks` is a family of its name. What a family holds is read when it is first
asked for. Tasks of files need no id: `load_tasks` reads them, and `open_env` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

from envs.ends import max_steps
from envs.sites import design2code, miniwob
from envs.sites.recipes.recipe import find_recipe, is_recipe, recipe_files
from envs.tasks import load_tasks
from envs.tasks.imports.base import split_address
from envs.types import ConfigError, SeedRange, Split, TaskError, WebTask, read_date
from envs.types.near import near

BUNDLED_FILE = Path(__file__).parents[1] / "datasets" / "tasks" / "bundled.jsonl"
"""Tasks on the bundled sites (shop, tracker, directory)."""

LIVE = "live"
"""Family of tasks on a host that somebody else serves: ``live/<host>`` or ``live/<host>/<path>``,
with an instruction."""

LIVE_SEEDS = {Split.TRAIN: SeedRange(start=0, stop=2**31)}
"""Seeds of the open web, whose pages have none: any will do, and none changes a page."""


@cache
def _miniwob() -> dict[str, WebTask]:
    return {task.task_id: task for task in miniwob.import_tasks()}


@cache
def _design2code() -> dict[str, WebTask]:
    return {task.task_id: task for task in design2code.import_tasks()}


@cache
def _of_file(family: str, path: Path) -> dict[str, WebTask]:
    """Return the tasks of a file by ids that begin with the family."""
    tasks = {task.task_id.removeprefix(f"{family}/"): task for task in load_tasks(path)}
    return {f"{family}/{task_id}": task for task_id, task in tasks.items()}


FAMILIES: dict[str, Callable[[], dict[str, WebTask]]] = {
    "miniwob": _miniwob,
    "bundled": partial(_of_file, "bundled", BUNDLED_FILE),
    "design2code": _design2code,
}
"""Tasks by id of the families that are no recipes, by the first part of the ids."""


def families() -> list[str]:
    """Return the names of all families: `FAMILIES`, then recipes with tasks.

    Raises:
        ConfigError: The file of a recipe is wrong.
    """
    return [*FAMILIES, *(name for name in recipe_files() if name not in FAMILIES and find_recipe(name).tasks)]


def list_tasks(family: str = "") -> list[str]:
    """The ids that `open_env` takes, of one family or of all.

    ``live/<host>`` takes any host, so it lists none.

    Raises:
        TaskError: there is no such family.
    """
    if family == LIVE:
        return []
    names = [family] if family else families()
    return [task_id for name in names for task_id in _family(name)()]


def choose_task(
    task: str | WebTask,
    *,
    site: str | None = None,
    seed: int | None = None,
    instruction: str | None = None,
    horizon: int | None = None,
    date: str | None = None,
) -> WebTask:
    """Return the task that `open_env` is asked for, with the changes that its arguments ask for.

    Args:
        site: Name of the caller's own site.

    Raises:
        TaskError: There is no such task.
        ConfigError: The horizon or the date is wrong.
    """
    if not isinstance(task, str):
        chosen = task
    elif site is not None and _known_family(task.partition("/")[0]) is None and "://" not in task:
        chosen = page_task(site, f"/{task.lstrip('/')}", instruction, f"{site}/{task.lstrip('/')}")
    else:
        chosen = find_task(task, instruction=instruction, seed=seed)
    changed: dict[str, str | int] = {} if instruction is None else {"instruction": instruction}
    if horizon is not None:
        if horizon < 1:
            raise ConfigError(f"horizon: got {horizon}; an episode has at least 1 step")
        changed["horizon"] = horizon
    if date is not None:
        try:
            read_date(date)
        except ValueError as error:
            raise ConfigError(f"date: {error}") from error
        changed["date"] = date
    return chosen.model_copy(update=changed)


def find_task(task_id: str, *, instruction: str | None = None, seed: int | None = None) -> WebTask:
    """Return the task of an id or of an address on the web.

    Args:
        task_id: An id of `list_tasks`; ``bundled/<kind>`` for a task of that kind; ``live/<host>``;
            or ``http://…``, ``https://…``.
        instruction: Instruction for a live page, which has none; it replaces that of other tasks.
        seed: Seed that chooses among the tasks of a kind; the first one if not given.

    Raises:
        TaskError: No task has this id (the message suggests similar ones), or a live page has no
            instruction.
    """
    family, _, rest = task_id.partition("/")
    if task_id.startswith(("file:", "/", ".")):
        raise TaskError(
            f'{task_id}: files are served: open_env("index.html", site=StaticSite("mine", "FOLDER"), instruction=…)'
        )
    if "://" in task_id or family == LIVE:
        return _live(task_id if "://" in task_id else f"https://{rest}", task_id, instruction)
    tasks = _family(family)()
    task = tasks.get(task_id) or _of_kind(tasks.values(), rest, seed)
    if task is None:
        kinds = [f"{family}/{task.kind}" for task in tasks.values()]
        raise TaskError(
            f"no task {task_id!r}; {near(task_id, [*kinds, *tasks])}envs.list_tasks({family!r}) gives all {len(tasks)}"
        )
    return task if instruction is None else task.model_copy(update={"instruction": instruction})


def _of_kind(tasks: Iterable[WebTask], kind: str, seed: int | None) -> WebTask | None:
    same_kind = [task for task in tasks if task.kind == kind]
    fitting = [task for task in same_kind if seed is not None and split_of(task, seed) is not None]
    return next(iter([*fitting, *same_kind]), None)


def seed_of(task: WebTask, seed: int | None) -> int:
    """Return a seed of the task's.

    It is the first one of its training range (or of another) if none is given.

    Raises:
        TaskError: The seed is not one of the task's.
    """
    if not task.seeds:
        return 0 if seed is None else seed
    if seed is None:
        return (task.seeds.get(Split.TRAIN) or next(iter(task.seeds.values()))).start
    if split_of(task, seed) is None:
        ranges = ", ".join(f"{split} {seeds.start} to {seeds.stop - 1}" for split, seeds in task.seeds.items())
        raise TaskError(f"seed {seed} is not one of {task.task_id}: {ranges}")
    return seed


def split_of(task: WebTask, seed: int) -> Split | None:
    """Return the split of a task that a seed belongs to, or ``None``."""
    return next((split for split, seeds in task.seeds.items() if seeds.start <= seed < seeds.stop), None)


def _known_family(name: str) -> Callable[[], dict[str, WebTask]] | None:
    if name in FAMILIES:
        return FAMILIES[name]
    recipe = find_recipe(name) if is_recipe(name) else None
    return partial(_of_file, name, recipe.path_of(recipe.tasks)) if recipe is not None and recipe.tasks else None


def _family(name: str) -> Callable[[], dict[str, WebTask]]:
    family = _known_family(name)
    if family is None:
        names = families()
        known = [*(f"{family}/…" for family in names), "live/HOST", "an address (https://…)", "a WebTask"]
        known.append('a page of a folder with site=StaticSite("mine", "FOLDER")')
        ids = [f"{family}/{task.kind}" for family in names for task in _family(family)().values()]
        same = [task_id for task_id in ids if task_id.partition("/")[2] == name]  # the family was left out
        hint = near(name, same, cutoff=0.0) if same else near(name, [*names, *ids])
        raise TaskError(f"no tasks are called {name!r}; {hint}open_env takes {', '.join(known)}")
    return family


def _live(url: str, given: str, instruction: str | None) -> WebTask:
    try:
        site, path = split_address(url)
    except ValueError as error:
        raise TaskError(f"{given}: {error}") from error
    return page_task(site, path, instruction, f"{LIVE}/{site}{path}")


def page_task(site: str, path: str, instruction: str | None, task_id: str) -> WebTask:
    """A task on a page that declares nothing.

    Raises:
        TaskError: there is no instruction.
    """
    if not instruction:
        raise TaskError(f"{task_id}: the page does not say what to do; give instruction=…")
    return WebTask(
        task_id=task_id,
        site=site,
        kind=site,
        path=path,
        instruction=instruction,
        difficulty=1,
        horizon=max_steps(1),
        seeds=LIVE_SEEDS,
    )

"""Makes the tasks of a spec.

A task is a pure function of its id, ``<kind>/<world's seed>/<number>``. So the solution of a stored
task can be made again, and any process may make any part of a set. The spec gives the order of
worlds, one site each, and every template makes a few tasks of each world. A request that was made
before, in whatever world and wording, is dropped.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from envs.bundled.generate import directory, shop, tracker
from envs.bundled.generate.drafts import PASS_THRESHOLD, TaskDraft, Template
from envs.bundled.generate.moves import Plan
from envs.bundled.generate.spec import WORLDS, GeneratorSpec
from envs.bundled.sites.directory import directory_world
from envs.bundled.sites.shop import shop_world
from envs.bundled.sites.tracker import tracker_world
from envs.ends import bucket_of, max_steps
from envs.types import PassRequirements, Rubric, SeedRange, Split, TaskError, WebTask, rubric_hash
from envs.types.near import near

WORLD_OF: dict[str, Callable[[int], Any]] = {
    "shop": shop_world,
    "tracker": tracker_world,
    "directory": directory_world,
}
"""Makers of the bundled sites' worlds, by site."""

TEMPLATES: dict[str, Template] = {
    template.kind: template for site in (shop, tracker, directory) for template in site.TEMPLATES
}
"""All templates by kind."""

EXTRA_STEPS = 4
"""Steps beyond the solution's length, if that exceeds the steps that the difficulty gives."""
CHUNK = 32
"""Worlds given to each process at a time. They have some 80 tasks of 2 kB each."""
NO_REQUIREMENTS = PassRequirements()
"""No further requirements. It is passed explicitly: Pydantic would copy its default for each
rubric, which takes a tenth of the time.
"""
MAX_BARREN_WORLDS = 300
"""Worlds in a row without a new task after which a spec counts as exhausted."""


class World(NamedTuple):
    """One world of a set."""

    site: str
    seed: int
    split: Split


class PendingTask(NamedTuple):
    """A task that can be made, and the digest of its request."""

    content: bytes
    task: Callable[[], WebTask]


def generate(spec: GeneratorSpec, *, processes: int = 1) -> Iterator[WebTask]:
    """Yield the distinct tasks of a set.

    Their order does not depend on ``processes``.

    Raises:
        TaskError: a site or kind is not known, the choice leaves no template or no split, or there
            are not as many different tasks.
    """
    seen: set[bytes] = set()
    barren = 0
    for made in _make_worlds(spec, processes):
        before = len(seen)
        for candidate in made:
            if candidate.content not in seen and len(seen) < spec.count:
                seen.add(candidate.content)
                yield candidate.task()
        barren = 0 if len(seen) > before else barren + 1
        if len(seen) >= spec.count:
            return
        if barren == MAX_BARREN_WORLDS:
            break
    raise TaskError(
        f"there are {len(seen)} different tasks of these kinds in these worlds, {spec.count} are wanted; ask for more kinds, splits or worlds"
    )


def generate_world(spec: GeneratorSpec, world: World) -> list[WebTask]:
    """Return the tasks of one world, including requests that other worlds have too."""
    return [made.task() for made in _make_world((spec, world))]


def worlds(spec: GeneratorSpec) -> Iterator[World]:
    """Yield the worlds of a set in order, until a split has no more. Each site comes in turn."""
    sites = sorted({template.site for template in _choose_templates(spec)})
    shares = {split: share for split, share in sorted(spec.splits.items()) if share > 0}
    total = sum(shares.values())
    if not total:
        raise TaskError("splits: no split has a share above 0; worlds are drawn for at least one")
    taken = dict.fromkeys(shares, 0)
    for number in itertools.count(1):
        split = max(shares, key=lambda split: shares[split] / total * number - taken[split])
        seeds = WORLDS[split]
        if taken[split] == len(seeds):
            return
        first = random.Random(f"worlds/{spec.seed}/{split}").randrange(len(seeds)) if spec.seed else 0
        seed = seeds.start + (first + taken[split]) % len(seeds)
        taken[split] += 1
        for site in sites:
            yield World(site, seed, split)


def draft_of(kind: str, seed: int, number: int) -> TaskDraft | None:
    """Return draft ``number`` of a template in a world; ``None`` if there is none.

    Raises:
        TaskError: there is no such template.
    """
    if kind not in TEMPLATES:
        raise TaskError(f"no template of kind {kind!r}; {near(kind, TEMPLATES)}there are {', '.join(TEMPLATES)}")
    template = TEMPLATES[kind]
    return template.draw(WORLD_OF[template.site](seed), random.Random(f"{kind}/{seed}/{number}"))


def solution_of(task: WebTask) -> Plan:
    """Return the moves that solve a generated task.

    Raises:
        TaskError: it is no generated task, or its rubric is not the one of its id (made by another
            version, or changed).
    """
    kind, _, rest = task.task_id.partition("/")
    seed, _, number = rest.partition("/")
    if kind not in TEMPLATES or not (seed.isdigit() and number.isdigit()):
        raise TaskError(f"{task.task_id} is no id of a generated task; they are <kind>/<seed>/<number>")
    draft = draft_of(kind, int(seed), int(number))
    if draft is None or rubric_hash(_make_rubric(draft)) != task.rubric_hash:
        raise TaskError(f"{task.task_id} was made by another version of its template; generate the set again")
    return draft.plan


def _choose_templates(spec: GeneratorSpec) -> list[Template]:
    for field, given, known in (("sites", spec.sites, WORLD_OF), ("kinds", spec.kinds, TEMPLATES)):
        if unknown := [name for name in given if name not in known]:
            wrong = "".join(f"there is no {name!r}; {near(name, known)}" for name in unknown)
            raise TaskError(f"{field}: {wrong}there are {', '.join(known)}")
    chosen = [
        template
        for template in TEMPLATES.values()
        if (not spec.sites or template.site in spec.sites)
        and (not spec.kinds or template.kind in spec.kinds)
        and (not spec.buckets or bucket_of(template.difficulty) in spec.buckets)
    ]
    if not chosen:
        raise TaskError(
            f"no template is on {spec.sites or 'any site'}, of {spec.kinds or 'any kind'} and in {spec.buckets or 'any bucket'}"
        )
    return chosen


def _make_worlds(spec: GeneratorSpec, processes: int) -> Iterator[list[PendingTask]]:
    """Yield the tasks of each world, in the worlds' order."""
    jobs = ((spec, world) for world in worlds(spec))
    if processes == 1:
        yield from map(_make_world, jobs)
        return
    # Spawned, not forked: the caller may have threads. One chunk at a time keeps the queue small.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        while chunk := list(itertools.islice(jobs, CHUNK * processes)):
            for rows in pool.imap(_make_rows, chunk, chunksize=2):
                yield [PendingTask(content, partial(WebTask.model_validate_json, row)) for content, row in rows]


def _make_rows(job: tuple[GeneratorSpec, World]) -> list[tuple[bytes, bytes]]:
    """Return tasks as JSON, which passes between processes at a third of records' cost."""
    return [(made.content, made.task().model_dump_json().encode()) for made in _make_world(job)]


def _make_world(job: tuple[GeneratorSpec, World]) -> list[PendingTask]:
    spec, world = job
    made = []
    for template in _choose_templates(spec):
        if template.site == world.site:
            for number in range(spec.per_world):
                draft = draft_of(template.kind, world.seed, number)
                if draft is not None:
                    made.append(_make(template, world, number, draft))
    return made


def _make(template: Template, world: World, number: int, draft: TaskDraft) -> PendingTask:
    rubric = _make_rubric(draft)
    frozen = rubric_hash(rubric)
    content = f"{world.site}\n{draft.path}\n{draft.wordings[0]}\n{frozen}"
    digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
    return PendingTask(digest, partial(_make_task, template, world, number, draft, rubric, frozen))


def _make_task(template: Template, world: World, number: int, draft: TaskDraft, rubric: Rubric, frozen: str) -> WebTask:
    task_id = f"{template.kind}/{world.seed}/{number}"
    difficulty = rubric.fact_count
    return WebTask(
        task_id=task_id,
        site=world.site,
        kind=template.kind,
        path=draft.path,
        instruction=random.Random(f"wording/{task_id}").choice(draft.wordings),
        difficulty=difficulty,
        horizon=max(max_steps(difficulty), len(draft.plan) + EXTRA_STEPS),
        seeds={world.split: SeedRange(start=world.seed, stop=world.seed + 1)},
        needs_reading=True,
        rubric=rubric,
        rubric_hash=frozen,
    )


def _make_rubric(draft: TaskDraft) -> Rubric:
    return Rubric(
        fact_groups=draft.groups, gates=draft.gates, pass_threshold=PASS_THRESHOLD, pass_requirements=NO_REQUIREMENTS
    )

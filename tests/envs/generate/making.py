"""A few tasks of every template."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from envs.bundled.generate import TEMPLATES, GeneratorSpec, generate
from envs.bundled.generate.moves import Fill, Follow, Plan, Push
from envs.bundled.sites.directory import directory_world
from envs.bundled.sites.shop import shop_world
from envs.bundled.sites.tracker import tracker_world
from envs.types import WebTask


@lru_cache(maxsize=1)
def by_kind() -> dict[str, list[WebTask]]:
    """At least two tasks of every template, some of them in one world."""
    found = defaultdict(list)
    for task in generate(GeneratorSpec(count=1_500, seed=3)):
        found[task.kind].append(task)
    assert set(found) == set(TEMPLATES) and all(len(tasks) > 1 for tasks in found.values())
    return dict(found)


def world_seed(task: WebTask) -> int:
    """The world that a task is about."""
    (seeds,) = task.seeds.values()
    return seeds.start


def something_else(task: WebTask) -> Plan:
    """Moves that change what the task does not ask for, and lead back to the start page."""
    said, seed = task.instruction or "", world_seed(task)
    if task.site == "shop":
        product = next(each for each in shop_world(seed).products if each.name not in said)
        return (Follow(product.category), Follow(product.name), Push("Add to basket"), Follow("Corner Shop"))
    if task.site == "tracker":
        world = tracker_world(seed)
        ticket = next(
            each
            for each in world.tickets
            if each.title not in said and each.project not in said and each.status not in said
        )
        return (
            Follow(ticket.project),
            Follow(ticket.title),
            Fill("New comment", "Hm"),
            Push("Comment"),
            Follow("Tickets"),
        )
    people = directory_world(seed)
    person = next(
        each for each in people.people if each.name not in said and each.department not in said and each.manager
    )
    return (
        Follow(person.department),
        Follow(person.name),
        Fill("Note", "Hm"),
        Push("Add to contacts"),
        Follow("People"),
    )

"""Worlds are pure functions of their seeds, and what questions are about is unambiguous."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from envs.bundled.sites.directory import directory_world
from envs.bundled.sites.directory.world import directory_world as again_directory
from envs.bundled.sites.shop import shop_world
from envs.bundled.sites.tracker import PRIORITIES, STATUSES, tracker_world

SEEDS = st.integers(0, 3_000_000)


def distinct(values: list) -> bool:
    return len(set(values)) == len(values)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_shop(seed: int) -> None:
    world = shop_world(seed)
    assert world == shop_world.__wrapped__(seed)
    assert len(world.products) == 48 and len(world.categories) == 6
    assert distinct([product.name for product in world.products])
    assert distinct([product.price for product in world.products])
    assert distinct([product.id for product in world.products])
    for category in world.categories:
        of_category = world.of_category(category)
        assert len(of_category) == 8
        assert distinct([product.rating for product in of_category])
        assert distinct([product.weight for product in of_category])
    assert all(product.stock >= 8 for product in world.products), "more than any task asks for"
    assert distinct([product for order in world.orders for product, _ in order.lines])
    assert any(order.status == "processing" for order in world.orders)
    assert [order.id for order in world.orders] == list(range(1001, 1007))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_tracker(seed: int) -> None:
    world = tracker_world(seed)
    assert world == tracker_world.__wrapped__(seed)
    assert distinct([ticket.title for ticket in world.tickets])
    assert distinct([*world.people]) and len(world.people) == 7
    assert Counter(ticket.project for ticket in world.tickets) == dict.fromkeys(world.projects, 12)
    assert {ticket.status for ticket in world.tickets} <= set(STATUSES)
    assert {ticket.priority for ticket in world.tickets} <= set(PRIORITIES)
    assert {ticket.assignee for ticket in world.tickets} <= set(world.people)
    assert world.next_id == max(ticket.id for ticket in world.tickets) + 1


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_directory(seed: int) -> None:
    world = directory_world(seed)
    assert world == again_directory.__wrapped__(seed)
    assert distinct([person.name for person in world.people])
    assert distinct([person.extension for person in world.people])
    assert len(world.departments) == 5
    for department in world.departments:
        people = world.of_department(department)
        assert distinct([person.started for person in people])
        (head,) = [person for person in people if person.manager is None]
        assert all(person.manager == head.id for person in people if person is not head)
    assert {person.office for person in world.people} <= {office.name for office in world.offices}
    assert distinct([office.city for office in world.offices])
    # A link's label leads to one place: no department, office or person shares a name.
    names = [*world.departments, *(office.name for office in world.offices), *(person.name for person in world.people)]
    assert distinct(names)

"""Templates over the tracker that look up and show. `tracker_edits` has those that change it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from envs.bundled.generate.drafts import (
    TaskDraft,
    Template,
    answer_fact,
    group,
    line_fact,
    number_fact,
    rows_fact,
    url_fact,
)
from envs.bundled.generate.moves import Choose, Fill, Follow, Plan, Push, Say
from envs.bundled.sites.tracker import PRIORITIES, STATUSES, Ticket, TrackerWorld
from envs.types import Fact


def untouched_but(*tickets: int) -> Fact:
    """Check that no other ticket was made or changed."""
    but = ", ".join(map(str, tickets))
    sides = [
        ("id", "tickets", "before_tickets"),
        ("ticket", "labels", "before_labels"),
        ("ticket", "before_labels", "labels"),
        ("ticket", "comments", "before_comments"),
    ]
    parts = [
        f"SELECT {key} FROM (SELECT * FROM {now} EXCEPT SELECT * FROM {then}) WHERE {key} NOT IN ({but})"
        for key, now, then in sides
    ]
    return rows_fact("others-untouched", " UNION ".join(parts), (), "No other ticket was made or changed")


UNTOUCHED = (untouched_but(),)


def to_ticket(ticket: Ticket, source: random.Random) -> Plan:
    """Return moves from any page to a ticket, through its project or the search."""
    if source.random() < 0.5:
        return (Follow(ticket.project), Follow(ticket.title))
    return (Fill("Search tickets", ticket.title), Push("Search"), Follow(ticket.title))


def _open(world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    there = url_fact("at", f"/tickets/{ticket.id}", f"At ticket {ticket.id}")
    return TaskDraft(
        wordings=(
            f'Open the ticket "{ticket.title}".',
            f'Go to the page of the ticket with the title "{ticket.title}".',
            f'Find the ticket "{ticket.title}" and show it.',
        ),
        groups=(group("page", f'The ticket "{ticket.title}" is open', there),),
        plan=to_ticket(ticket, source),
        gates=UNTOUCHED,
    )


def _ask(world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    field = source.choice(["assignee", "priority", "status"])
    value = str(getattr(ticket, field))
    expected = answer_fact("answer", value, description=f"Its {field} is {value}")
    asked = "Who is the assignee" if field == "assignee" else f"What is the {field}"
    return TaskDraft(
        wordings=(
            f'{asked} of the ticket "{ticket.title}"? Answer with nothing else.',
            f'Look up the ticket "{ticket.title}" and answer with its {field} only.',
        ),
        groups=(group("answer", f'The {field} of the ticket "{ticket.title}" is told', expected),),
        plan=(*to_ticket(ticket, source), Say(value)),
        gates=UNTOUCHED,
    )


def _count(world: TrackerWorld, source: random.Random) -> TaskDraft:
    project = source.choice(world.projects)
    first, second = _two_filters(world, source)
    matching = _agree(world.of_project(project), first, second)
    expected = number_fact("answer", len(matching), f"There are {len(matching)}")
    words = f"with {first[0]} {first[1]} and {second[0]} {second[1]}"
    return TaskDraft(
        wordings=(
            f"How many tickets {words} are there in the project {project}? Answer with the number.",
            f"Count the tickets of {project} {words} and answer with the number.",
        ),
        groups=(group("answer", f"The number of tickets in {project} {words} is told", expected),),
        plan=(Follow(project), *_filtering([first, second]), Say(str(len(matching)))),
        gates=UNTOUCHED,
    )


def _show(count: int, world: TrackerWorld, source: random.Random) -> TaskDraft:
    project = source.choice(world.projects)
    given = [*_two_filters(world, source)]
    if count == 3:
        rest = {"status", "priority", "assignee"} - {name for name, _ in given}
        given.append((name := rest.pop(), _value_of(name, world, source)))
    words = ", ".join(f"{name} {value}" for name, value in given)
    facts = [line_fact(name, f"{name.capitalize()}: {value}") for name, value in given]
    return TaskDraft(
        wordings=(
            f"Show the tickets of {project}, filtered: {words}.",
            f"In the project {project}, filter the list of tickets by {words}.",
        ),
        groups=(
            group(
                "list",
                f"The tickets of {project} are shown",
                url_fact("at", f"/projects/{project}", f"At {project}", "prefix"),
            ),
            group("filter", f"They are filtered by {words}", *facts),
        ),
        plan=(Follow(project), *_filtering(given)),
        gates=UNTOUCHED,
    )


def _value_of(name: str, world: TrackerWorld, source: random.Random) -> str:
    values: dict[str, Sequence[str]] = {"status": STATUSES, "priority": PRIORITIES, "assignee": world.people}
    return source.choice(values[name])


def _two_filters(world: TrackerWorld, source: random.Random) -> tuple[tuple[str, str], tuple[str, str]]:
    one, two = source.sample(["status", "priority", "assignee"], 2)
    return (one, _value_of(one, world, source)), (two, _value_of(two, world, source))


def _agree(tickets: Sequence[Ticket], *given: tuple[str, str]) -> list[Ticket]:
    return [ticket for ticket in tickets if all(getattr(ticket, name) == value for name, value in given)]


def _filtering(given: Sequence[tuple[str, str]]) -> Plan:
    return (*(Choose(name.capitalize(), value) for name, value in given), Push("Filter"))


def _show_two(world: TrackerWorld, source: random.Random) -> TaskDraft:
    return _show(2, world, source)


def _show_three(world: TrackerWorld, source: random.Random) -> TaskDraft:
    return _show(3, world, source)


LOOKING = (
    Template("tracker-open", "tracker", 1, _open),
    Template("tracker-ask", "tracker", 1, _ask),
    Template("tracker-count", "tracker", 1, _count),
    Template("tracker-show-2", "tracker", 3, _show_two),
    Template("tracker-show-3", "tracker", 4, _show_three),
)

"""Issue tracker templates that change state: fields, labels, comments, new tickets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from envs.bundled.generate.drafts import TaskDraft, Template, group, join_words, rows_fact, sql_literal
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Plan, Push, Tick
from envs.bundled.generate.tracker import to_ticket, untouched_but
from envs.bundled.sites.tracker import PRIORITIES, STATUSES, Ticket, TrackerWorld
from envs.bundled.sites.words import FEATURES, LABELS, PROBLEMS
from envs.types import Fact
from envs.types.rubrics import HttpFact

FIELDS = ("status", "priority", "assignee")
NOTES = (
    "Fixed in the last build",
    "Can you look into this",
    "Waiting for the customer",
    "I could not reproduce it",
    "Needs a test first",
    "Same cause as last month",
    "Planned for the next release",
    "Thanks for the report",
    "Please check it again",
    "This is done",
)
REASONS = (
    "seen by two customers",
    "found while testing",
    "happens every day",
    "started this week",
    "asked for by sales",
)

Changes = dict[str, str]
"""New value of each field."""


def _changes(ticket: Ticket, fields: Sequence[str], world: TrackerWorld, source: random.Random) -> Changes:
    """Draw new values of fields, different from the old ones."""
    values: dict[str, Sequence[str]] = {"status": STATUSES, "priority": PRIORITIES, "assignee": world.people}
    return {name: source.choice([value for value in values[name] if value != getattr(ticket, name)]) for name in fields}


def _describe_changes(changes: Changes) -> str:
    return join_words(f"its {name} to {value}" for name, value in changes.items())


def _field(ticket: int, name: str, value: str, suffix: str = "") -> Fact:
    query = f"SELECT {name} FROM tickets WHERE id = {ticket}"
    return rows_fact(f"{name}{suffix}", query, [(value,)], f"Its {name} is {value}")


def _unchanged_fact(ticket: int, changed: Sequence[str], labels: bool = False) -> Fact:
    """Check that the parts of a ticket that nobody asked to change are unchanged."""
    columns = ", ".join(name for name in ("id", "project", "title", "body", *FIELDS) if name not in changed)
    query = f"SELECT {columns} FROM tickets WHERE id = {ticket} EXCEPT SELECT {columns} FROM before_tickets"
    if not labels:
        mine = f"WHERE ticket = {ticket}"
        now, then = f"SELECT ticket, label FROM labels {mine}", f"SELECT ticket, label FROM before_labels {mine}"
        query = f"SELECT 1 FROM ({query}) UNION SELECT 1 FROM ({now} EXCEPT {then}) UNION SELECT 1 FROM ({then} EXCEPT {now})"
    return rows_fact(f"rest-of-{ticket}", query, (), "Nothing else of it was changed")


def _editing(changes: Changes) -> Plan:
    return (Follow("Edit"), *(Choose(name.capitalize(), value) for name, value in changes.items()), Push("Save"))


def _set(count: int, world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    fields = source.sample(FIELDS, count)
    changes = _changes(ticket, fields, world, source)
    facts = [_field(ticket.id, *change) for change in changes.items()]
    return TaskDraft(
        wordings=(
            f'Change the ticket "{ticket.title}": set {_describe_changes(changes)}.',
            f'Open the ticket "{ticket.title}" and set {_describe_changes(changes)}.',
        ),
        groups=(group("ticket", f'The ticket "{ticket.title}": {_describe_changes(changes)}', *facts),),
        plan=(*to_ticket(ticket, source), *_editing(changes)),
        gates=(untouched_but(ticket.id), _unchanged_fact(ticket.id, fields), _no_comment(ticket.id)),
    )


def _no_comment(ticket: int) -> Fact:
    query = f"SELECT text FROM comments WHERE ticket = {ticket} EXCEPT SELECT text FROM before_comments WHERE ticket = {ticket}"
    return rows_fact("no-comment", query, (), "Nothing was said")


def _commented(ticket: int, text: str) -> Fact:
    query = f"SELECT text FROM comments WHERE ticket = {ticket} AND id NOT IN (SELECT id FROM before_comments)"
    return rows_fact("comment", query, [(text,)], f"There is one new comment: {text}")


def _close(world: TrackerWorld, source: random.Random) -> TaskDraft | None:
    ticket = source.choice(world.tickets)
    if ticket.status == "closed":
        return None
    note = source.choice(NOTES)
    return TaskDraft(
        wordings=(
            f'Close the ticket "{ticket.title}" and leave the comment "{note}" on it.',
            f'Comment on the ticket "{ticket.title}" with exactly "{note}", and set its status to closed.',
        ),
        groups=(
            group("status", "The ticket is closed", _field(ticket.id, "status", "closed")),
            group("comment", f'The comment "{note}" is there', _commented(ticket.id, note)),
        ),
        plan=(
            *to_ticket(ticket, source),
            Fill("New comment", note),
            Push("Comment"),
            *_editing({"status": "closed"}),
        ),
        gates=(untouched_but(ticket.id), _unchanged_fact(ticket.id, ["status"])),
    )


def _whole(world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    changes = _changes(ticket, FIELDS, world, source)
    note = source.choice(NOTES)
    labels = sorted(source.choice([pair for pair in _pairs() if pair != ticket.labels]))
    return TaskDraft(
        wordings=(
            f'Update the ticket "{ticket.title}": set {_describe_changes(changes)}; its labels must be {join_words(labels)} and no others; '
            f'then leave the comment "{note}".',
            f'On the ticket "{ticket.title}", leave the comment "{note}". Also set {_describe_changes(changes)}, with just the labels '
            f"{join_words(labels)}.",
        ),
        groups=(
            group("fields", "The fields are set", *(_field(ticket.id, *change) for change in changes.items())),
            group("labels", f"Its labels are {join_words(labels)}", _labelled(ticket.id, labels)),
            group("comment", f'The comment "{note}" is there', _commented(ticket.id, note)),
        ),
        plan=(
            *to_ticket(ticket, source),
            Fill("New comment", note),
            Push("Comment"),
            Follow("Edit"),
            *(Choose(name.capitalize(), value) for name, value in changes.items()),
            *_ticking(ticket.labels, labels),
            Push("Save"),
        ),
        gates=(untouched_but(ticket.id), _unchanged_fact(ticket.id, FIELDS, labels=True)),
    )


def _pairs() -> list[tuple[str, str]]:
    return [(one, two) for one in LABELS for two in LABELS if one < two]


def _labelled(ticket: int, labels: Sequence[str]) -> Fact:
    wanted = [(label,) for label in labels]
    return rows_fact(
        "labels", f"SELECT label FROM labels WHERE ticket = {ticket}", wanted, f"Its labels are {join_words(labels)}"
    )


def _ticking(old: Sequence[str], new: Sequence[str]) -> list[Move]:
    return [Tick(label, label in new) for label in LABELS if (label in old) != (label in new)]


def _new(world: TrackerWorld, source: random.Random) -> TaskDraft:
    title = _new_title(world, source)
    project, body = source.choice(world.projects), source.choice(REASONS)
    me = world.people[0]
    priority = source.choice([choice for choice in PRIORITIES if choice != "medium"])
    assignee = source.choice([choice for choice in world.people if choice != me])
    labels = sorted(source.choice(_pairs()))
    number = world.next_id
    named = f"SELECT project FROM tickets WHERE id = {number} AND title = {sql_literal(title)}"
    return TaskDraft(
        wordings=(
            f'Create a ticket in {project} with the title "{title}", priority {priority}, assignee {assignee}, the labels {join_words(labels)} '
            f'and the description "{body}".',
            f'File a new ticket in the project {project}: title "{title}"; description "{body}"; labels {join_words(labels)}; '
            f"assign it to {assignee} with priority {priority}.",
        ),
        groups=(
            group(
                "ticket",
                f'There is a ticket "{title}" in {project}',
                rows_fact("title", named, [(project,)], f'It is called "{title}"'),
                HttpFact(
                    id="body", path=f"/api/tickets/{number}", at=("body",), value=body, description=f"It says: {body}"
                ),
            ),
            group(
                "fields",
                f"It is {priority} and assigned to {assignee}",
                _field(number, "priority", priority),
                _field(number, "assignee", assignee),
                after=["ticket"],
            ),
            group("labels", f"Its labels are {join_words(labels)}", _labelled(number, labels), after=["ticket"]),
        ),
        plan=(
            Follow(project),
            Follow("New ticket"),
            Fill("Title", title),
            Choose("Priority", priority),
            Choose("Assignee", assignee),
            *_ticking((), labels),
            Fill("Description", body),
            Push("Create ticket"),
        ),
        gates=(untouched_but(number),),
    )


def _new_title(world: TrackerWorld, source: random.Random) -> str:
    known = {ticket.title for ticket in world.tickets}
    while (title := f"{source.choice(FEATURES)} {source.choice(PROBLEMS)}") in known:
        pass
    return title


def _sweep(world: TrackerWorld, source: random.Random) -> TaskDraft | None:
    project = source.choice(world.projects)
    status, priority = source.choice(STATUSES), source.choice(PRIORITIES)
    matching = [
        ticket for ticket in world.of_project(project) if (ticket.status, ticket.priority) == (status, priority)
    ]
    others = [name for name in world.people if all(ticket.assignee != name for ticket in matching)]
    if not 2 <= len(matching) <= 3 or not others:
        return None
    name = source.choice(others)
    plan: list[Move] = []
    for ticket in matching:
        plan += [Follow(project), Follow(ticket.title), *_editing({"assignee": name})]
    return TaskDraft(
        wordings=(
            f"Assign every ticket of {project} with status {status} and priority {priority} to {name}.",
            f"All tickets in the project {project} that have status {status} and priority {priority} go to {name}: make {name} their assignee.",
        ),
        groups=tuple(
            group(
                f"ticket-{number}",
                f'"{ticket.title}" is assigned to {name}',
                _field(ticket.id, "assignee", name, f"-{number}"),
            )
            for number, ticket in enumerate(matching, 1)
        ),
        plan=tuple(plan),
        gates=(
            untouched_but(*(ticket.id for ticket in matching)),
            *(_unchanged_fact(ticket.id, ["assignee"]) for ticket in matching),
        ),
    )


def _several(count: int, world: TrackerWorld, source: random.Random) -> TaskDraft:
    tickets = source.sample(world.tickets, count)
    fields = ("priority", "assignee")
    all_changes = [_changes(ticket, fields, world, source) for ticket in tickets]
    change_texts = [
        f'"{ticket.title}": set {_describe_changes(changes)}'
        for ticket, changes in zip(tickets, all_changes, strict=True)
    ]
    plan: list[Move] = []
    for ticket, changes in zip(tickets, all_changes, strict=True):
        plan += [*to_ticket(ticket, source), *_editing(changes)]
    return TaskDraft(
        wordings=(
            f"Change these tickets. {'; '.join(change_texts)}.",
            f"Please go through these tickets and change them. {'; '.join(change_texts)}.",
        ),
        groups=tuple(
            group(f"ticket-{number}", words, *(_field(ticket.id, *change, f"-{number}") for change in changes.items()))
            for number, (ticket, changes, words) in enumerate(zip(tickets, all_changes, change_texts, strict=True), 1)
        ),
        plan=tuple(plan),
        gates=(
            untouched_but(*(ticket.id for ticket in tickets)),
            *(_unchanged_fact(ticket.id, fields) for ticket in tickets),
        ),
    )


CHANGING = (
    Template("tracker-set-1", "tracker", 1, partial(_set, 1)),
    Template("tracker-close", "tracker", 2, _close),
    Template("tracker-set-2", "tracker", 2, partial(_set, 2)),
    Template("tracker-sweep", "tracker", 3, _sweep),
    Template("tracker-set-3", "tracker", 3, partial(_set, 3)),
    Template("tracker-several-2", "tracker", 4, partial(_several, 2)),
    Template("tracker-whole", "tracker", 5, _whole),
    Template("tracker-new", "tracker", 5, _new),
    Template("tracker-several-4", "tracker", 8, partial(_several, 4)),
)

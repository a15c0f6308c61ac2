"""Templates over the tracker: look up, show, edit tickets, comment, create.

Each function draws one request: its wordings, what is true at the end, and the moves to it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from envs.bundled.generate import drafts
from envs.bundled.generate.drafts import (
    TaskDraft,
    Template,
    answer_group,
    draft,
    field_fact,
    group,
    join_words,
    line_fact,
    no_rows_fact,
    page_group,
    row_fact,
    rows_fact,
    sql_literal,
    url_fact,
)
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Plan, Push, Say, Tick
from envs.bundled.sites.tracker import PRIORITIES, STATUSES, Ticket, TrackerWorld
from envs.bundled.sites.words import FEATURES, LABELS, PROBLEMS, split_phrases
from envs.types import Fact

FIELDS = ("status", "priority", "assignee")
NOTES = split_phrases(
    "Fixed in the last build;Can you look into this;Waiting for the customer;I could not reproduce it;Needs a test first;"
    "Same cause as last month;Planned for the next release;Thanks for the report;Please check it again;This is done"
)
REASONS = split_phrases(
    "seen by two customers;found while testing;happens every day;started this week;asked for by sales"
)
LABEL_PAIRS = [(one, two) for one in LABELS for two in LABELS if one < two]

Values = dict[str, str]
"""A value for each of some fields: the new one, or the one to filter by."""


def _find(ticket: Ticket, source: random.Random) -> Plan:
    return drafts.find(ticket.title, ticket.project, "Search tickets", source)


def _choices(name: str, world: TrackerWorld) -> Sequence[str]:
    return {"status": STATUSES, "priority": PRIORITIES, "assignee": world.people}[name]


def _choose(values: Values) -> list[Move]:
    return [Choose(name.capitalize(), value) for name, value in values.items()]


def _untouched_but(*tickets: int) -> Fact:
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
    return no_rows_fact("others-untouched", " UNION ".join(parts), "No other ticket was made or changed")


look = partial(draft, gates=(_untouched_but(),))
"""Makes a draft of a request that changes nothing."""


def _open(world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    return look(
        f'Open the ticket "{ticket.title}".',
        f'Go to the page of the ticket with the title "{ticket.title}".',
        f'Find the ticket "{ticket.title}" and show it.',
        groups=page_group(f'The ticket "{ticket.title}" is open', f"/tickets/{ticket.id}", f"ticket {ticket.id}"),
        plan=_find(ticket, source),
    )


def _ask(world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    field = source.choice(["assignee", "priority", "status"])
    value = str(getattr(ticket, field))
    asked = "Who is the assignee" if field == "assignee" else f"What is the {field}"
    return look(
        f'{asked} of the ticket "{ticket.title}"? Answer with nothing else.',
        f'Look up the ticket "{ticket.title}" and answer with its {field} only.',
        groups=answer_group(f'The {field} of the ticket "{ticket.title}" is told', value, f"Its {field} is {value}"),
        plan=(*_find(ticket, source), Say(value)),
    )


def _count(world: TrackerWorld, source: random.Random) -> TaskDraft:
    project = source.choice(world.projects)
    filters = _filters(2, world, source)
    number = len(_matching(project, filters, world))
    words = "with " + " and ".join(f"{name} {value}" for name, value in filters.items())
    return look(
        f"How many tickets {words} are there in the project {project}? Answer with the number.",
        f"Count the tickets of {project} {words} and answer with the number.",
        groups=answer_group(f"The number of tickets in {project} {words} is told", number, f"There are {number}"),
        plan=(Follow(project), *_choose(filters), Push("Filter"), Say(str(number))),
    )


def _show(count: int, world: TrackerWorld, source: random.Random) -> TaskDraft:
    project = source.choice(world.projects)
    filters = _filters(count, world, source)
    words = ", ".join(f"{name} {value}" for name, value in filters.items())
    lines = [line_fact(name, f"{name.capitalize()}: {value}") for name, value in filters.items()]
    return look(
        f"Show the tickets of {project}, filtered: {words}.",
        f"In the project {project}, filter the list of tickets by {words}.",
        groups=(
            group("list", f"The tickets of {project} are shown", url_fact(f"/projects/{project}", project, "prefix")),
            group("filter", f"They are filtered by {words}", *lines),
        ),
        plan=(Follow(project), *_choose(filters), Push("Filter")),
    )


def _filters(count: int, world: TrackerWorld, source: random.Random) -> Values:
    """Draw values of two fields, or of all three."""
    names = source.sample(FIELDS, 2)
    if count == 3:
        names += [name for name in FIELDS if name not in names]
    return {name: source.choice(_choices(name, world)) for name in names}


def _matching(project: str, values: Values, world: TrackerWorld) -> list[Ticket]:
    wanted = {"project": project, **values}
    return [ticket for ticket in world.tickets if all(getattr(ticket, name) == wanted[name] for name in wanted)]


def _set(count: int, world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    changes = _changes(ticket, source.sample(FIELDS, count), world, source)
    wanted = _describe_changes(changes)
    return draft(
        f'Change the ticket "{ticket.title}": set {wanted}.',
        f'Open the ticket "{ticket.title}" and set {wanted}.',
        groups=group("ticket", f'The ticket "{ticket.title}": {wanted}', *_changed(ticket.id, changes)),
        plan=(*_find(ticket, source), *_edit(changes)),
        gates=(_untouched_but(ticket.id), _rest_of(ticket.id, changes), _no_comment(ticket.id)),
    )


def _several(count: int, world: TrackerWorld, source: random.Random) -> TaskDraft:
    tickets = source.sample(world.tickets, count)
    changes = [_changes(ticket, ("priority", "assignee"), world, source) for ticket in tickets]
    both = list(zip(tickets, changes, strict=True))
    texts = [f'"{ticket.title}": set {_describe_changes(change)}' for ticket, change in both]
    return draft(
        f"Change these tickets. {'; '.join(texts)}.",
        f"Please go through these tickets and change them. {'; '.join(texts)}.",
        groups=[
            group(f"ticket-{number}", text, *_changed(ticket.id, change, f"-{number}"))
            for number, ((ticket, change), text) in enumerate(zip(both, texts, strict=True), 1)
        ],
        plan=[move for ticket, change in both for move in (*_find(ticket, source), *_edit(change))],
        gates=(
            _untouched_but(*(ticket.id for ticket in tickets)),
            *(_rest_of(ticket.id, change) for ticket, change in both),
        ),
    )


def _sweep(world: TrackerWorld, source: random.Random) -> TaskDraft | None:
    project = source.choice(world.projects)
    status, priority = source.choice(STATUSES), source.choice(PRIORITIES)
    tickets = _matching(project, {"status": status, "priority": priority}, world)
    others = [name for name in world.people if all(ticket.assignee != name for ticket in tickets)]
    if not 2 <= len(tickets) <= 3 or not others:
        return None
    name = source.choice(others)
    change = {"assignee": name}
    return draft(
        f"Assign every ticket of {project} with status {status} and priority {priority} to {name}.",
        f"All tickets in the project {project} that have status {status} and priority {priority} go to {name}: make {name} their assignee.",
        groups=[
            group(
                f"ticket-{number}",
                f'"{ticket.title}" is assigned to {name}',
                *_changed(ticket.id, change, f"-{number}"),
            )
            for number, ticket in enumerate(tickets, 1)
        ],
        plan=[move for ticket in tickets for move in (Follow(project), Follow(ticket.title), *_edit(change))],
        gates=(
            _untouched_but(*(ticket.id for ticket in tickets)),
            *(_rest_of(ticket.id, change) for ticket in tickets),
        ),
    )


def _close(world: TrackerWorld, source: random.Random) -> TaskDraft | None:
    ticket = source.choice(world.tickets)
    if ticket.status == "closed":
        return None
    note = source.choice(NOTES)
    change = {"status": "closed"}
    return draft(
        f'Close the ticket "{ticket.title}" and leave the comment "{note}" on it.',
        f'Comment on the ticket "{ticket.title}" with exactly "{note}", and set its status to closed.',
        groups=(
            group("status", "The ticket is closed", *_changed(ticket.id, change)),
            group("comment", f'The comment "{note}" is there', _commented(ticket.id, note)),
        ),
        plan=(*_find(ticket, source), Fill("New comment", note), Push("Comment"), *_edit(change)),
        gates=(_untouched_but(ticket.id), _rest_of(ticket.id, change)),
    )


def _whole(world: TrackerWorld, source: random.Random) -> TaskDraft:
    ticket = source.choice(world.tickets)
    changes = _changes(ticket, FIELDS, world, source)
    wanted, note = _describe_changes(changes), source.choice(NOTES)
    labels = sorted(source.choice([pair for pair in LABEL_PAIRS if pair != ticket.labels]))
    both = join_words(labels)
    return draft(
        f'Update the ticket "{ticket.title}": set {wanted}; its labels must be {both} and no others; then leave the comment "{note}".',
        f'On the ticket "{ticket.title}", leave the comment "{note}". Also set {wanted}, with just the labels {both}.',
        groups=(
            group("fields", "The fields are set", *_changed(ticket.id, changes)),
            group("labels", f"Its labels are {both}", _labelled(ticket.id, labels)),
            group("comment", f'The comment "{note}" is there', _commented(ticket.id, note)),
        ),
        plan=(
            *_find(ticket, source),
            Fill("New comment", note),
            Push("Comment"),
            *_edit(changes, _tick(ticket.labels, labels)),
        ),
        gates=(_untouched_but(ticket.id), _rest_of(ticket.id, changes, labels=True)),
    )


def _new(world: TrackerWorld, source: random.Random) -> TaskDraft:
    title = _new_title(world, source)
    project, body = source.choice(world.projects), source.choice(REASONS)
    priority = source.choice([choice for choice in PRIORITIES if choice != "medium"])
    assignee = source.choice(world.people[1:])  # the first one is the assignee unless another is chosen
    labels = sorted(source.choice(LABEL_PAIRS))
    number, fields, both = world.next_id, {"priority": priority, "assignee": assignee}, join_words(labels)
    named = f"SELECT project FROM tickets WHERE id = {number} AND title = {sql_literal(title)}"
    return draft(
        f'Create a ticket in {project} with the title "{title}", priority {priority}, assignee {assignee}, the labels {both} '
        f'and the description "{body}".',
        f'File a new ticket in the project {project}: title "{title}"; description "{body}"; labels {both}; '
        f"assign it to {assignee} with priority {priority}.",
        groups=(
            group(
                "ticket",
                f'There is a ticket "{title}" in {project}',
                row_fact("title", named, project, f'It is called "{title}"'),
                field_fact(f"/api/tickets/{number}", "body", body, f"It says: {body}"),
            ),
            group(
                "fields", f"It is {priority} and assigned to {assignee}", *_changed(number, fields), after=["ticket"]
            ),
            group("labels", f"Its labels are {both}", _labelled(number, labels), after=["ticket"]),
        ),
        plan=(
            Follow(project),
            Follow("New ticket"),
            Fill("Title", title),
            *_choose(fields),
            *_tick((), labels),
            Fill("Description", body),
            Push("Create ticket"),
        ),
        gates=(_untouched_but(number),),
    )


def _new_title(world: TrackerWorld, source: random.Random) -> str:
    known = {ticket.title for ticket in world.tickets}
    while (title := f"{source.choice(FEATURES)} {source.choice(PROBLEMS)}") in known:
        pass
    return title


def _changes(ticket: Ticket, fields: Sequence[str], world: TrackerWorld, source: random.Random) -> Values:
    """Draw new values of fields, different from the old ones."""
    return {
        name: source.choice([value for value in _choices(name, world) if value != getattr(ticket, name)])
        for name in fields
    }


def _describe_changes(changes: Values) -> str:
    return join_words(f"its {name} to {value}" for name, value in changes.items())


def _edit(changes: Values, ticks: Sequence[Move] = ()) -> Plan:
    return (Follow("Edit"), *_choose(changes), *ticks, Push("Save"))


def _tick(old: Sequence[str], new: Sequence[str]) -> list[Move]:
    return [Tick(label, label in new) for label in LABELS if (label in old) != (label in new)]


def _changed(ticket: int, changes: Values, suffix: str = "") -> list[Fact]:
    return [
        row_fact(f"{name}{suffix}", f"SELECT {name} FROM tickets WHERE id = {ticket}", value, f"Its {name} is {value}")
        for name, value in changes.items()
    ]


def _labelled(ticket: int, labels: Sequence[str]) -> Fact:
    query = f"SELECT label FROM labels WHERE ticket = {ticket}"
    return rows_fact("labels", query, [(label,) for label in labels], f"Its labels are {join_words(labels)}")


def _commented(ticket: int, text: str) -> Fact:
    query = f"SELECT text FROM comments WHERE ticket = {ticket} AND id NOT IN (SELECT id FROM before_comments)"
    return row_fact("comment", query, text, f"There is one new comment: {text}")


def _no_comment(ticket: int) -> Fact:
    query = f"SELECT text FROM comments WHERE ticket = {ticket} EXCEPT SELECT text FROM before_comments WHERE ticket = {ticket}"
    return no_rows_fact("no-comment", query, "Nothing was said")


def _rest_of(ticket: int, changes: Values, labels: bool = False) -> Fact:
    """Check that the parts of a ticket that nobody asked to change are unchanged."""
    columns = ", ".join(name for name in ("id", "project", "title", "body", *FIELDS) if name not in changes)
    query = f"SELECT {columns} FROM tickets WHERE id = {ticket} EXCEPT SELECT {columns} FROM before_tickets"
    if not labels:
        mine = f"WHERE ticket = {ticket}"
        now, then = f"SELECT ticket, label FROM labels {mine}", f"SELECT ticket, label FROM before_labels {mine}"
        query = f"SELECT 1 FROM ({query}) UNION SELECT 1 FROM ({now} EXCEPT {then}) UNION SELECT 1 FROM ({then} EXCEPT {now})"
    return no_rows_fact(f"rest-of-{ticket}", query, "Nothing else of it was changed")


TEMPLATES = (
    Template("tracker-open", 1, _open),
    Template("tracker-ask", 1, _ask),
    Template("tracker-count", 1, _count),
    Template("tracker-show-2", 3, partial(_show, 2)),
    Template("tracker-show-3", 4, partial(_show, 3)),
    Template("tracker-set-1", 1, partial(_set, 1)),
    Template("tracker-close", 2, _close),
    Template("tracker-set-2", 2, partial(_set, 2)),
    Template("tracker-sweep", 3, _sweep),
    Template("tracker-set-3", 3, partial(_set, 3)),
    Template("tracker-several-2", 4, partial(_several, 2)),
    Template("tracker-whole", 5, _whole),
    Template("tracker-new", 5, _new),
    Template("tracker-several-4", 8, partial(_several, 4)),
)

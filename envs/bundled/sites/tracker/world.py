"""The world of the tracker, as a pure function of the seed. Titles of tickets are unique."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from functools import lru_cache

from envs.bundled.sites.words import FEATURES, FIRST_NAMES, LABELS, LAST_NAMES, PROBLEMS, PROJECTS

PROJECT_COUNT = 4
PEOPLE = 7
PER_PROJECT = 12
STATUSES = ("open", "in progress", "closed")
PRIORITIES = ("low", "medium", "high", "urgent")
REMARKS = (
    "I can see this too.",
    "Does it happen every time?",
    "It worked last week.",
    "Please add a picture.",
    "This blocks the next release.",
    "There is a way around it.",
)
"""Comments made before the episode."""

SCHEMA = """
CREATE TABLE people (name TEXT PRIMARY KEY);
CREATE TABLE projects (name TEXT PRIMARY KEY);
CREATE TABLE tickets (id INTEGER PRIMARY KEY, project TEXT, title TEXT, status TEXT, priority TEXT, assignee TEXT, body TEXT);
CREATE TABLE labels (ticket INTEGER REFERENCES tickets, label TEXT, PRIMARY KEY (ticket, label));
CREATE TABLE comments (id INTEGER PRIMARY KEY, ticket INTEGER REFERENCES tickets, author TEXT, text TEXT);
"""
BEFORE = "".join(
    f"CREATE TABLE before_{table} AS SELECT * FROM {table};" for table in ("tickets", "labels", "comments")
)
"""SQL that copies the tables at the start, to find what an episode changed."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One issue."""

    id: int
    project: str
    title: str
    status: str
    priority: str
    assignee: str
    body: str
    labels: tuple[str, ...]
    """Labels, sorted."""
    comments: tuple[tuple[str, str], ...]
    """(author, text) of each comment."""


@dataclass(frozen=True, slots=True)
class TrackerWorld:
    """Everything in a seed's tracker."""

    seed: int
    projects: tuple[str, ...]
    people: tuple[str, ...]
    """Names, sorted; the first person is logged in."""
    tickets: tuple[Ticket, ...]
    """Tickets by number."""

    @property
    def next_id(self) -> int:
        """Number of the first ticket that an episode makes."""
        return self.tickets[-1].id + 1


@lru_cache(maxsize=64)
def tracker_world(seed: int) -> TrackerWorld:
    """Make the tracker of a seed."""
    source = random.Random(f"tracker/{seed}")
    projects = tuple(sorted(source.sample(PROJECTS, PROJECT_COUNT)))
    first, last = source.sample(FIRST_NAMES, PEOPLE), source.sample(LAST_NAMES, PEOPLE)
    people = tuple(sorted(f"{one} {two}" for one, two in zip(first, last, strict=True)))
    return TrackerWorld(seed, projects, people, _make_tickets(source, projects, people))


def build_tracker(seed: int, db: sqlite3.Connection) -> None:
    """Fill an empty database with a seed's tracker."""
    world = tracker_world(seed)
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO people VALUES (?)", [(name,) for name in world.people])
    db.executemany("INSERT INTO projects VALUES (?)", [(name,) for name in world.projects])
    for ticket in world.tickets:
        values = (ticket.id, ticket.project, ticket.title, ticket.status, ticket.priority, ticket.assignee, ticket.body)
        db.execute("INSERT INTO tickets VALUES (?,?,?,?,?,?,?)", values)
        db.executemany("INSERT INTO labels VALUES (?,?)", [(ticket.id, label) for label in ticket.labels])
        comments = [(ticket.id, *comment) for comment in ticket.comments]
        db.executemany("INSERT INTO comments (ticket, author, text) VALUES (?,?,?)", comments)
    db.executescript(BEFORE)


def _make_tickets(source: random.Random, projects: tuple[str, ...], people: tuple[str, ...]) -> tuple[Ticket, ...]:
    titles: set[str] = set()
    while len(titles) < PROJECT_COUNT * PER_PROJECT:
        titles.add(f"{source.choice(FEATURES)} {source.choice(PROBLEMS)}")
    shuffled = sorted(titles)
    source.shuffle(shuffled)
    number = source.randrange(100, 900)
    tickets = []
    for place, title in enumerate(shuffled):
        reporter = source.choice(people)
        comments = source.sample(REMARKS, source.choice((0, 0, 1, 2)))
        tickets.append(
            Ticket(
                id=number + place,
                project=projects[place % PROJECT_COUNT],
                title=title,
                status=source.choice(STATUSES),
                priority=source.choice(PRIORITIES),
                assignee=source.choice(people),
                body=f"Reported by {reporter}.",
                labels=tuple(sorted(source.sample(LABELS, source.randint(1, 3)))),
                comments=tuple((source.choice(people), text) for text in comments),
            )
        )
    return tuple(tickets)

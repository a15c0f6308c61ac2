"""Tasks on the ticket tracker of the recipe ``trac``, each with a plan that solves it.

They are a function of the built tracker's database. ``python -m envs.bundled.trac_tasks FILE``
writes them; ``datasets/tasks/trac.jsonl`` holds them.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from envs.bundled.generate.moves import Choose, Fill, Follow, Plan, Push, Say, Tick
from envs.bundled.site_tasks import answer, rows, shown, site_task, write_tasks
from envs.types import WebTask

SITE = "trac"
START = "/wiki"
DATABASE = "env/db/trac.db"
"""File of the tracker's database in the state folder."""
NEW = (
    ("A buoy drifts off pier 2", "lights", "critical"),
    ("Gate sensor sends no data", "gates", "blocker"),
    ("Radio mast sways in wind", "radio", "minor"),
    ("Pump room smells of fuel", "pumps", "critical"),
    ("Price list has a wrong date", "website", "trivial"),
    ("Crane 9 hook is bent", "cranes", "blocker"),
    ("Lamp at berth 31 is dark", "lights", "minor"),
    ("Web form loses the phone number", "website", "critical"),
    ("Valve 6 cannot be closed", "pumps", "blocker"),
    ("Lock chain rattles", "gates", "trivial"),
)
"""Summary, component and priority of tickets that are filed."""
QUESTIONS = (
    ("HarbourOffice", "What is the telephone number of the harbour office?", "4417"),
    ("CraneRules", "Above which wind, in metres a second, does no crane lift?", "14"),
    ("PilotList", "At which buoy does a pilot board?", "23"),
    ("StormPlan", "How many people does the shelter hold?", "85"),
    ("BerthPrices", "How many crowns does a berth cost a night?", "26"),
    ("WorkshopKeys", "In which room are the keys of the workshop?", "306"),
)
"""Wiki page, question about it, and the answer."""
TEXTS = (
    ("FuelDock", "The fuel dock is closed until May."),
    ("FerryTimes", "The ferry leaves 14 times a day."),
    ("BerthPrices", "A berth costs 31 crowns a night."),
    ("PilotList", "Pilot on call: Maria."),
)
"""Wiki pages and their new text."""
AT_TICKET = "End at the page of the ticket."
_TICKETS = "SELECT id, type, summary, owner, priority, milestone FROM ticket ORDER BY id"
_TOUCHED = "SELECT id FROM ticket WHERE changetime != time OR id > 120"
_EDITED = "SELECT DISTINCT name FROM wiki WHERE author = 'anonymous'"


@dataclass(frozen=True, slots=True)
class TracTicket:
    """One ticket of the tracker."""

    id: int
    type: str
    summary: str
    owner: str
    priority: str
    milestone: str

    @property
    def way(self) -> Plan:
        """Moves that lead to its page."""
        title = f"#{self.id}: {self.type}: {self.summary} (new)"
        return Fill("Search:", self.summary), Push("Search"), Follow(title)

    def changed(self, move: Choose | Tick) -> Plan:
        """Return the moves that change it."""
        return (*self.way, Follow("Modify Ticket"), move, Push("Submit changes"))


def trac_tasks(database: Path) -> Iterator[tuple[WebTask, Plan]]:
    """Yield the tasks and their plans, in order of their kinds."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as tracker:
        tickets = iter([TracTicket(*row) for row in tracker.execute(_TICKETS)])
    for one in islice(tickets, 8):
        text = f"Open the ticket “{one.summary}”."
        yield _task("open", one.id, text, {"type": "url", "url": f"/ticket/{one.id}"}, page=_title(one.id)), one.way
    for one in islice(tickets, 8):
        text = f"Who owns the ticket “{one.summary}”? Answer with the name alone."
        yield _task("owner", one.id, text, answer(one.owner)), (*one.way, Say(one.owner))
    for one in islice(tickets, 6):
        text = f"For which milestone is the ticket “{one.summary}” planned? Answer with its name alone."
        yield _task("milestone", one.id, text, answer(one.milestone)), (*one.way, Say(one.milestone))
    for one in islice(tickets, 10):
        text = f"Set the priority of the ticket “{one.summary}” to critical. {AT_TICKET}"
        fact, page = (
            _ticket("priority", one.id, "critical"),
            shown('[headers="h_priority"] [href*="priority=critical"]'),
        )
        yield _task("priority", one.id, text, fact, (one.id,), page=page), one.changed(Choose("Priority:", "critical"))
    for one in islice(tickets, 8):
        text = f"Close the ticket “{one.summary}” as fixed. {AT_TICKET}"
        fact = rows(f"SELECT status, resolution FROM ticket WHERE id = {one.id}", ("closed", "fixed"))
        page = shown('.trac-status [href*="status=closed"]')
        yield _task("close", one.id, text, fact, (one.id,), page=page), one.changed(Tick("resolve"))
    for one in islice(tickets, 4):
        other = "Winter rest" if one.milestone == "Storm season" else "Storm season"
        text = f"Move the ticket “{one.summary}” to the milestone {other}."
        fact = _ticket("milestone", one.id, other)
        yield _task("move", one.id, text, fact, (one.id,)), one.changed(Choose("Milestone:", other))
    for number, (summary, component, priority) in enumerate(NEW):
        text = f"File a ticket with the summary “{summary}”, component {component} and priority {priority}. {AT_TICKET}"
        fact = rows("SELECT summary, component, priority FROM ticket WHERE id > 120", (summary, component, priority))
        fields = (Fill("Summary:", summary), Choose("Priority:", priority), Choose("Component:", component))
        yield (
            _task("file", number, text, fact, (121,), page=_title(121)),
            (Follow("NEW TICKET"), *fields, Push("Create ticket")),
        )
    for number, (wiki, text, expected) in enumerate(QUESTIONS):
        yield _task("ask", number, text, answer(expected, "number")), (Follow(wiki), Say(expected))
    for number, (wiki, new) in enumerate(TEXTS):
        text = f"Replace the whole text of the wiki page {wiki} by: {new} End at that page."
        fact = rows(f"SELECT trim(text) FROM wiki WHERE name = '{wiki}' AND version = 2", (new,))
        plan = (Follow(wiki), Push("Edit this page"), Fill("text", new), Push("Submit changes"))
        yield _task("edit", number, text, fact, edited=(wiki,), page={"type": "text", "text": new}), plan


def _title(number: int) -> Mapping[str, Any]:
    return shown(f'#ticket .trac-id[href="/ticket/{number}"]')


def _ticket(column: str, number: int, value: str) -> Mapping[str, Any]:
    return rows(f"SELECT {column} FROM ticket WHERE id = {number}", (value,))


def _task(
    kind: str,
    number: int,
    text: str,
    fact: Mapping[str, Any],
    touched: tuple[int, ...] = (),
    *,
    page: Mapping[str, Any] | None = None,
    edited: tuple[str, ...] = (),
) -> WebTask:
    """Make a task; no tickets but ``touched`` and no pages but ``edited`` may be changed or new."""
    gates = [
        {"id": "tickets-touched", **rows(_TOUCHED, *((one,) for one in touched))},
        {"id": "pages-edited", **rows(_EDITED, *((one,) for one in edited))},
    ]
    difficulty = 2 if kind in ("open", "owner", "milestone", "ask") else 3
    return site_task(SITE, kind, number, text, fact, path=START, gates=gates, page=page, difficulty=difficulty)


if __name__ == "__main__":
    write_tasks(SITE, DATABASE, trac_tasks, sys.argv[1])

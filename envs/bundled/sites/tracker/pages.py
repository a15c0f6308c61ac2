"""The pages of the tracker."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import JSONResponse, Response

from envs.bundled.sites.app import Application, Visit, go
from envs.bundled.sites.tracker.world import PRIORITIES, STATUSES, build_tracker
from envs.bundled.sites.words import LABELS

MAX_RESULTS = 30
MAX_TITLE, MAX_TEXT = 120, 2_000
"""Lengths in characters."""
FILTERS = ("status", "priority", "assignee")


def _frame(db: sqlite3.Connection) -> dict[str, Any]:
    projects = [row[0] for row in db.execute("SELECT name FROM projects ORDER BY name")]
    return {"projects": projects, "me": _me(db)}


def _me(db: sqlite3.Connection) -> str:
    (name,) = db.execute("SELECT min(name) FROM people").fetchone()
    return str(name)


def home(visit: Visit) -> Response:
    """Show the projects."""
    return visit.page("home.html")


def project(visit: Visit) -> Response:
    """Show tickets of a project, filtered."""
    name = visit.path["name"]
    visit.one("SELECT 1 FROM projects WHERE name = ?", name)
    given = {key: visit.query.get(key, "") for key in (*FILTERS, "label")}
    where = " AND ".join(f"(:{key} = '' OR {key} = :{key})" for key in FILTERS)
    label = "(:label = '' OR EXISTS (SELECT 1 FROM labels WHERE ticket = t.id AND label = :label))"
    query = f"SELECT * FROM tickets t WHERE project = :project AND {where} AND {label} ORDER BY id"
    tickets = visit.db.execute(query, {"project": name, **given}).fetchall()
    return visit.page("project.html", project=name, tickets=tickets, given=given, **_choices(visit))


def search(visit: Visit) -> Response:
    """Show tickets whose title has every word."""
    query = visit.query.get("q", "").strip()
    words = query.split()
    where = " AND ".join(["title LIKE '%' || ? || '%'"] * len(words)) or "0"
    tickets = visit.all(f"SELECT * FROM tickets WHERE {where} ORDER BY id LIMIT {MAX_RESULTS}", *words)
    return visit.page("search.html", query=query, tickets=tickets)


def ticket(visit: Visit, error: str = "") -> Response:
    """Show one ticket with its comments."""
    row = visit.one("SELECT * FROM tickets WHERE id = ?", visit.path["id"])
    comments = visit.all("SELECT * FROM comments WHERE ticket = ? ORDER BY id", row["id"])
    status = 422 if error else 200
    return visit.page(
        "ticket.html", ticket=row, labels=_labels(visit, row["id"]), comments=comments, error=error, status=status
    )


def comment(visit: Visit) -> Response:
    """Add a comment to a ticket."""
    text, row = visit.form_value("text"), visit.one("SELECT id FROM tickets WHERE id = ?", visit.path["id"])
    if not 1 <= len(text) <= MAX_TEXT:
        return ticket(visit, f"Write a comment of at most {MAX_TEXT} characters.")
    visit.db.execute("INSERT INTO comments (ticket, author, text) VALUES (?,?,?)", (row["id"], _me(visit.db), text))
    return go(f"/tickets/{row['id']}")


def edit(visit: Visit) -> Response:
    """Show the form of a ticket."""
    row = visit.one("SELECT * FROM tickets WHERE id = ?", visit.path["id"])
    given = {**dict(row), "labels": _labels(visit, row["id"])}
    return visit.page("edit.html", ticket=row, given=given, **_choices(visit))


def save(visit: Visit) -> Response:
    """Save the form of a ticket."""
    row = visit.one("SELECT * FROM tickets WHERE id = ?", visit.path["id"])
    given, error = _read(visit)
    if error:
        return visit.page("edit.html", status=422, ticket=row, given=given, error=error, **_choices(visit))
    fields = ("title", "status", "priority", "assignee", "body")
    changes = ", ".join(f"{name} = :{name}" for name in fields)
    visit.db.execute(f"UPDATE tickets SET {changes} WHERE id = :id", {**given, "id": row["id"]})
    _set_labels(visit, row["id"], given["labels"])
    return go(f"/tickets/{row['id']}")


def new(visit: Visit) -> Response:
    """Show an empty form."""
    name = visit.path["name"]
    visit.one("SELECT 1 FROM projects WHERE name = ?", name)
    given = {"title": "", "body": "", "status": "open", "priority": "medium", "assignee": _me(visit.db), "labels": []}
    return visit.page("new.html", project=name, given=given, **_choices(visit))


def create(visit: Visit) -> Response:
    """Create a ticket from the form."""
    name = visit.path["name"]
    visit.one("SELECT 1 FROM projects WHERE name = ?", name)
    given, error = _read(visit)
    if error:
        return visit.page("new.html", status=422, project=name, given=given, error=error, **_choices(visit))
    values = (name, given["title"], given["status"], given["priority"], given["assignee"], given["body"])
    columns = "project, title, status, priority, assignee, body"
    number = visit.db.execute(f"INSERT INTO tickets ({columns}) VALUES (?,?,?,?,?,?)", values).lastrowid
    assert number is not None
    _set_labels(visit, number, given["labels"])
    return go(f"/tickets/{number}")


def ticket_json(visit: Visit) -> Response:
    """Return a ticket for grading."""
    row = visit.one("SELECT * FROM tickets WHERE id = ?", visit.path["id"])
    comments = [dict(entry) for entry in visit.all("SELECT author, text FROM comments WHERE ticket = ?", row["id"])]
    return JSONResponse({**dict(row), "labels": _labels(visit, row["id"]), "comments": comments})


def _choices(visit: Visit) -> dict[str, Any]:
    people = [row[0] for row in visit.all("SELECT name FROM people ORDER BY name")]
    return {"statuses": STATUSES, "priorities": PRIORITIES, "people": people, "all_labels": LABELS}


def _labels(visit: Visit, number: int) -> list[str]:
    return [row[0] for row in visit.all("SELECT label FROM labels WHERE ticket = ? ORDER BY label", number)]


def _set_labels(visit: Visit, number: int, labels: list[str]) -> None:
    visit.db.execute("DELETE FROM labels WHERE ticket = ?", (number,))
    visit.db.executemany("INSERT INTO labels VALUES (?,?)", [(number, label) for label in labels])


def _read(visit: Visit) -> tuple[dict[str, Any], str]:
    """Read the form, and return it with an error message, which may be empty."""
    given: dict[str, Any] = {
        name: visit.form_value(name) for name in ("title", "status", "priority", "assignee", "body")
    }
    given["labels"] = sorted({label for label in visit.form.get("labels", []) if label in LABELS})
    choices = _choices(visit)
    if not 1 <= len(given["title"]) <= MAX_TITLE:
        return given, f"Give it a title of at most {MAX_TITLE} characters."
    if len(given["body"]) > MAX_TEXT:
        return given, f"Describe it in at most {MAX_TEXT} characters."
    for name, known in (("status", "statuses"), ("priority", "priorities"), ("assignee", "people")):
        if given[name] not in choices[known]:
            return given, f"Choose the {name} from the list."
    return given, ""


TRACKER = Application(
    name="tracker",
    title="Tickets",
    build=build_tracker,
    frame=_frame,
    pages={
        "GET /": home,
        "GET /projects/{name}": project,
        "GET /projects/{name}/new": new,
        "POST /projects/{name}/new": create,
        "GET /search": search,
        "GET /tickets/{id:int}": ticket,
        "POST /tickets/{id:int}/comments": comment,
        "GET /tickets/{id:int}/edit": edit,
        "POST /tickets/{id:int}/edit": save,
        "GET /api/tickets/{id:int}": ticket_json,
    },
)
"""The tracker."""

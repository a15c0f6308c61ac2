"""The pages of the directory."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import JSONResponse, Response

from envs.bundled.sites.app import Application, Visit, go
from envs.bundled.sites.directory.world import build_directory
from envs.bundled.sites.words import LANGUAGES

MAX_RESULTS = 30
MAX_TEXT = 500
"""Length of a note or of a field of the profile, in characters."""


def _frame(db: sqlite3.Connection) -> dict[str, Any]:
    departments = [row[0] for row in db.execute("SELECT DISTINCT department FROM people ORDER BY 1")]
    offices = [row[0] for row in db.execute("SELECT name FROM offices ORDER BY 1")]
    return {"departments": departments, "offices": offices}


def home(visit: Visit) -> Response:
    """Show departments and offices."""
    return visit.page("home.html")


def department(visit: Visit) -> Response:
    """Show the people of a department."""
    name = visit.path["name"]
    people = visit.all("SELECT * FROM people WHERE department = ? ORDER BY name", name)
    head = visit.one("SELECT * FROM people WHERE department = ? AND manager IS NULL", name)
    return visit.page("department.html", department=name, people=people, head=head)


def office(visit: Visit) -> Response:
    """Show the place of an office and the people who work there."""
    row = visit.one("SELECT * FROM offices WHERE name = ?", visit.path["name"])
    people = visit.all("SELECT * FROM people WHERE office = ? ORDER BY name", row["name"])
    return visit.page("office.html", office=row, people=people)


def search(visit: Visit) -> Response:
    """Show people whose name has every word."""
    query = visit.query.get("q", "").strip()
    words = query.split()
    where = " AND ".join(["name LIKE '%' || ? || '%'"] * len(words)) or "0"
    people = visit.all(f"SELECT * FROM people WHERE {where} ORDER BY name LIMIT {MAX_RESULTS}", *words)
    return visit.page("search.html", query=query, people=people)


def person(visit: Visit) -> Response:
    """Show the details of a person."""
    row = visit.one("SELECT * FROM people WHERE id = ?", visit.path["id"])
    manager = visit.all("SELECT id, name FROM people WHERE id = ?", row["manager"])
    contact = visit.all("SELECT note FROM contacts WHERE person = ?", row["id"])
    return visit.page(
        "person.html", person=row, manager=manager[0] if manager else None, contact=contact[0] if contact else None
    )


def keep(visit: Visit) -> Response:
    """Add a person to the contacts, with a note."""
    row = visit.one("SELECT id FROM people WHERE id = ?", visit.path["id"])
    visit.db.execute("INSERT OR REPLACE INTO contacts VALUES (?, ?)", (row["id"], visit.form_value("note")[:MAX_TEXT]))
    return go("/contacts")


def drop(visit: Visit) -> Response:
    """Remove a person from the contacts."""
    visit.db.execute("DELETE FROM contacts WHERE person = ?", (visit.path["id"],))
    return go("/contacts")


def contacts(visit: Visit) -> Response:
    """Show the contacts."""
    rows = visit.all("SELECT p.*, c.note FROM contacts c JOIN people p ON p.id = c.person ORDER BY p.name")
    return visit.page("contacts.html", contacts=rows)


def profile(visit: Visit) -> Response:
    """Show the user's own profile."""
    given = dict(visit.one("SELECT * FROM profile"))
    return visit.page("profile.html", given=given, languages=LANGUAGES)


def save(visit: Visit) -> Response:
    """Save the form of the profile."""
    given: dict[str, Any] = {
        name: visit.form_value(name) for name in ("nickname", "phone", "office", "language", "about")
    }
    given["newsletter"] = int(bool(visit.form_value("newsletter")))
    error = ""
    if not given["phone"].isdigit():
        error = "A phone number has digits only."
    elif max(len(str(value)) for value in given.values()) > MAX_TEXT:
        error = f"Write at most {MAX_TEXT} characters."
    elif given["language"] not in LANGUAGES or given["office"] not in _frame(visit.db)["offices"]:
        error = "Choose an office and a language of the lists."
    if error:
        return visit.page("profile.html", status=422, given=given, languages=LANGUAGES, error=error)
    visit.db.execute(f"UPDATE profile SET {', '.join(f'{name} = :{name}' for name in given)}", given)
    return go("/profile")


def profile_json(visit: Visit) -> Response:
    """Return the profile for grading."""
    return JSONResponse(dict(visit.one("SELECT * FROM profile")))


DIRECTORY = Application(
    name="directory",
    title="People",
    build=build_directory,
    frame=_frame,
    pages={
        "GET /": home,
        "GET /departments/{name}": department,
        "GET /offices/{name}": office,
        "GET /search": search,
        "GET /people/{id:int}": person,
        "POST /people/{id:int}/keep": keep,
        "POST /people/{id:int}/drop": drop,
        "GET /contacts": contacts,
        "GET /profile": profile,
        "POST /profile": save,
        "GET /api/profile": profile_json,
    },
)
"""The directory."""

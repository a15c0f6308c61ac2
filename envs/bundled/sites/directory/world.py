"""The world of the directory, as a pure function of the seed.

Names and extensions are unique. The people of a department began in different years, and every
department has one head, who has no manager.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import astuple, dataclass
from functools import lru_cache

from envs.bundled.sites.words import CITIES, DEPARTMENTS, FIRST_NAMES, LANGUAGES, LAST_NAMES, OFFICES, ROLES, STREETS

DEPARTMENT_COUNT = 5
OFFICE_COUNT = 4
PER_DEPARTMENT = 8

SCHEMA = """
CREATE TABLE offices (name TEXT PRIMARY KEY, street TEXT, city TEXT, floors INTEGER);
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT UNIQUE, department TEXT, role TEXT, office TEXT REFERENCES offices, extension INTEGER,
  started INTEGER, language TEXT, manager INTEGER REFERENCES people);
CREATE TABLE contacts (person INTEGER PRIMARY KEY REFERENCES people, note TEXT);
CREATE TABLE profile (nickname TEXT, phone TEXT, office TEXT, language TEXT, about TEXT, newsletter INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Office:
    """A building; the fields are the columns of its table."""

    name: str
    street: str
    city: str
    floors: int


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who works there; the fields are the columns of the table."""

    id: int
    name: str
    department: str
    role: str
    office: str
    extension: int
    started: int
    """Year in which the person began."""
    language: str
    manager: int | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Profile of the logged-in person; the fields are the columns."""

    nickname: str
    phone: str
    office: str
    language: str
    about: str
    newsletter: int


@dataclass(frozen=True, slots=True)
class DirectoryWorld:
    """Everything in a seed's directory."""

    seed: int
    offices: tuple[Office, ...]
    people: tuple[Person, ...]
    profile: Profile

    @property
    def departments(self) -> tuple[str, ...]:
        """Departments in the order of the menu."""
        return tuple(dict.fromkeys(person.department for person in self.people))

    def of_department(self, department: str) -> tuple[Person, ...]:
        """Return the people of a department."""
        return tuple(person for person in self.people if person.department == department)

    def person(self, number: int) -> Person:
        """Return the person with this id."""
        return next(person for person in self.people if person.id == number)

    def office(self, name: str) -> Office:
        """Return the office of this name."""
        return next(office for office in self.offices if office.name == name)


@lru_cache(maxsize=64)
def directory_world(seed: int) -> DirectoryWorld:
    """Make the directory of a seed."""
    source = random.Random(f"directory/{seed}")
    offices = tuple(
        Office(name, f"{source.choice(STREETS)} {source.randint(1, 99)}", city, source.randint(2, 12))
        for name, city in zip(
            sorted(source.sample(OFFICES, OFFICE_COUNT)), source.sample(CITIES, OFFICE_COUNT), strict=True
        )
    )
    names = [office.name for office in offices]
    profile = Profile("", str(source.randint(1000, 9999)), names[0], source.choice(LANGUAGES), "", 0)
    return DirectoryWorld(seed, offices, _make_people(source, names), profile)


def build_directory(seed: int, db: sqlite3.Connection) -> None:
    """Fill an empty database with a seed's directory."""
    world = directory_world(seed)
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO offices VALUES (?,?,?,?)", [astuple(office) for office in world.offices])
    db.executemany("INSERT INTO people VALUES (?,?,?,?,?,?,?,?,?)", [astuple(person) for person in world.people])
    db.execute("INSERT INTO profile VALUES (?,?,?,?,?,?)", astuple(world.profile))
    db.executescript("CREATE TABLE before_profile AS SELECT * FROM profile")


def _make_people(source: random.Random, offices: list[str]) -> tuple[Person, ...]:
    count = DEPARTMENT_COUNT * PER_DEPARTMENT
    # No first and no last name occurs twice, so a search for either finds one person.
    names = [
        f"{one} {two}"
        for one, two in zip(source.sample(FIRST_NAMES, count), source.sample(LAST_NAMES, count), strict=True)
    ]
    numbers, extensions = source.sample(range(100, 1000), count), source.sample(range(1000, 10_000), count)
    people: list[Person] = []
    for department in sorted(source.sample(DEPARTMENTS, DEPARTMENT_COUNT)):
        years = source.sample(range(1990, 2025), PER_DEPARTMENT)
        roles = source.sample(ROLES, 4)
        head: int | None = None
        for year in years:
            place = len(people)
            people.append(
                Person(
                    id=numbers[place],
                    name=names[place],
                    department=department,
                    role="Head of department" if head is None else source.choice(roles),
                    office=source.choice(offices),
                    extension=extensions[place],
                    started=year,
                    language=source.choice(LANGUAGES),
                    manager=head,
                )
            )
            head = head or numbers[place]
    return tuple(people)

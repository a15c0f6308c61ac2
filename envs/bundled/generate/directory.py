"""Templates over the directory that look something up, over one page or several.

Templates that change something are in `directory_edits`.
"""

from __future__ import annotations

import random

from envs.bundled.generate.drafts import TaskDraft, Template, answer_fact, group, number_fact, rows_fact, url_fact
from envs.bundled.generate.moves import Fill, Follow, Plan, Push, Say
from envs.bundled.sites.directory import DirectoryWorld, Person

NO_CONTACTS = rows_fact("contacts-untouched", "SELECT person FROM contacts", (), "Nobody was added to the contacts")
OWN_PROFILE = rows_fact(
    "profile-untouched", "SELECT * FROM profile EXCEPT SELECT * FROM before_profile", (), "The profile is as it was"
)
UNTOUCHED = (NO_CONTACTS, OWN_PROFILE)

ASKED = {
    "extension": "extension",
    "started": "year of starting",
    "role": "role",
    "office": "office",
    "language": "second language",
}
"""Fields of a person, in the words of a question."""


def to_person(person: Person, source: random.Random) -> Plan:
    """Return moves from any page to a person, through the department or the search."""
    if source.random() < 0.5:
        return (Follow(person.department), Follow(person.name))
    return (Fill("Search people", person.name), Push("Search"), Follow(person.name))


def _open(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person = source.choice(world.people)
    there = url_fact("at", f"/people/{person.id}", f"At {person.name}")
    return TaskDraft(
        wordings=(f"Open the page of {person.name}.", f"Find {person.name} in the directory and open their page."),
        groups=(group("page", f"The page of {person.name} is open", there),),
        plan=to_person(person, source),
        gates=UNTOUCHED,
    )


def _ask(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person = source.choice(world.people)
    field, words = source.choice([*ASKED.items()])
    value = getattr(person, field)
    expected = (
        number_fact("answer", value, f"It is {value}")
        if isinstance(value, int)
        else answer_fact("answer", value, description=f"It is {value}")
    )
    return TaskDraft(
        wordings=(
            f"What is the {words} of {person.name}? Answer with nothing else.",
            f"Look up {person.name} and answer with their {words} only.",
        ),
        groups=(group("answer", f"The {words} of {person.name} is told", expected),),
        plan=(*to_person(person, source), Say(str(value))),
        gates=UNTOUCHED,
    )


def _city(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    """Ask for a city three pages away: person, manager, office, city."""
    person, manager = _managed(world, source)
    city = world.office(manager.office).city
    return TaskDraft(
        wordings=(
            f"In which city does the manager of {person.name} work? Answer with the city only.",
            f"Find the manager of {person.name} and answer with the city of that manager's office, nothing else.",
        ),
        groups=(
            group(
                "answer",
                f"The city where the manager of {person.name} works is told",
                answer_fact("answer", city, description=f"It is {city}"),
            ),
        ),
        plan=(*to_person(person, source), Follow(manager.name), Follow(manager.office), Say(city)),
        gates=UNTOUCHED,
    )


def _managed(world: DirectoryWorld, source: random.Random) -> tuple[Person, Person]:
    person = source.choice([person for person in world.people if person.manager is not None])
    assert person.manager is not None
    return person, world.person(person.manager)


def _manager_page(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person, manager = _managed(world, source)
    expected = number_fact("answer", manager.extension, f"It is {manager.extension}")
    return TaskDraft(
        wordings=(
            f"Open the page of the manager of {person.name} and answer with the manager's extension.",
            f"Who is the manager of {person.name}? Go to that person's page and answer with their extension (a number).",
        ),
        groups=(
            group(
                "page",
                f"The page of the manager of {person.name} is open",
                url_fact("at", f"/people/{manager.id}", f"At {manager.name}"),
            ),
            group("answer", "The manager's extension is told", expected),
        ),
        plan=(*to_person(person, source), Follow(manager.name), Say(str(manager.extension))),
        gates=UNTOUCHED,
    )


def _first(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    department = source.choice(world.departments)
    first = source.random() < 0.5
    people = sorted(world.of_department(department), key=lambda person: person.started)
    who = people[0] if first else people[-1]
    when = "longest" if first else "shortest"
    return TaskDraft(
        wordings=(
            f"Who has been in the department {department} for the {when} time? Answer with the name only.",
            f"Answer with the name of the person in {department} who has worked there for the {when} time.",
        ),
        groups=(
            group(
                "answer",
                f"Who was in {department} for the {when} time is named",
                answer_fact("answer", who.name, description=f"It is {who.name}, since {who.started}"),
            ),
        ),
        plan=(Follow(department), Say(who.name)),
        gates=UNTOUCHED,
    )


def _count(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    office, department = source.choice(world.offices), source.choice(world.departments)
    number = sum(person.office == office.name for person in world.of_department(department))
    return TaskDraft(
        wordings=(
            f"How many people of the department {department} work in {office.name}? Answer with the number.",
            f"Count who of {department} has their office in {office.name} and answer with the number.",
        ),
        groups=(
            group(
                "answer",
                f"The number of people of {department} in {office.name} is told",
                number_fact("answer", number, f"There are {number}"),
            ),
        ),
        plan=(Follow(office.name), Say(str(number))),
        gates=UNTOUCHED,
    )


LOOKING = (
    Template("directory-open", "directory", 1, _open),
    Template("directory-ask", "directory", 1, _ask),
    Template("directory-city", "directory", 1, _city),
    Template("directory-first", "directory", 1, _first),
    Template("directory-count", "directory", 1, _count),
    Template("directory-manager", "directory", 2, _manager_page),
)

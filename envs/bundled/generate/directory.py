"""Templates over the directory: look up, over one page or several; contacts; one's own profile.

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
    no_rows_fact,
    page_group,
    row_fact,
)
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Plan, Push, Say, Tick
from envs.bundled.sites.directory import DirectoryWorld, Person
from envs.bundled.sites.words import FIRST_NAMES, LANGUAGES, split_phrases
from envs.types import Fact, FactGroup

NO_CONTACTS = no_rows_fact("contacts-untouched", "SELECT person FROM contacts", "Nobody was added to the contacts")
OWN_PROFILE = no_rows_fact(
    "profile-untouched", "SELECT * FROM profile EXCEPT SELECT * FROM before_profile", "The profile is as it was"
)
look = partial(draft, gates=(NO_CONTACTS, OWN_PROFILE))
"""Makes a draft of a request that changes nothing."""
NO_NOTES = no_rows_fact("no-notes", "SELECT note FROM contacts WHERE note <> ''", "No notes were made")

ASKED = {
    "extension": "extension",
    "started": "year of starting",
    "role": "role",
    "office": "office",
    "language": "second language",
}
"""Fields of a person, in the words of a question."""
NOTES = split_phrases(
    "call on Monday;ask about the budget;met at the fair;knows the archive;send the plans;speak about training;owes an answer;"
    "invite to lunch"
)
ABOUT = split_phrases(
    "I like long walks;New here since spring;Ask me about maps;Mornings only;Back in October;I fix printers;Happy to help;"
    "On call at weekends"
)
LABELS = {
    "nickname": "Nickname",
    "phone": "Phone",
    "office": "Office",
    "language": "Second language",
    "about": "About me",
    "newsletter": "Newsletter",
}
"""Labels of the profile's fields."""

Values = dict[str, str | int]
"""New value of each field of the profile."""


def _find(person: Person, source: random.Random) -> Plan:
    return drafts.find(person.name, person.department, "Search people", source)


def _open(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person = source.choice(world.people)
    return look(
        f"Open the page of {person.name}.",
        f"Find {person.name} in the directory and open their page.",
        groups=page_group(f"The page of {person.name} is open", f"/people/{person.id}", person.name),
        plan=_find(person, source),
    )


def _ask(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person = source.choice(world.people)
    field, words = source.choice([*ASKED.items()])
    value = getattr(person, field)
    return look(
        f"What is the {words} of {person.name}? Answer with nothing else.",
        f"Look up {person.name} and answer with their {words} only.",
        groups=answer_group(f"The {words} of {person.name} is told", value, f"It is {value}"),
        plan=(*_find(person, source), Say(str(value))),
    )


def _city(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    """Ask for a city three pages away: person, manager, office, city."""
    person, manager = _managed(world, source)
    city = world.office(manager.office).city
    return look(
        f"In which city does the manager of {person.name} work? Answer with the city only.",
        f"Find the manager of {person.name} and answer with the city of that manager's office, nothing else.",
        groups=answer_group(f"The city where the manager of {person.name} works is told", city, f"It is {city}"),
        plan=(*_find(person, source), Follow(manager.name), Follow(manager.office), Say(city)),
    )


def _manager_page(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person, manager = _managed(world, source)
    page = f"The page of the manager of {person.name} is open"
    return look(
        f"Open the page of the manager of {person.name} and answer with the manager's extension.",
        f"Who is the manager of {person.name}? Go to that person's page and answer with their extension (a number).",
        groups=(
            page_group(page, f"/people/{manager.id}", manager.name),
            answer_group("The manager's extension is told", manager.extension, f"It is {manager.extension}"),
        ),
        plan=(*_find(person, source), Follow(manager.name), Say(str(manager.extension))),
    )


def _managed(world: DirectoryWorld, source: random.Random) -> tuple[Person, Person]:
    person = source.choice([person for person in world.people if person.manager is not None])
    assert person.manager is not None
    return person, world.person(person.manager)


def _first(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    department = source.choice(world.departments)
    first = source.random() < 0.5
    people = sorted(world.of_department(department), key=lambda person: person.started)
    who = people[0] if first else people[-1]
    when = "longest" if first else "shortest"
    named = f"Who was in {department} for the {when} time is named"
    return look(
        f"Who has been in the department {department} for the {when} time? Answer with the name only.",
        f"Answer with the name of the person in {department} who has worked there for the {when} time.",
        groups=answer_group(named, who.name, f"It is {who.name}, since {who.started}"),
        plan=(Follow(department), Say(who.name)),
    )


def _count(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    office, department = source.choice(world.offices).name, source.choice(world.departments)
    number = sum(person.office == office for person in world.of_department(department))
    return look(
        f"How many people of the department {department} work in {office}? Answer with the number.",
        f"Count who of {department} has their office in {office} and answer with the number.",
        groups=answer_group(f"The number of people of {department} in {office} is told", number, f"There are {number}"),
        plan=(Follow(office), Say(str(number))),
    )


def _contacts(count: int, world: DirectoryWorld, source: random.Random) -> TaskDraft:
    people = source.sample(world.people, count)
    names = join_words(person.name for person in people)
    return draft(
        f"Add {names} to the contacts.",
        f"Put {names} among my contacts, and nobody else.",
        f"I want {names} as my contacts.",
        groups=_contact_groups(people),
        plan=_add(people, source),
        gates=(_nobody_else(people), NO_NOTES, OWN_PROFILE),
    )


def _noted(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person, note = source.choice(world.people), source.choice(NOTES)
    query = f"SELECT note FROM contacts WHERE person = {person.id}"
    noted = group("note", f'The note is "{note}"', row_fact("note", query, note, f"The note says: {note}"))
    return draft(
        f'Add {person.name} to the contacts with the note "{note}".',
        f'Make {person.name} a contact of mine; the note is "{note}".',
        groups=(*_contact_groups([person]), noted),
        plan=(*_find(person, source), Fill("Note", note), Push("Add to contacts")),
        gates=(_nobody_else([person]), OWN_PROFILE),
    )


def _by_role(low: int, high: int, world: DirectoryWorld, source: random.Random) -> TaskDraft | None:
    department = source.choice(world.departments)
    role = source.choice(sorted({person.role for person in world.of_department(department)}))
    people = [person for person in world.of_department(department) if person.role == role]
    if not low <= len(people) <= high:
        return None
    return draft(
        f"Add everybody in {department} whose role is {role} to the contacts.",
        f"Make all people of the department {department} with the role {role} contacts of mine.",
        groups=_contact_groups(people),
        plan=_add(people, source),
        gates=(_nobody_else(people), NO_NOTES, OWN_PROFILE),
    )


def _with_manager(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    """Ask for a person and their manager; only the first is named."""
    both = _managed(world, source)
    name = both[0].name
    return draft(
        f"Add {name} and the manager of {name} to the contacts.",
        f"Make {name} a contact of mine, and the person who manages {name} too.",
        groups=_contact_groups(both, [name, f"The manager of {name}"]),
        plan=_add(both, source),
        gates=(_nobody_else(both), NO_NOTES, OWN_PROFILE),
    )


def _profile(count: int, world: DirectoryWorld, source: random.Random) -> TaskDraft:
    values = _values(count, world, source)
    wanted = _describe_values(values)
    return draft(
        f"Change my profile: {wanted}.",
        f"In my profile I want {wanted}. Leave the rest as it is.",
        groups=_profile_group(values),
        plan=_fill_in(values),
        gates=(NO_CONTACTS, _rest_of_profile(values)),
    )


def _both(fields: int, count: int, world: DirectoryWorld, source: random.Random) -> TaskDraft:
    values, people = _values(fields, world, source), source.sample(world.people, count)
    wanted, names = _describe_values(values), join_words(person.name for person in people)
    return draft(
        f"Change my profile: {wanted}. Also add {names} to the contacts.",
        f"Add {names} to the contacts; then set in my profile {wanted}.",
        groups=(_profile_group(values), *_contact_groups(people)),
        plan=(*_fill_in(values), *_add(people, source)),
        gates=(_nobody_else(people), NO_NOTES, _rest_of_profile(values)),
    )


def _contact_groups(people: Sequence[Person], titles: Sequence[str] = ()) -> list[FactGroup]:
    """Check that people are contacts; ``titles`` say who they are, if not their names."""
    groups = []
    for number, person in enumerate(people, 1):
        query = f"SELECT person FROM contacts WHERE person = {person.id}"
        there = row_fact(f"person-{number}", query, person.id, f"{person.name} is a contact")
        title = titles[number - 1] if titles else person.name
        groups.append(group(f"contact-{number}", f"{title} is a contact", there))
    return groups


def _nobody_else(people: Sequence[Person]) -> Fact:
    query = f"SELECT person FROM contacts WHERE person NOT IN ({', '.join(str(person.id) for person in people)})"
    return no_rows_fact("nobody-else", query, "Nobody else is a contact")


def _add(people: Sequence[Person], source: random.Random) -> Plan:
    return tuple(move for person in people for move in (*_find(person, source), Push("Add to contacts")))


def _values(count: int, world: DirectoryWorld, source: random.Random) -> Values:
    """Draw new values of some fields, different from the old ones."""
    old = world.profile
    every: Values = {
        "nickname": source.choice(FIRST_NAMES),
        "phone": str(source.randint(10_000, 99_999)),
        "office": source.choice([office.name for office in world.offices if office.name != old.office]),
        "language": source.choice([language for language in LANGUAGES if language != old.language]),
        "about": source.choice(ABOUT),
        "newsletter": 1,
    }
    names = source.sample(sorted(every), count)
    return {name: value for name, value in every.items() if name in names}


def _describe_values(values: Values) -> str:
    return join_words(
        "the newsletter ordered" if name == "newsletter" else f'{LABELS[name]} "{value}"'
        for name, value in values.items()
    )


def _profile_group(values: Values) -> FactGroup:
    facts = [field_fact("/api/profile", name, value, f"{LABELS[name]}: {value}") for name, value in values.items()]
    return group("profile", f"My profile has {_describe_values(values)}", *facts)


def _rest_of_profile(values: Values) -> Fact:
    columns = ", ".join(name for name in LABELS if name not in values)
    query = f"SELECT {columns} FROM profile EXCEPT SELECT {columns} FROM before_profile"
    return no_rows_fact(
        "rest-of-profile", query if columns else "SELECT 1 WHERE 0", "Nothing else of the profile was changed"
    )


def _fill_in(values: Values) -> Plan:
    plan: list[Move] = [Follow("My profile")]
    for name, value in values.items():
        if name == "newsletter":
            plan.append(Tick(LABELS[name]))
        elif name in ("office", "language"):
            plan.append(Choose(LABELS[name], str(value)))
        else:
            plan.append(Fill(LABELS[name], str(value)))
    return (*plan, Push("Save profile"))


TEMPLATES = (
    Template("directory-open", 1, _open),
    Template("directory-ask", 1, _ask),
    Template("directory-city", 1, _city),
    Template("directory-first", 1, _first),
    Template("directory-count", 1, _count),
    Template("directory-manager", 2, _manager_page),
    Template("directory-contact", 1, partial(_contacts, 1)),
    Template("directory-note", 2, _noted),
    Template("directory-with-manager", 2, _with_manager),
    Template("directory-profile-2", 2, partial(_profile, 2)),
    Template("directory-role", 3, partial(_by_role, 2, 3)),
    Template("directory-contacts-3", 3, partial(_contacts, 3)),
    Template("directory-profile-4", 4, partial(_profile, 4)),
    Template("directory-contacts-5", 5, partial(_contacts, 5)),
    Template("directory-profile-3-contact", 4, partial(_both, 3, 1)),
    Template("directory-profile-6-contact", 7, partial(_both, 6, 1)),
    Template("directory-profile-4-contacts-4", 8, partial(_both, 4, 4)),
)

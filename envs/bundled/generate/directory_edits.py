"""Templates over the directory that change something: contacts and one's own profile."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import partial

from envs.bundled.generate.directory import NO_CONTACTS, OWN_PROFILE, to_person
from envs.bundled.generate.drafts import TaskDraft, Template, group, join_words, rows_fact
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Plan, Push, Tick
from envs.bundled.sites.directory import DirectoryWorld, Person
from envs.bundled.sites.words import FIRST_NAMES, LANGUAGES
from envs.types import Fact, FactGroup
from envs.types.rubrics import HttpFact

NOTES = (
    "call on Monday",
    "ask about the budget",
    "met at the fair",
    "knows the archive",
    "send the plans",
    "speak about training",
    "owes an answer",
    "invite to lunch",
)
ABOUT = (
    "I like long walks",
    "New here since spring",
    "Ask me about maps",
    "Mornings only",
    "Back in October",
    "I fix printers",
    "Happy to help",
    "On call at weekends",
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


def _contact_facts(people: Iterable[Person], places: Sequence[str]) -> tuple[FactGroup, ...]:
    return tuple(
        group(
            f"contact-{number}",
            f"{place} is a contact",
            rows_fact(
                f"person-{number}",
                f"SELECT person FROM contacts WHERE person = {person.id}",
                [(person.id,)],
                f"{person.name} is a contact",
            ),
        )
        for number, (person, place) in enumerate(zip(people, places, strict=True), 1)
    )


def _nobody_else(people: Iterable[Person]) -> Fact:
    query = f"SELECT person FROM contacts WHERE person NOT IN ({', '.join(str(person.id) for person in people)})"
    return rows_fact("nobody-else", query, (), "Nobody else is a contact")


def _no_notes() -> Fact:
    return rows_fact("no-notes", "SELECT note FROM contacts WHERE note <> ''", (), "No notes were made")


def _add(people: Iterable[Person], source: random.Random) -> Plan:
    plan: list[Move] = []
    for person in people:
        plan += [*to_person(person, source), Push("Add to contacts")]
    return tuple(plan)


def _contacts(count: int, world: DirectoryWorld, source: random.Random) -> TaskDraft:
    people = source.sample(world.people, count)
    names = [person.name for person in people]
    return TaskDraft(
        wordings=(
            f"Add {join_words(names)} to the contacts.",
            f"Put {join_words(names)} among my contacts, and nobody else.",
            f"I want {join_words(names)} as my contacts.",
        ),
        groups=_contact_facts(people, names),
        plan=_add(people, source),
        gates=(_nobody_else(people), _no_notes(), OWN_PROFILE),
    )


def _noted(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    person, note = source.choice(world.people), source.choice(NOTES)
    query = f"SELECT note FROM contacts WHERE person = {person.id}"
    (there,) = _contact_facts([person], [person.name])
    return TaskDraft(
        wordings=(
            f'Add {person.name} to the contacts with the note "{note}".',
            f'Make {person.name} a contact of mine; the note is "{note}".',
        ),
        groups=(
            there,
            group("note", f'The note is "{note}"', rows_fact("note", query, [(note,)], f"The note says: {note}")),
        ),
        plan=(*to_person(person, source), Fill("Note", note), Push("Add to contacts")),
        gates=(_nobody_else([person]), OWN_PROFILE),
    )


def _by_role(low: int, high: int, world: DirectoryWorld, source: random.Random) -> TaskDraft | None:
    department = source.choice(world.departments)
    role = source.choice(sorted({person.role for person in world.of_department(department)}))
    people = [person for person in world.of_department(department) if person.role == role]
    if not low <= len(people) <= high:
        return None
    return TaskDraft(
        wordings=(
            f"Add everybody in {department} whose role is {role} to the contacts.",
            f"Make all people of the department {department} with the role {role} contacts of mine.",
        ),
        groups=_contact_facts(people, [person.name for person in people]),
        plan=_add(people, source),
        gates=(_nobody_else(people), _no_notes(), OWN_PROFILE),
    )


def _managers(world: DirectoryWorld, source: random.Random) -> TaskDraft:
    """Ask for a person and their manager; only the first is named."""
    person = source.choice([person for person in world.people if person.manager is not None])
    assert person.manager is not None
    both = [person, world.person(person.manager)]
    return TaskDraft(
        wordings=(
            f"Add {person.name} and the manager of {person.name} to the contacts.",
            f"Make {person.name} a contact of mine, and the person who manages {person.name} too.",
        ),
        groups=_contact_facts(both, [person.name, f"The manager of {person.name}"]),
        plan=_add(both, source),
        gates=(_nobody_else(both), _no_notes(), OWN_PROFILE),
    )


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
    names = sorted(source.sample(sorted(every), count), key=[*every].index)
    return {name: every[name] for name in names}


def _describe_values(values: Values) -> str:
    return join_words(
        "the newsletter ordered" if name == "newsletter" else f'{LABELS[name]} "{value}"'
        for name, value in values.items()
    )


def _profile_group(values: Values) -> FactGroup:
    facts = [
        HttpFact(id=name, path="/api/profile", at=(name,), value=value, description=f"{LABELS[name]}: {value}")
        for name, value in values.items()
    ]
    return group("profile", f"My profile has {_describe_values(values)}", *facts)


def _rest_of_profile(values: Values) -> Fact:
    columns = ", ".join(name for name in LABELS if name not in values)
    query = f"SELECT {columns} FROM profile EXCEPT SELECT {columns} FROM before_profile"
    return rows_fact(
        "rest-of-profile", query if columns else "SELECT 1 WHERE 0", (), "Nothing else of the profile was changed"
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


def _profile(count: int, world: DirectoryWorld, source: random.Random) -> TaskDraft:
    values = _values(count, world, source)
    return TaskDraft(
        wordings=(
            f"Change my profile: {_describe_values(values)}.",
            f"In my profile I want {_describe_values(values)}. Leave the rest as it is.",
        ),
        groups=(_profile_group(values),),
        plan=_fill_in(values),
        gates=(NO_CONTACTS, _rest_of_profile(values)),
    )


def _both(fields: int, count: int, world: DirectoryWorld, source: random.Random) -> TaskDraft:
    values, people = _values(fields, world, source), source.sample(world.people, count)
    names = [person.name for person in people]
    return TaskDraft(
        wordings=(
            f"Change my profile: {_describe_values(values)}. Also add {join_words(names)} to the contacts.",
            f"Add {join_words(names)} to the contacts; then set in my profile {_describe_values(values)}.",
        ),
        groups=(_profile_group(values), *_contact_facts(people, names)),
        plan=(*_fill_in(values), *_add(people, source)),
        gates=(_nobody_else(people), _no_notes(), _rest_of_profile(values)),
    )


CHANGING = (
    Template("directory-contact", "directory", 1, partial(_contacts, 1)),
    Template("directory-note", "directory", 2, _noted),
    Template("directory-with-manager", "directory", 2, _managers),
    Template("directory-profile-2", "directory", 2, partial(_profile, 2)),
    Template("directory-role", "directory", 3, partial(_by_role, 2, 3)),
    Template("directory-contacts-3", "directory", 3, partial(_contacts, 3)),
    Template("directory-profile-4", "directory", 4, partial(_profile, 4)),
    Template("directory-contacts-5", "directory", 5, partial(_contacts, 5)),
    Template("directory-profile-3-contact", "directory", 4, partial(_both, 3, 1)),
    Template("directory-profile-6-contact", "directory", 7, partial(_both, 6, 1)),
    Template("directory-profile-4-contacts-4", "directory", 8, partial(_both, 4, 4)),
)

"""Fills the ticket tracker of a harbour: 120 tickets, components, milestones and wiki pages.

Run once by the build, in the state folder. It is the same in each build.
"""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trac.env import Environment
from trac.perm import PermissionSystem
from trac.ticket.model import Component, Milestone, Ticket, Version
from trac.wiki.model import WikiPage

TICKETS = 120
BEGIN = datetime(2026, 3, 2, 8, tzinfo=UTC)
"""Time of the first ticket."""
COMPONENTS = (
    ("cranes", "olga"),
    ("gates", "piet"),
    ("lights", "ruth"),
    ("radio", "sven"),
    ("pumps", "tara"),
    ("website", "umar"),
)
"""Parts of the harbour, each with its owner."""
MILESTONES = ("Spring check", "Summer season", "Storm season", "Winter rest")
VERSIONS = ("1.0", "2.0")
THINGS = (
    "Crane 4", "North gate", "Pier light", "Channel 12", "Bilge pump", "Berth plan", "Tide table", "South gate",
    "Crane 7", "Mooring list", "Fog horn", "Dry dock pump", "Fuel meter", "Ferry clock", "Quay camera",
)  # fmt: skip
FAULTS = (
    "stops at noon", "shows the wrong day", "leaks oil", "is not on the map", "makes a loud noise", "needs a new seal",
    "answers too late", "forgets its settings",
)  # fmt: skip
PAGES = {
    "HarbourOffice": "The harbour office opens at 7:30. Its telephone number is 4417.",
    "CraneRules": "No crane lifts above a wind of 14 m/s. The crane office is in shed 9.",
    "PilotList": "Pilots on call: Ines (weekdays), Joao (weekends). A pilot boards at buoy 23.",
    "FuelDock": "The fuel dock sells diesel only. A visit takes 40 minutes.",
    "StormPlan": "At wind force 9 the outer gates are closed. The shelter holds 85 people.",
    "BerthPrices": "A berth costs 26 crowns a night. Boats above 12 m pay double.",
    "FerryTimes": "The ferry leaves 11 times a day. The last one leaves at 22:15.",
    "WorkshopKeys": "Keys of the workshop are with Hanna, in room 306.",
}
"""Wiki pages and their text."""
OFF = ("trac.mimeview.*", "trac.versioncontrol.*", "tracopt.*", "trac.timeline.*")
"""Parts of Trac that the site does without."""


def main() -> None:
    """Make the environment ``env``."""
    options = [
        ("project", "name", "Harbour Works"),
        ("project", "url", "/"),
        ("project", "footer", "Harbour Works"),
        ("trac", "database", "sqlite:db/trac.db"),
        ("trac", "default_timezone", "UTC"),
        ("trac", "default_dateinfo_format", "absolute"),
        ("header_logo", "src", ""),
        ("logging", "log_type", "none"),
        ("notification", "smtp_enabled", "disabled"),
        ("ticket", "default_component", "cranes"),
        *[("components", name, "disabled") for name in OFF],
    ]
    env = Environment(str(Path("env").resolve()), create=True, options=options)
    rights = PermissionSystem(env)
    for right in ("TICKET_ADMIN", "WIKI_ADMIN", "MILESTONE_ADMIN", "REPORT_ADMIN"):
        rights.grant_permission("anonymous", right)
    make_lists(env)
    make_tickets(env, random.Random(0))
    for number, (name, text) in enumerate(PAGES.items()):
        page = WikiPage(env, name)
        page.text = text
        page.save("olga", "", BEGIN + timedelta(hours=number))
    start = WikiPage(env, "WikiStart")
    start.text = "= Harbour Works =\n" + "\n".join(f" * [wiki:{name}]" for name in PAGES)
    start.save("olga", "", BEGIN)
    env.shutdown()


def make_lists(env: Environment) -> None:
    """Replace Trac's examples of components, milestones and versions."""
    for model in (Component, Milestone, Version):
        for example in list(model.select(env)):
            example.delete()
    for name, owner in COMPONENTS:
        component = Component(env)
        component.name, component.owner = name, owner
        component.insert()
    for number, name in enumerate(MILESTONES):
        milestone = Milestone(env)
        milestone.name, milestone.due = name, BEGIN + timedelta(days=90 * number)
        milestone.insert()
    for name in VERSIONS:
        version = Version(env)
        version.name = name
        version.insert()


def make_tickets(env: Environment, draw: random.Random) -> None:
    """Make tickets, each with a summary of its own."""
    summaries = [f"{thing} {fault}" for thing in THINGS for fault in FAULTS]
    draw.shuffle(summaries)
    for number, summary in enumerate(summaries[:TICKETS]):
        ticket, (component, owner) = Ticket(env), draw.choice(COMPONENTS)
        ticket.populate(
            {
                "summary": summary,
                "description": f"Seen {draw.randint(2, 30)} times since last week.",
                "reporter": draw.choice(("vera", "wim", "xenia")),
                "owner": owner,
                "status": "new",
                "component": component,
                "type": draw.choice(("defect", "enhancement", "task")),
                "priority": draw.choice(("major", "minor", "trivial")),
                "milestone": draw.choice(MILESTONES),
                "version": draw.choice(VERSIONS),
            }
        )
        ticket.insert(when=BEGIN + timedelta(hours=number))


if __name__ == "__main__":
    main()

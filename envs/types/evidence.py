"""Evidence recorded at an episode's end, and what a grading requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field, JsonValue

from envs.types.observations import WholePage
from envs.types.record import Record
from envs.types.rubrics import Rubric
from envs.types.rubrics.facts import (
    DomAttributeFact,
    DomPresentFact,
    DomStyleFact,
    DownloadFact,
    ElementFact,
    ElementStateFact,
    JsFact,
    TextFact,
)


class DomElement(Record):
    """One element of a page's document."""

    tag: str
    """Lower case."""
    parent: int | None = None
    """Position of its parent in the list; ``None`` for a root."""
    attributes: dict[str, str] = Field(default_factory=dict)
    """Values by lower-case name."""
    styles: dict[str, str] | None = None
    """Computed style by property; ``None`` when it was not read."""


class Download(Record):
    """A file that the episode downloaded."""

    name: str
    size: int = Field(ge=0)
    """Size in bytes."""
    sha256: str = ""
    """sha256 of the contents; empty when it was not computed."""


class PageReply(Record):
    """The answer of a page to one expression: a value, or the reason why there is none."""

    value: JsonValue = None
    """True, false or a number. Of any other value ``trouble`` names the type."""
    trouble: str = ""
    """Reason why there is no value; empty if there is one."""
    threw: bool = False
    """True if the expression threw on this page; ``trouble`` is the exception. False where it could
    not be evaluated (bad syntax, a side effect, a timeout)."""
    stopped: bool = False
    """True if the evaluation was stopped because it took too long."""


class ServerState(Protocol):
    """The state of a site's server at the end of an episode."""

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Raises:
            SiteError: The database cannot be queried.
        """
        ...

    async def get_json(self, path: str) -> Any:
        """Return the JSON that the server answers at a path; ``None`` for a 404.

        Raises:
            SiteError: The request failed in any other way.
        """
        ...


class ServerAnswer(Record):
    """The answer of the site's server to one fact of the rubric, at the end of an episode."""

    database: str | None = None
    """Database that was queried; ``None`` if the server was sent a GET."""
    asked: str
    """The query, or the path."""
    at: tuple[str | int, ...] = ()
    """Keys and positions that lead to the value in the JSON; the rest of the answer is not kept."""
    rows: tuple[tuple[bool | int | float | str | None, ...], ...] = ()
    """Rows of the query."""
    value: Any = None
    """Value in the JSON of a GET; ``None`` if there is none, and for a 404."""
    error: str | None = None
    """Reason why there is no answer."""


class PageText(Record):
    """Text of a page's element, for a check of WebArena's ``program_html``."""

    address: str
    """Address of the page; empty if it is not known."""
    text: str = ""
    """Text of the element, cut to what the check's comparison needs."""
    trouble: str = ""
    """Reason why there is no text; empty if there is."""


class Recorded(Record):
    """Evidence read at the end of an episode, before its browser was given back.

    It holds only what `Needs` names.
    """

    pages: tuple[WholePage, ...] = ()
    """The whole last page, after the pages of all steps where a fact asks for ``ever``. Empty where
    a dialog was open: facts then read what was in view."""
    dom: tuple[DomElement, ...] | None = None
    """The last page in document order, frames and shadow trees in their places, with the styles
    that were asked for."""
    dom_cut: bool = False
    """The last page has more elements than are recorded: ``dom`` has the first of them."""
    downloads: tuple[Download, ...] | None = None
    downloads_cut: bool = False
    """Further files were still on their way when waiting for them ended."""
    scripts: dict[str, PageReply] = Field(default_factory=dict)
    """Replies by expression."""
    server: tuple[ServerAnswer, ...] | None = None
    """Answers of the site's server (`envs.rewards.server_answers`); ``None`` where it was not
    asked, or there is none."""
    looked: tuple[PageText, ...] | None = None
    """Texts for the checks of the task's ``program_html``, then results for those of its
    ``state_match``, then for those of its ``page_image_query``, in their order; ``None`` where the
    task has no evaluators."""
    validated: float | None = None
    """Reward from 0 to 1 that the task's script gave (`WebTask.script`); ``None`` without one."""
    validation: str = ""
    """Its value or its failed assertion, in words."""
    requests: tuple[dict[str, Any], ...] | None = None
    """The episode's requests as entries of an HTTP archive; ``None`` where they were not recorded
    (``rollout.record_network``)."""
    absent: dict[str, str] = Field(default_factory=dict)
    """Reason why ``dom`` or ``downloads`` is missing although it was asked for, by field."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The evidence that must be read at the end of an episode.

    Most tasks need none. Made by `needs`.
    """

    page: bool = False
    """The whole page; an observation has only what is in view."""
    elements: bool = False
    """The elements of the whole page too."""
    every_page: bool = False
    """The pages of all steps."""
    dom: bool = False
    styles: tuple[str, ...] = ()
    """Computed style properties of the nodes."""
    downloads: bool = False
    scripts: tuple[str, ...] = ()
    """Expressions of `JsFact`s."""

    def __bool__(self) -> bool:
        return self.page or self.dom or self.downloads or bool(self.scripts)


def needs(rubric: Rubric | None) -> Needs:
    """Return the evidence that a rubric's facts and gates need beyond what every episode
    records."""
    facts = [] if rubric is None else [*rubric.facts()]
    of_pages = [fact for fact in facts if isinstance(fact, TextFact | ElementFact | ElementStateFact)]
    return Needs(
        page=bool(of_pages),
        elements=any(not isinstance(fact, TextFact) for fact in of_pages),
        every_page=any(fact.when == "ever" for fact in of_pages),
        dom=any(isinstance(fact, DomPresentFact | DomAttributeFact | DomStyleFact) for fact in facts),
        styles=tuple(sorted({fact.property.lower() for fact in facts if isinstance(fact, DomStyleFact)})),
        downloads=any(isinstance(fact, DownloadFact) for fact in facts),
        scripts=tuple(dict.fromkeys(fact.expression for fact in facts if isinstance(fact, JsFact))),
    )

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
    """By lower-case name."""
    styles: dict[str, str] | None = None
    """Computed style by property; ``None`` when it was not read."""


class Download(Record):
    """A file that the episode downloaded."""

    name: str
    size: int = Field(ge=0)
    """Bytes."""
    sha256: str = ""
    """Of the contents; empty when it was not computed."""


class PageReply(Record):
    """The answer of a page to one question: a value, or why there is none."""

    value: JsonValue = None
    """True, false or a number; of anything else only the type is kept, as the trouble."""
    trouble: str = ""
    """Why there is no value; empty if there is one."""
    threw: bool = False
    """The expression threw on this page, which is a matter of the page: ``trouble`` is the exception. Not set where it could not be asked at
    all (it is no JavaScript, may only read, took too long)."""
    stopped: bool = False
    """It was stopped because it took too long."""


class ServerState(Protocol):
    """The state of a site's server at the end of an episode."""

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        """All rows of a query.

        Raises:
            SiteError: it cannot be asked.
        """
        ...

    async def get_json(self, path: str) -> Any:
        """The JSON that the server answers at a path; ``None`` for a 404: the thing is not there.

        Raises:
            SiteError: any other failure.
        """
        ...


class ServerAnswer(Record):
    """What the site's server said of its state at the end of an episode, to one question of the rubric."""

    database: str | None = None
    """Which database was queried; ``None``: the server was sent a GET."""
    asked: str
    """The query, or the path."""
    at: tuple[str | int, ...] = ()
    """Where in the JSON of the path the value is; the rest of the answer is not kept."""
    rows: tuple[tuple[bool | int | float | str | None, ...], ...] = ()
    """Of a query."""
    value: Any = None
    """What the JSON of a GET has there; ``None`` for nothing, and for a 404."""
    error: str | None = None
    """Why there is no answer."""


class PageText(Record):
    """What an element of a page said, for a check of WebArena's ``program_html``."""

    address: str
    """That was looked at; empty if it could not be told."""
    text: str = ""
    """Of a long one, as much as the check's comparison needs."""
    trouble: str = ""
    """Why nothing was seen; empty if something was."""


class Recorded(Record):
    """What was read at the end of an episode, before its browser was given back.

    Only what `Needs` names is there.
    """

    pages: tuple[WholePage, ...] = ()
    """The last page whole, after those of all steps where a fact asks for ``ever``. Empty where a dialog was open, and in old records: then facts
    have what was in view."""
    dom: tuple[DomElement, ...] | None = None
    """The last page in document order, frames and shadow trees in their places, with the styles that were asked for."""
    dom_cut: bool = False
    """The last page has more elements than are recorded: ``dom`` has the first of them."""
    downloads: tuple[Download, ...] | None = None
    downloads_cut: bool = False
    """Further files were still on their way when waiting for them ended."""
    scripts: dict[str, PageReply] = Field(default_factory=dict)
    """By expression."""
    server: tuple[ServerAnswer, ...] | None = None
    """What the site's server said of its state (`envs.rewards.server_answers`); ``None`` where it was not asked, or there is none."""
    looked: tuple[PageText, ...] | None = None
    """What the checks of the task's ``program_html`` found, in their order; ``None`` where it has no evaluators."""
    absent: dict[str, str] = Field(default_factory=dict)
    """Why ``dom`` or ``downloads`` is not there although it was asked for."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be read at the end of an episode.

    Empty for most tasks, and then nothing is read. Made by `needs`.
    """

    page: bool = False
    """The whole page, of which an observation has what is in view."""
    elements: bool = False
    """Its elements too."""
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
    """What the facts and gates of a rubric are checked against, besides what every episode records."""
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

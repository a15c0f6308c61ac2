"""The observation: what the policy sees before a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from envs.types.record import Record


class Whole(Record):
    """The uncut texts of an element that has a shortened one. Facts read them; the policy never
    sees them.

    Their total size is bounded: a text for which there was no room is empty here.
    """

    text: str = ""
    written: str = ""
    value: str = ""
    cut: tuple[str, ...] = ()
    """Names of the fields that are shortened or left out here too."""


class Element(Record):
    """One interactive element that the policy may name, in reading order."""

    index: int = Field(ge=1)
    """Number in this observation, from 1."""
    tag: str
    """Kind shown to the policy: button, link, input, password, textarea, checkbox, radio, select,
    option, text…"""
    text: str
    """Visible label, shortened."""
    value: str = ""
    """Current value of a field, shortened."""
    checked: bool = False
    """A checkbox or radio is on; a tab or option is selected."""
    focused: bool = False
    """The element has the keyboard focus."""
    box: tuple[float, float, float, float]
    """x, y, width, height in CSS pixels of the viewport."""
    id: str = ""
    """Semantic id, the same in every observation of an episode: ``login_form.user_name``. Empty for
    texts."""
    disabled: bool = False
    """Shown, but an action on it has no effect."""
    in_viewport: bool = True
    """It can be reached without scrolling."""
    input_type: str = ""
    """Type of an ``<input>``: text, email, range, date, file…"""
    options: tuple[str, ...] = ()
    """First labels of a drop-down list or list box."""
    more_options: int = Field(default=0, ge=0)
    """Number of further options."""
    written: str = ""
    """Visible text where `text` differs from it, as with ``aria-label``; placeholder of an empty
    field."""
    states: tuple[str, ...] = ()
    """Further state in words: ``expanded``, ``required``, ``max 10``, ``invalid "Please fill out
    this field."``…"""
    whole: Whole | None = None
    """``None`` where nothing is shortened."""

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Leave out what is as usual: people print lists of elements."""
        usual = {name: field.default for name, field in type(self).model_fields.items()}
        return [(name, value) for name, value in super().__repr_args__() if value != usual[str(name)]]


class Hidden(Record):
    """Numbers of elements that are on the page and not listed, by reason."""

    above: int = 0
    """Elements above the viewport or the visible part of their scroll container."""
    below: int = 0
    beside: int = 0
    covered: int = 0
    """Elements that something is painted over."""
    over_limit: int = 0
    """Elements that did not fit into the list."""


class OpenTab(Record):
    """One tab of an episode that has several."""

    number: int = Field(ge=1)
    active: bool
    """True for the tab that is seen and acted on."""


class Observation(Record):
    """The policy's view before a step.

    The screenshot travels beside it as JPEG bytes, never inside.
    """

    instruction: str
    elements: tuple[Element, ...]
    url: str
    viewport: tuple[int, int]
    """width, height in CSS pixels, as all lengths here; the screenshot has the device scale times
    as many."""
    error: str | None = None
    """Reason why the previous action had no effect, with a hint; ``None`` when it was carried
    out."""
    title: str = ""
    text: str = ""
    """The page as numbered elements and text in reading order, within a budget; ``""`` when not
    asked for."""
    words: tuple[str, ...] | None = None
    """The lines of ``text`` as words of the page alone: elements by their labels, and nothing that
    fields hold, since a policy may have put it there. ``None`` where there is no text, and in
    records from before there was this field."""
    hidden: Hidden = Hidden()
    scroll: tuple[float, float] = (0.0, 0.0)
    """x, y of the main document, in CSS pixels."""
    page_size: tuple[float, float] = (0.0, 0.0)
    """width, height of the main document in CSS pixels."""
    tabs: tuple[OpenTab, ...] = ()
    """Empty while there is only one."""
    dialog: str = ""
    """An open dialog, such as ``confirm: Delete it?``; it hides the rest of the page."""
    offers: tuple[str, ...] = ()
    """Names of actions that this site takes beyond those that every site does (``submit``)."""
    notices: tuple[str, ...] = ()
    """Texts of alerts (confirmed at once), and interventions such as a request that was given
    up."""


class WholePage(Record):
    """All of a page that a person finds by scrolling, in view or not: facts read it, the policy
    never sees it."""

    words: tuple[str, ...]
    """Its lines as in `Observation.words`, then labels and choices that are no line."""
    words_cut: bool = False
    """There is more than ``words``, which has the first of them."""
    elements: tuple[Element, ...] = ()
    """Interactive elements, where a fact asks for them."""
    elements_cut: bool = False

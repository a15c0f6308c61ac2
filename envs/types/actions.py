"""Action records that the policy may emit, as one union by ``type``.

An action names what it acts on by a `Target`: the number or the semantic id of an element, a mark
drawn on the screenshot, or a point. The records check what can be known without a page (an element
number is a number, exactly one way to name a target); what depends on the page is found out when
the action is carried out and comes back as a coded error in the next observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    model_serializer,
    model_validator,
)

from envs.types.error_codes import ErrorCode
from envs.types.record import Record
from envs.types.text import writable

GRID = 1000.0
"""Coordinates are thousandths of the viewport's width and height, as Qwen's and Gemini's models
write them."""

MAX_AMOUNT = 20.0
"""Maximum distance of one scroll in heights or widths of the viewport: more than any page of the
sites has, so a scroll can go to the end; an endless page stays bounded."""

MAX_WAIT = 60.0
"""Seconds that one wait may take, in the page's own time (which costs almost no real time)."""

MAX_VIA = 256
"""Points of a drag's way: a circle of the size of a screen, drawn by eye, has 10 to 60."""

MAX_HTML = 200_000
"""Characters of a submitted page: more than any page of the Design2Code benchmark without its
pictures, about 60,000 tokens."""

MAX_REASON = 300
"""Characters of a reason: it goes into the next prompt, and the names of unknown arguments are the
model's."""


Text = Annotated[str, AfterValidator(writable)]
"""A string that can be encoded."""


def _as_text(value: object) -> object:
    """Turn a number into its text: models leave out the quotes."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Words = Annotated[Text, BeforeValidator(_as_text)]
"""A text that may be written as a number: a ZIP code, a price."""

Share = Annotated[float, Field(ge=0, le=GRID, allow_inf_nan=False)]
Point = tuple[Share, Share]
"""x, y in thousandths of the viewport, 0..1000."""

Number = Annotated[StrictInt, Field(ge=0, lt=2**31)]
"""Number of an element, a mark or a tab; those shown to the policy begin at 1."""


def _as_number(value: object) -> object:
    """Read ``"3"``, ``"[3]"`` and ``3.0`` as 3: models write numbers in many ways, and no semantic
    id consists of digits."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    digits = value.strip().removeprefix("[").removesuffix("]") if isinstance(value, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else value


Name = Annotated[Text, Field(min_length=1, max_length=200)]
"""A semantic id."""

Direction = Literal["up", "down", "left", "right"]
Modifier = Literal["Alt", "Control", "Meta", "Shift"]


class Sparse(Record):
    """A record that is written without its defaults: ``{"type": "click", "element": 3}``."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        written: dict[str, Any] = write(self)
        kept = {name: value for name, value in written.items() if getattr(self, name) != fields[name].default}
        return {"type": written["type"], **kept} if "type" in written else kept


class MaybeTarget(Sparse):
    """An optional target; without one the action is done to the page or to what has the keyboard
    focus."""

    element: Annotated[Number | Name | None, BeforeValidator(_as_number)] = None
    """Number in the observation, or semantic id."""
    mark: Annotated[Number | None, BeforeValidator(_as_number)] = None
    """Number drawn on the screenshot."""
    at: Point | None = None

    @property
    def is_named(self) -> bool:
        """True if a target is named."""
        return not (self.element is None and self.mark is None and self.at is None)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.element, self.mark, self.at)) > 1:
            raise ValueError("name the target once: by element, mark or at")
        return self


class Target(MaybeTarget):
    """The target of an action, named in exactly one way."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.is_named:
            raise ValueError("name the target by element, mark or at")
        return self


class MouseButton(Sparse):
    """The button of a mouse action, and the keys that are held down meanwhile."""

    button: Literal["left", "right", "middle"] = "left"
    modifiers: tuple[Modifier, ...] = Field(default=(), max_length=4)


class Click(Target, MouseButton):
    """Press and release a mouse button on the target."""

    type: Literal["click"] = "click"


class DoubleClick(Target, MouseButton):
    """Click twice in a row."""

    type: Literal["double_click"] = "double_click"


class TripleClick(Target, MouseButton):
    """Click three times in a row: selects a paragraph, or the whole line of a field."""

    type: Literal["triple_click"] = "triple_click"


class Type(MaybeTarget):
    """Click a field and type, which replaces its content.

    Without a target the text goes to what has the focus.
    """

    type: Literal["type"] = "type"
    text: Words
    clear: StrictBool = True
    """True replaces the field's content; False appends the text."""
    enter: StrictBool = False
    """Press Enter afterwards."""


class Press(MaybeTarget):
    """Press a key or chord such as ``Enter``, ``Control+a``; a target gets the keyboard focus
    first."""

    type: Literal["press"] = "press"
    key: Text = Field(min_length=1, max_length=64)


class Hover(Target):
    """Move the mouse over the target."""

    type: Literal["hover"] = "hover"


class Select(Target):
    """Choose an option of a list by its visible label, or several where the list takes several."""

    type: Literal["select"] = "select"
    text: Words
    also: tuple[Text, ...] = Field(default=(), max_length=64)
    """Further options of a list that takes several."""
    add: StrictBool = False
    """True keeps the options of such a list that are already chosen."""


class Check(Target):
    """Turn a checkbox, radio button or switch on or off; no effect if it already is."""

    type: Literal["check"] = "check"
    on: StrictBool = True


class Clear(Target):
    """Empty a field."""

    type: Literal["clear"] = "clear"


class Scroll(MaybeTarget):
    """Turn the mouse wheel over the target, or over the middle of the page."""

    type: Literal["scroll"] = "scroll"
    direction: Direction = "down"
    amount: float = Field(default=0.75, gt=0, le=MAX_AMOUNT, allow_inf_nan=False)
    """Distance in heights (or widths) of the viewport; the default keeps a quarter of the view."""


class Drag(MouseButton):
    """Press the mouse on one target, move, and release it on another."""

    type: Literal["drag"] = "drag"
    start: Target
    end: Target
    via: tuple[Point, ...] = Field(default=(), max_length=MAX_VIA)
    """Points that the mouse passes, in order: a drawn line. The page is not scrolled for them."""


class Upload(Target):
    """Put files of the task's own folder into a file field (or one that the target opens when
    clicked)."""

    type: Literal["upload"] = "upload"
    files: tuple[Text, ...] = Field(min_length=1, max_length=16)
    """Paths relative to the task's folder."""


class Goto(Sparse):
    """Load an address in this tab."""

    type: Literal["goto"] = "goto"
    url: Text = Field(min_length=1, max_length=8192)


class Back(Sparse):
    """Go back in this tab's history."""

    type: Literal["back"] = "back"


class Forward(Sparse):
    """Go forward in this tab's history."""

    type: Literal["forward"] = "forward"


class Refresh(Sparse):
    """Load this tab's page again."""

    type: Literal["refresh"] = "refresh"


class NewTab(Sparse):
    """Open a tab, empty or with an address, and show it."""

    type: Literal["new_tab"] = "new_tab"
    url: Text | None = Field(default=None, min_length=1, max_length=8192)


class SwitchTab(Sparse):
    """Show another tab."""

    type: Literal["switch_tab"] = "switch_tab"
    tab: Annotated[Number, BeforeValidator(_as_number)]


class CloseTab(Sparse):
    """Close a tab, or the one that is shown."""

    type: Literal["close_tab"] = "close_tab"
    tab: Annotated[Number | None, BeforeValidator(_as_number)] = None


class Wait(Sparse):
    """Let the page's time pass."""

    type: Literal["wait"] = "wait"
    seconds: float = Field(default=1.0, gt=0, le=MAX_WAIT, allow_inf_nan=False)


class Dialog(Sparse):
    """Answer an alert, confirm or prompt of the page."""

    type: Literal["dialog"] = "dialog"
    accept: StrictBool
    text: Text | None = None
    """Typed into a prompt."""


class Answer(Sparse):
    """Tell the answer that the task asks for; ends the episode."""

    type: Literal["answer"] = "answer"
    text: Words


class Terminate(Sparse):
    """End the episode and say how it went."""

    type: Literal["terminate"] = "terminate"
    status: Literal["success", "failure"] = "success"


class Submit(Sparse):
    """Hand in a page that was written; ends the episode.

    Only on sites that ask for one.
    """

    type: Literal["submit"] = "submit"
    html: Text


Note = Annotated[str, Field(min_length=1), AfterValidator(writable), BeforeValidator(_as_text)]
"""A key or value of the memory. How long it may be is the memory's to say."""


class Remember(Sparse):
    """Keep a value under a key, in the place of what was there.

    The page is not touched.
    """

    type: Literal["remember"] = "remember"
    key: Note
    value: Note


class Forget(Sparse):
    """Drop what is kept under a key. The page is not touched."""

    type: Literal["forget"] = "forget"
    key: Note


class Invalid(Sparse):
    """A response that is no action.

    The page is not touched. In runs it ends the episode (``rollout.stop_on_invalid``); else the
    reason goes into the next observation.
    """

    type: Literal["invalid"] = "invalid"
    reason: Text
    code: ErrorCode = ErrorCode.INVALID_ACTION


ElementAction = Click | DoubleClick | TripleClick | Type | Press | Hover | Select | Check | Clear | Scroll | Upload
"""Actions that carry the fields of their target themselves."""

PageAction = (
    ElementAction
    | Drag
    | Goto
    | Back
    | Forward
    | Refresh
    | NewTab
    | SwitchTab
    | CloseTab
    | Wait
    | Dialog
    | Answer
    | Terminate
    | Submit
)
"""Actions on pages, and those that end an episode."""

MemoryAction = Remember | Forget
"""Further actions of an episode that has a memory."""

Action = Annotated[PageAction | MemoryAction | Invalid, Field(discriminator="type")]

Actions = Mapping[str, type[PageAction] | type[MemoryAction]]
"""The records of the actions that a turn may name, by name."""

ACTIONS: dict[str, type[PageAction]] = {kind.model_fields["type"].default: kind for kind in get_args(PageAction)}
"""The records by name: those of episodes without a memory, `Invalid` left out."""

WITH_MEMORY: Actions = ACTIONS | {kind.model_fields["type"].default: kind for kind in get_args(MemoryAction)}
"""The records by name: those of an episode with a memory."""

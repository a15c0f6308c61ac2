"""Refuses actions from the last observation alone. Its functions are pure: they ask no page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from envs.actions.errors import ActionError, closest_handles, disabled_error, shorten
from envs.types import (
    Action,
    Check,
    Clear,
    Click,
    DoubleClick,
    Drag,
    ErrorCode,
    Forget,
    Invalid,
    Remember,
    Select,
    Submit,
    TripleClick,
    Type,
    Upload,
)
from envs.types.actions import MAX_HTML, ElementAction, MaybeTarget

if TYPE_CHECKING:
    from envs.observation import Handle

NEVER_EDITABLE = frozenset(
    {"button", "link", "checkbox", "radio", "select", "option", "tab", "menuitem", "switch", "treeitem", "shape"}
)
"""Tags that no text can be typed into. For all others the page is asked."""

NEEDS_USE = (Click, DoubleClick, TripleClick, Type, Select, Check, Clear, Upload)
"""Actions that a disabled element refuses."""


def find_target(target: MaybeTarget, handles: Mapping[int, Handle]) -> Handle | ActionError | None:
    """Return the element that a target names; ``None`` if it names a point or nothing."""
    if isinstance(target.element, str):
        alike = (handle for handle in handles.values() if handle.name and handle.name == target.element)
        return next(alike, None) or _unknown_id(target.element, tuple(handles.values()))
    if target.element is not None:
        return handles.get(target.element) or _unknown_number("element", target.element, handles)
    if target.mark is not None:
        return handles.get(target.mark) or _unknown_number("mark", target.mark, handles)
    return None


def check_action(action: Action, handles: Mapping[int, Handle], offers: Sequence[str] = ()) -> ActionError | None:
    """Return the reason why an action cannot be carried out, as far as the observation tells.

    The answer is ``None`` if it may be tried.

    Args:
        offers: Names of actions that the site takes beyond those that every site takes.
    """
    if isinstance(action, Invalid):
        return ActionError(action.code, action.reason)
    if isinstance(action, Remember | Forget):
        return ActionError(ErrorCode.NOT_OFFERED, f"{action.type} is nothing that a page can do", "it needs a memory")
    if isinstance(action, Submit):
        return _unfit_page(action, offers)
    for target in targets_of(action):
        handle = find_target(target, handles)
        if isinstance(handle, ActionError):
            return handle
        refusal = None if handle is None else _unfit(action, handle)
        if refusal is not None:
            return refusal
    return None


def targets_of(action: Action) -> tuple[MaybeTarget, ...]:
    """Return the targets of an action."""
    if isinstance(action, Drag):
        return (action.start, action.end)
    return (action,) if isinstance(action, ElementAction) else ()


def handle_name(handle: Handle) -> str:
    """Return the name of an element in messages."""
    return f"element {handle.index}"


def _unfit(action: Action, handle: Handle) -> ActionError | None:
    tag = f"{handle_name(handle)} is a {handle.tag}"
    if handle.disabled and isinstance(action, NEEDS_USE):
        return disabled_error(handle_name(handle))
    if isinstance(action, Type | Clear) and handle.tag in NEVER_EDITABLE:
        return ActionError(ErrorCode.NOT_EDITABLE, tag, "click it")
    if isinstance(action, Select):
        if handle.options is None and handle.tag == "option":
            return None  # it stands for its list, which the page knows
        if handle.options is None:
            return ActionError(ErrorCode.NOT_A_LIST, tag, "select needs a drop-down list")
    return None


def _unfit_page(action: Submit, offers: Sequence[str]) -> ActionError | None:
    if action.type not in offers:
        return ActionError(
            ErrorCode.NOT_OFFERED, "this site takes no submitted page", "use its own controls, or answer"
        )
    if not action.html.strip():
        return ActionError(ErrorCode.EMPTY_SUBMISSION, "the submitted page is empty", "write the whole page into html")
    if len(action.html) > MAX_HTML:
        message = f"the submitted page has {len(action.html)} characters"
        return ActionError(ErrorCode.SUBMISSION_TOO_LARGE, message, f"write at most {MAX_HTML}")
    return None


def _unknown_number(what: str, number: int, handles: Mapping[int, Handle]) -> ActionError:
    known = f"choose {min(handles)} to {max(handles)}" if handles else "the page shows none"
    return ActionError(ErrorCode.UNKNOWN_ELEMENT, f"there is no {what} {number}", known)


def _unknown_id(name: str, handles: Sequence[Handle]) -> ActionError:
    hint = "use an element's number or id" if handles else "the page shows none"
    suggestions = closest_handles(name, handles)
    return ActionError(ErrorCode.UNKNOWN_ELEMENT, f"there is no element {shorten(name)!r}", hint, suggestions)

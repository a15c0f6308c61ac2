"""Finds the action in a model's turn and reads it, whatever its format.

A turn thinks first and acts last, in every format that is read here. So the action is the shortest
piece that ends the turn and is an action as a whole; of several actions the last one is done.
Quotations before it (a page can say anything) are never read. Text quoted or invented after it is
not done either: a turn with words between two actions is no action at all, since it cannot be known
which one is meant. A turn that is JSON or a call from its beginning, and broken, is no action
either: its end may be quoted in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from envs.actions.parsing.line_forms import read_line
from envs.actions.parsing.objects import json_at_end, read_object, read_value
from envs.actions.parsing.pieces import LABEL, LINE, OBSERVED, is_action, only_actions, separate_action
from envs.actions.parsing.templates import rewrite
from envs.actions.parsing.vocabulary import canonical, shorten_name
from envs.types import Action, Invalid
from envs.types.action_text import ActionFormat
from envs.types.actions import ACTIONS, WITH_MEMORY, Actions
from envs.types.text import writable

MAX_TRIES = 256
"""Maximum number of places tried as the beginning of the action, the last ones first. Without a
bound a hostile turn costs the square of its length."""

_THINK, _THINK_END = "<think>", "</think>"
_CALL_OPEN, _TAG_OPEN, _FENCE = "<tool_call>", "<action>", "```"
_CLOSERS = ("</tool_call>", "</action>", _FENCE)
_FENCE_OPEN = re.compile(r"```[a-zA-Z_]*\Z")
_BRACE = re.compile(r"[{\[]")

_FIRST = re.compile(
    rf"\s*(?:{LABEL})?\s*(?:<action>|<tool_call>|```(?:[a-z_]*\n)?)?\s*(?:{LABEL})?\s*"
    r"(?:(?P<json>\{\s*(?:[\"'}]|\w+\s*:)|\[\s*\{)|(?P<call>[a-z_]{1,40})\()",
    re.IGNORECASE,
)
"""JSON or a call at the very beginning of a turn after its thought."""
_CLOSED = re.compile(r"""(?:[^"'()]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\([^"'()]*\))*\)""", re.DOTALL)
"""Arguments of a call to their end; a text in quotes may hold everything.

Without a possessive quantifier, which Python before 3.11.5 matches wrongly (gh-106052).
"""
_IN_JSON = re.compile(r"""(?:["']\s*:(?:\s*\[)?|[}\]]\s*,)\s*(?:<action>|<tool_call>|```(?:[a-z_]*\n)?)?\s*\Z""")
"""Text before a value within JSON: ``"note":``, ``"notes": [``, ``},``."""
_KEY_CHARS = 100
"""Number of characters before a place in which `_IN_JSON` is searched."""

_INLINE = {"</action>": re.compile(r"<action>\s*"), _FENCE: re.compile(r"```(?:[a-z_]*\n)?\s*")}
"""Openers that may also stand within a line, by the closer at the end of the turn."""

_LABELLED = re.compile(rf"^[ \t]*{LABEL}", re.MULTILINE | re.IGNORECASE)
_ACTION_LINE = re.compile(rf"^[ \t]*{LABEL}.*$", re.MULTILINE | re.IGNORECASE)
_THOUGHT_LINE = re.compile(r"^[ \t*]*(?:thoughts?|reasoning|memory|observation)[ *]*:", re.MULTILINE | re.IGNORECASE)
_NOTE = re.compile(r"[ \t*]*(?:memory|memory_updated|notes?|observation)[ *]*:", re.IGNORECASE)
_OBSERVED_LINE = re.compile(rf"^{OBSERVED.pattern}", re.MULTILINE | re.IGNORECASE)
MAX_INVENTED = 8
"""Maximum number of invented turns that are checked: each costs a reading."""
_NOTE_LINE = re.compile(rf"^{_NOTE.pattern}", re.MULTILINE | re.IGNORECASE)

_APART = re.compile(
    r"^[ \t]*(?:<action>|<tool_call>|```)(?:(?!<action>|<tool_call>|```).)*?(?:</action>|</tool_call>|```)",
    re.MULTILINE | re.DOTALL,
)
"""Enclosed text that begins a line."""

_SEPARATE = "words stand between two actions, one of which may be quoted; end the turn with its one action and write nothing after it"

_OPENERS = re.compile(r"[{`]|<action>|<tool_call>")
"""Text that a remark after an action does not hold: an action that was meant may begin there."""
_SENTENCE = re.compile(r"(?:[^\"'()\[\]{}<>`]*[.:]\s*)?(?:<tool_call>|<action>|```[a-z_]*)?\s*")
"""Plain words before a JSON object on the line of an action."""


@dataclass(frozen=True)
class Parsed:
    """Result of reading a model turn."""

    action: Action
    form: ActionFormat


def parse_action(response: str, actions: Actions = ACTIONS) -> Action:
    """Return the action that ``response`` names, or ``Invalid`` with the reason."""
    return parse(response, actions).action


def parse(response: str, actions: Actions = ACTIONS) -> Parsed:
    """Return the action of ``actions`` that ``response`` names, or ``Invalid``, and its form."""
    turn = writable(response).strip()
    rewritten = rewrite(turn)
    parsed = _read_turn(turn, actions)
    if rewritten == turn:
        return parsed
    again = _read_turn(rewritten, actions)
    # Only the rewritten turn may show a call before another action.
    return again if isinstance(parsed.action, Invalid) or isinstance(again.action, Invalid) else parsed


def _read_turn(turn: str, actions: Actions) -> Parsed:
    turn = _without_notes(turn)
    if _thought_is_open(turn):
        return Parsed(
            Invalid(reason="the thought has no end; close it with </think> and write an action"), ActionFormat.NONE
        )
    if (broken := _broken_from_the_start(turn)) is not None:
        return Parsed(broken, ActionFormat.NONE)
    at_end = _at_end(turn, actions)
    located = at_end or _before_remark(turn, actions)
    if located is None:
        return Parsed(_unread(turn, actions), ActionFormat.NONE)
    is_quoted = _is_after_another(turn, located[1], actions, words_follow=at_end is None)
    return Parsed(Invalid(reason=_SEPARATE), ActionFormat.NONE) if is_quoted else located[0]


def _thought_is_open(turn: str) -> bool:
    """Return True if a turn begins with a thought that has no end.

    Text after the last closing tag may begin another thought.
    """
    return turn.startswith(_THINK) and turn.rpartition(_THINK_END)[2].lstrip().startswith(_THINK)


def _after_thought(turn: str) -> str:
    """Return the text after the thought of a turn, if it has one end: of several ends one is
    quoted."""
    return turn.partition(_THINK_END)[2] if turn.startswith(_THINK) and turn.count(_THINK_END) == 1 else turn


def _broken_from_the_start(turn: str) -> Invalid | None:
    """Return the error of a turn that is an action from its beginning and broken.

    The rest of such a turn may be quoted in the action.
    """
    rest = _after_thought(turn)
    first = _FIRST.match(rest)
    if first is None:
        return None
    if first["json"]:
        invalid = None if _whole_json(rest, first.start("json")) else read_object(rest[first.start("json") :], ACTIONS)
        return invalid if isinstance(invalid, Invalid) else None
    if canonical(first["call"], ACTIONS) not in ACTIONS or _CLOSED.match(rest, first.end()):
        return None
    if is_action(rest[first.start("call") :].partition("\n")[0].strip("`* "), WITH_MEMORY):  # has an unescaped quote
        return None
    return Invalid(reason=f"the call has no end: {shorten_name(rest[first.start('call') :])}")


def _without_notes(turn: str) -> str:
    """Return the turn without closing lines such as ``Memory: …``.

    An action that a note quotes is not done, even if there is no other.
    """
    while True:
        last = _line_before(turn, len(turn)) or turn.rpartition("\n")[2]
        if not _NOTE.match(last):
            break
        turn = turn.removesuffix(last).rstrip()
    # Lines after a turn that is an action from its beginning are no thought: a note of several
    # lines is removed, whatever it quotes.
    rest = _after_thought(turn)
    note = _NOTE_LINE.search(rest)
    if note is not None and _is_action(_LABELLED.sub("", rest[: note.start()].strip(), count=1)):
        return turn[: len(turn) - len(rest) + note.start()].rstrip()
    # With a tag or a fence the first action may be the quotation, but not if an invented next turn
    # follows it.
    if note is not None and OBSERVED.match(rest, note.start()) and only_actions(rest[: note.start()], WITH_MEMORY):
        return turn[: len(turn) - len(rest) + note.start()].rstrip()
    return turn


def _is_after_another(turn: str, start: int, actions: Actions, *, words_follow: bool) -> bool:
    """Return True if another whole action stands before the one at ``start``.

    One of them may be quoted or invented.
    """
    rest = turn.rpartition(_THINK_END)[2]
    start -= len(turn) - len(rest)
    if start >= 0 and not rest[:start].strip():
        return False
    if separate_action(rest, start, actions, words_follow=words_follow):
        return True
    for invented in islice(_OBSERVED_LINE.finditer(rest, 1, max(start, 1)), MAX_INVENTED):
        before = _at_end(rest[: invented.start()].rstrip(), actions)
        if before is not None and not isinstance(before[0].action, Invalid):
            return True
    return False


def _is_action(piece: str) -> bool:
    """Return True if a text is an action as a whole, in brackets, as a call or as JSON."""
    return read_line(piece, ACTIONS) is not None or json_at_end(piece, 0) is not None


def _without_closers(turn: str) -> str:
    """Return the turn without the tags, fences and space that close its action."""
    while True:
        rest = turn.rstrip()
        for closer in _CLOSERS:
            rest = rest.removesuffix(closer)
        if rest == turn:
            return rest
        turn = rest


def _line_before(turn: str, place: int) -> str:
    """Return the text before a place on its line; the end of a thought ends a line, too."""
    return turn[:place].rpartition("\n")[2].rpartition(_THINK_END)[2]


_Located = tuple[Parsed, int]
"""Action and its start in the turn."""


def _at_end(turn: str, actions: Actions) -> _Located | None:
    """Return the shortest piece that ends the turn and is an action as a whole.

    Closing tags and fences are no part of it.
    """
    text = _without_closers(turn)
    starts = {match.end() for match in LINE.finditer(text)}
    for closer, opener in _INLINE.items():
        starts |= {match.end() for match in opener.finditer(text)} if closer in turn[len(text) :] else set()
    starts = {start for start in starts if not _IN_JSON.search(text, max(0, start - _KEY_CHARS), start)}
    bare = text.rstrip("`*. \n\t")
    # Whole lines come before parts of lines. JSON lines come first, since JSON strings may hold
    # lines that look like actions.
    return (
        _object_at_end(bare, _last_first(start for start in starts if bare.startswith(("{", "["), start)), actions)
        or _line_at_end(text, _last_first(starts), actions)
        or _object_at_end(bare, _last_first(_inner_braces(bare, starts)), actions)
    )


def _inner_braces(text: str, starts: set[int]) -> Iterator[int]:
    """Yield places within a line where JSON may begin.

    Places within a broken action of the line are left out, as the action may quote JSON.
    """
    broken = [
        start for start in _last_first(starts) if text[start : start + 1] in "{[" and not _whole_json(text, start)
    ]
    for place in _last_first(match.start() for match in _BRACE.finditer(text)):
        line = place - len(_line_before(text, place))
        label = _LABELLED.match(text, line)
        quoted = label is not None and place > label.end() and not _SENTENCE.fullmatch(text, label.end(), place)
        quoted = quoted or _IN_JSON.search(text, max(0, place - _KEY_CHARS), place) is not None
        if not quoted and not any(line <= start < place for start in broken):
            yield place


def _whole_json(text: str, start: int) -> bool:
    """Return True if a whole JSON value begins at ``start``."""
    try:
        json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        return False
    return True


def _line_at_end(text: str, starts: Iterable[int], actions: Actions) -> _Located | None:
    """Read brackets or a call from one of ``starts`` to the end; its quoted text may have line
    breaks."""
    for start in starts:
        piece = text[start:].strip("`* \n\t")
        line = read_line(piece, actions)
        # Several lines are an action only if it is valid: they may begin in a quotation.
        if line is None or (isinstance(line[1], Invalid) and "\n" in piece):
            continue
        form, action = line
        form = _form_at(text, start, form, ActionFormat.LAST_LINE)
        # A tool call is JSON.
        called = form in (ActionFormat.TOOL_CALL, ActionFormat.LAST_TOOL_CALL)
        return Parsed(action, ActionFormat.LAST_LINE if called else form), start
    return None


def _object_at_end(text: str, starts: Iterable[int], actions: Actions) -> _Located | None:
    """Read a JSON object or list from one of ``starts`` to the end."""
    for start in starts if text.endswith(("}", "]")) else ():
        value = json_at_end(text, start)
        if value is not None and not _NOTE.match(_line_before(text, start)):
            form = _form_at(text, start, ActionFormat.JSON, ActionFormat.PROSE)
            return Parsed(read_value(value, actions), form), start
    return None


def _last_first(starts: Iterable[int]) -> Iterator[int]:
    return islice(sorted(starts, reverse=True), MAX_TRIES)


def _form_at(text: str, start: int, alone: ActionFormat, otherwise: ActionFormat) -> ActionFormat:
    """Return the form of an action that begins at ``start``, by the text before it."""
    before = text[:start].rstrip()
    if before.endswith(_CALL_OPEN):
        rest = before.rpartition(_THINK_END)[2]
        return ActionFormat.TOOL_CALL if rest.count(_CALL_OPEN) == 1 else ActionFormat.LAST_TOOL_CALL
    if before.endswith(_TAG_OPEN):
        return ActionFormat.TAG
    if _FENCE_OPEN.search(before) and before.count(_FENCE) % 2:
        return ActionFormat.FENCE
    return alone if not before or before.endswith(_THINK_END) else otherwise


def _before_remark(turn: str, actions: Actions) -> _Located | None:
    """Read an action with a plain remark after it (``Done.``), if the action stands apart.

    It is labelled, or enclosed from the beginning of a line. In a turn with labels (``Thought: …``)
    only a labelled action counts: an enclosed one may be quoted.
    """
    offset = len(turn) - len(turn.rpartition(_THINK_END)[2].lstrip())
    turn = turn[offset:].rstrip()
    if turn.startswith("{") and (whole := _object_and_remark(turn, actions)):
        return whole, offset
    for kind in (_ACTION_LINE,) if _THOUGHT_LINE.search(turn) else (_ACTION_LINE, _APART):
        last = next(reversed(list(kind.finditer(turn))), None)
        if last is None or not _is_remark(turn[last.end() :], actions):
            continue
        located = _at_end(turn[: last.end()], actions)
        # A fenced block within a turn may be a quotation; one with JSON hardly is.
        if located is None or (located[0].form is ActionFormat.FENCE and last.start() and "{" not in last.group()):
            return None
        return located[0], offset + located[1]
    return None


def _object_and_remark(turn: str, actions: Actions) -> Parsed | None:
    """Read a turn that begins with a JSON object and goes on with a remark."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(turn)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not turn[end:].startswith("\n") or not _is_remark(turn[end:], actions):
        return None
    return Parsed(read_value(value, actions), ActionFormat.PROSE)


def _is_remark(text: str, actions: Actions) -> bool:
    """Return True if a text holds no action that was meant: no line is one, and none is opened."""
    lines = [line.strip("`* \t") for line in text.splitlines()]
    return not _OPENERS.search(text) and not any(read_line(line, actions) for line in lines)


def _unread(turn: str, actions: Actions) -> Invalid:
    text = _without_closers(turn)
    last = text[max((match.end() for match in LINE.finditer(text)), default=0) :]
    if last.startswith(("{", "[")):
        action = read_object(last, actions)
        if isinstance(action, Invalid):
            return action
    return Invalid(reason=f'not of the form click [1], type [1] "text" or select [1] "label": {shorten_name(turn)}')

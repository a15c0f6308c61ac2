"""Maps a plan's move to the action that a policy would take in a browser."""

from __future__ import annotations

from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Push, Say, Tick
from envs.observation.roles import INPUT_KINDS
from envs.types import Action, Answer, Check, Click, Invalid, Observation, Select, Type

TAGS = {
    Follow: ("link",),
    Push: ("button",),
    Fill: ("input", "textarea", *INPUT_KINDS.values()),
    Choose: ("select",),
    Tick: ("checkbox", "radio"),
}
"""Element tags that each move can use."""


def action_of(move: Move, observation: Observation) -> Action:
    """Return the action of a move, or an `Invalid` that names what is missing."""
    if isinstance(move, Say):
        return Answer(text=move.text)
    tags = TAGS[type(move)]
    target = next(
        (element for element in observation.elements if element.tag in tags and element.text == move.label), None
    )
    if target is None:
        return Invalid(reason=f"{observation.url} lists no {' or '.join(tags)} {move.label!r}")
    match move:
        case Fill(_, text):
            return Type(element=target.index, text=text)
        case Choose(_, option):
            return Select(element=target.index, text=option)
        case Tick(_, on):
            return Check(element=target.index, on=on)
    return Click(element=target.index)

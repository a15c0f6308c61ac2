"""Maps a plan's move to the action that a policy would take in a browser."""

from __future__ import annotations

from envs.observation.roles import INPUT_KINDS
from envs.tasks.generate.moves import Choose, Fill, Follow, Move, Push, Say, Tick
from envs.types import Action, Answer, Check, Click, Invalid, Observation, Select, Type

TAGS = {
    Follow: ("link",),
    Push: ("button",),
    Fill: ("input", "textarea", *INPUT_KINDS.values()),
    Choose: ("select",),
    Tick: ("checkbox",),
}
"""What elements a move is for."""


def action_of(move: Move, observation: Observation) -> Action:
    """The action of a move on what is seen, or an `Invalid` that says what is not there."""
    if isinstance(move, Say):
        return Answer(text=move.text)
    tags = TAGS[type(move)]
    found = next((each for each in observation.elements if each.tag in tags and each.text == move.label), None)
    if found is None:
        return Invalid(reason=f"{observation.url} lists no {' or '.join(tags)} {move.label!r}")
    match move:
        case Fill(_, text):
            return Type(element=found.index, text=text)
        case Choose(_, option):
            return Select(element=found.index, text=option)
        case Tick(_, on):
            return Check(element=found.index, on=on)
    return Click(element=found.index)

"""A field that its page does not show takes no focus: an error of the action, not the end of the
episode."""

from __future__ import annotations

from envs.actions import ActionError
from envs.types import Action, ErrorCode, Press, Select, Type

from .acting import on

VALUES = {
    "color": "#ff8800",
    "range": "30",
    "date": "2024-05-17",
    "time": "21:05",
    "datetime-local": "2024-05-17T21:05",
    "month": "2024-05",
    "week": "2024-W20",
}
HIDING = ("style='display:none'", "style='visibility:hidden'", "inert")
LABELS = [
    f"<label data-t={kind}{n}>{kind} <input type={kind} {how}></label><br>"
    for kind in VALUES
    for n, how in enumerate(HIDING)
]
LISTS = [
    f"<label>list <select data-t=list{n} {how}><option>a<option>b</select></label><br>" for n, how in enumerate(HIDING)
]


async def test_a_field_that_is_not_shown_refuses() -> None:
    async with on("".join(LABELS + LISTS) + "<script>hear('keydown input change')</script>") as here:
        before = await here.cdp.value(STATE)
        actions: list[Action] = [
            Type(element=f"{kind}{n}", text=text) for kind, text in VALUES.items() for n in range(3)
        ]
        actions += [Select(element=f"list{n}", text="b") for n in range(3)]
        actions += [Press(element=f"{kind}0", key="a") for kind in VALUES]
        for action in actions:
            outcome = await here.act(action, settle=False)
            assert isinstance(outcome, ActionError), action
            assert outcome.code is ErrorCode.NOT_FOCUSABLE and outcome.hint, action
        assert await here.cdp.value(STATE) == before, "nothing was changed"
        assert not await here.log()


STATE = "JSON.stringify([...document.querySelectorAll('input,select')].map((each) => each.value))"

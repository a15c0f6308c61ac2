"""Actions of every kind, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from envs.types import actions as kinds
from envs.types.actions import ACTIONS

texts = st.text(max_size=60)
numbers = st.integers(0, 9999)
names = st.from_regex(r"[a-z_]{1,12}(\.[a-z_]{1,12}){0,2}", fullmatch=True)
points = st.tuples(st.floats(0, 1000), st.floats(1.5, 1000))  # two numbers below 1 are fractions
ways = st.one_of(
    st.fixed_dictionaries({"element": numbers | names}),
    st.fixed_dictionaries({"mark": numbers}),
    st.fixed_dictionaries({"at": points}),
)
maybe = st.just({}) | ways
targets = ways.map(lambda way: kinds.Target(**way))


def _with(
    way: st.SearchStrategy[dict[str, object]], **fields: st.SearchStrategy[object]
) -> st.SearchStrategy[dict[str, object]]:
    return st.tuples(way, st.fixed_dictionaries(fields)).map(lambda pair: pair[0] | pair[1])


nothing = st.just({})
mouse = {
    "button": st.sampled_from(["left", "right", "middle"]),
    "modifiers": st.lists(st.sampled_from(["Alt", "Control", "Meta", "Shift"]), unique=True),
}
ARGUMENTS: dict[str, st.SearchStrategy[dict[str, object]]] = {
    "click": _with(ways, **mouse),
    "double_click": _with(ways, **mouse),
    "triple_click": _with(ways, **mouse),
    "type": _with(maybe, text=texts, clear=st.booleans(), enter=st.booleans()),
    "press": _with(maybe, key=st.text(min_size=1, max_size=20)),
    "hover": ways,
    "select": _with(ways, text=texts, also=st.lists(texts, max_size=2), add=st.booleans()),
    "check": _with(ways, on=st.booleans()),
    "clear": ways,
    "scroll": _with(maybe, direction=st.sampled_from(["up", "down", "left", "right"]), amount=st.floats(0.01, 20)),
    "upload": _with(ways, files=st.lists(texts, min_size=1, max_size=3)),
    "drag": _with(nothing, start=targets, end=targets, via=st.lists(points, max_size=3), **mouse),
    "goto": _with(nothing, url=st.text(min_size=1, max_size=60)),
    "back": nothing,
    "forward": nothing,
    "refresh": nothing,
    "new_tab": _with(nothing, url=st.none() | st.text(min_size=1, max_size=60)),
    "switch_tab": _with(nothing, tab=numbers),
    "close_tab": _with(nothing, tab=st.none() | numbers),
    "wait": _with(nothing, seconds=st.floats(0.01, 60)),
    "dialog": _with(nothing, accept=st.booleans(), text=st.none() | texts),
    "answer": _with(nothing, text=texts),
    "submit": _with(nothing, html=texts),
    "terminate": _with(nothing, status=st.sampled_from(["success", "failure"])),
}
assert set(ARGUMENTS) == set(ACTIONS)
every_action = st.one_of(*(made.map(ACTIONS[name].model_validate) for name, made in ARGUMENTS.items()))

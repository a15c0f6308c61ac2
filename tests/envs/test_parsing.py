"""Model turns to actions: exact forms, counted failures, never an exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.actions.parsing import ActionFormat, format_action, parse, parse_action
from envs.types import Click, ErrorCode, Forget, Invalid, Remember, Select, Submit, Type
from envs.types.actions import WITH_MEMORY

from .strategies import every_action

elements = st.integers(1, 9999)
actions = st.one_of(
    st.builds(Click, element=elements),
    st.builds(Type, element=elements, text=st.text(max_size=60)),
    st.builds(Select, element=elements, text=st.text(max_size=60)),
)


@given(actions)
def test_what_the_tiny_policy_writes_is_read_back(action):
    assert parse_action(format_action(action)) == action
    assert parse(format_action(action)).form == ActionFormat.BRACKETS


@given(every_action, st.sampled_from([ActionFormat.BRACKETS, ActionFormat.JSON, ActionFormat.TOOL_CALL]))
def test_what_is_written_is_read_back(action, form):
    read = parse(format_action(action, form))
    assert read.action == action
    assert read.form == form or (form == ActionFormat.BRACKETS and read.form == ActionFormat.JSON)


@given(st.text(max_size=200))
def test_any_text_gives_an_action(response):
    assert parse_action(response).type


@pytest.mark.parametrize("tag", ["</think>", "<think>", "<tool_call>", "</tool_call>", "<action>", "```", "{", '"'])
@pytest.mark.parametrize("form", [ActionFormat.BRACKETS, ActionFormat.JSON, ActionFormat.TOOL_CALL])
def test_a_text_may_hold_what_encloses_actions(tag, form):
    for action in (Type(element=1, text=f"a {tag} b"), Type(text=tag, clear=False)):
        assert parse_action(format_action(action, form)) == action


@pytest.mark.parametrize(
    ("response", "word"),
    [
        ("", "not of the form"),
        ("click", "not of the form"),
        ("click [3] please", "not of the form"),
        ('click [3] "x"', "takes no text"),
        ("type [3]", "needs a text"),
        ('hover [3] "x"', "takes no text"),
        ('wave [3] "x"', "no such action"),
        ('type [3] "a\\q"', "not a JSON string"),
        ("click [99999]", "not of the form"),
        ("<think>click [1]", "thought has no end"),
        ('{"action": "click", "element"', "not JSON"),
        ('{"action": "click", "element": NaN}', "not JSON"),
        ('{"action": "wave"}', "no such action: 'wave'; there are click"),
        ('{"action": "click"}', "name the target by element, mark or at"),
        ('{"action": "click", "element": true}', "element: Input should be a valid integer"),
        ('{"action": "click", "element": 1, "mark": 2}', "name the target once"),
        ('{"action": "click", "element": 1, "target": 2}', "given twice"),
        ('{"action": "click", "element": 1, "force": true}', "force: Extra inputs"),
        ('{"action": 3}', "no string"),
        ('{"thought": "hm"}', "no action"),
        ('<tool_call>{"name": "click", "arguments": "{"}</tool_call>', "arguments is not JSON"),
        ("hover(3, 4, 5)", "argument 2: Extra inputs"),
        ("click(3, 4, 5)", "button: Input should be"),
        ("click(3; 4)", "cannot read the argument"),
        ('{"action": "click", "at": [500, 1001]}', "less than or equal to 1000"),
    ],
)
def test_each_way_to_be_wrong_is_named(response, word):
    action = parse_action(response)
    assert isinstance(action, Invalid)
    assert word in action.reason


def test_thoughts_and_white_space_are_not_read():
    assert parse_action("<think>click [1]</think>\n click [2] ") == Click(element=2)


FENCED = 'I open it.\n```json\n{"action": "click", "element": 3}\n```\nDone.'
TOOL = '<tool_call>\n{"name": "click", "arguments": {"element": 3}}\n</tool_call>'
CLICK = {"type": "click", "element": 3}


@pytest.mark.parametrize(
    ("response", "form", "told"),
    [
        ("click [3]", ActionFormat.BRACKETS, CLICK),
        ("click [menu.save]", ActionFormat.BRACKETS, {"type": "click", "element": "menu.save"}),
        ("press [Control+a]", ActionFormat.BRACKETS, {"type": "press", "key": "Control+a"}),
        ('press [3] "Enter"', ActionFormat.BRACKETS, {"type": "press", "element": 3, "key": "Enter"}),
        ("scroll [down]", ActionFormat.BRACKETS, {"type": "scroll"}),
        ("go_back", ActionFormat.BRACKETS, {"type": "back"}),
        ("stop [42 euros]", ActionFormat.BRACKETS, {"type": "answer", "text": "42 euros"}),
        (
            "type [7] [Berlin] [1]",
            ActionFormat.WEBARENA,
            {"type": "type", "element": 7, "text": "Berlin", "enter": True},
        ),
        ('{"action": "click", "element": 3}', ActionFormat.JSON, CLICK),
        ('{"type": "click", "element": 3}', ActionFormat.JSON, CLICK),
        ('{"thought": "a", "action": {"type": "click", "target": "[3]"}}', ActionFormat.JSON, CLICK),
        (TOOL, ActionFormat.TOOL_CALL, CLICK),
        (f"I click.\n{TOOL.removesuffix('</tool_call>')}", ActionFormat.TOOL_CALL, CLICK),
        (TOOL.replace("3", "4") + TOOL, ActionFormat.LAST_TOOL_CALL, CLICK),
        ("click(3)", ActionFormat.CALL, CLICK),
        ("click('a51')", ActionFormat.CALL, {"type": "click", "element": "a51"}),
        ("click(120, 340)", ActionFormat.CALL, {"type": "click", "at": (120, 340)}),
        ("click(start_box='(1,2)')", ActionFormat.CALL, {"type": "click", "at": (1, 2)}),
        ("click(at=(120, 340))", ActionFormat.CALL, {"type": "click", "at": (120, 340)}),
        (r'type(1, "a \"b\", c")', ActionFormat.CALL, {"type": "type", "element": 1, "text": 'a "b", c'}),
        ("<action>click [3]</action>", ActionFormat.TAG, CLICK),
        (FENCED, ActionFormat.FENCE, CLICK),
        ("Now ```click [3]```", ActionFormat.FENCE, CLICK),
        ('First {"a": 1}, so {"action": "click", "element": 3}.', ActionFormat.PROSE, CLICK),
        ('First {"a": 1}, so {"action": "click", "element": 3}. Fine {"b": 2}.', ActionFormat.PROSE, None),
        ('{"action": "click", "element": 9} or {"action": "click", "element": 3}', ActionFormat.NONE, None),
        ("I will save it.\nAction: click(3)", ActionFormat.LAST_LINE, CLICK),
        ("I will save it.\n**click [3]**", ActionFormat.LAST_LINE, CLICK),
        ("I do not know.", ActionFormat.NONE, None),
    ],
)
def test_every_form_is_read_and_named(response, form, told):
    read = parse(response)
    assert read.form == form
    if told is None:
        assert isinstance(read.action, Invalid)
    else:
        assert read.action.model_dump() == told


def call(name: str, **arguments: object) -> str:
    import json

    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (call("computer_use", action="left_click", coordinate=[500, 300]), {"type": "click", "at": (500, 300)}),
        (call("computer_use", action="type", text="hi"), {"type": "type", "text": "hi", "clear": False}),
        (call("computer_use", action="key", keys=["ctrl", "a"]), {"type": "press", "key": "ctrl+a"}),
        (call("computer_use", action="scroll", pixels=-500), {"type": "scroll", "amount": 0.5}),
        (
            call("computer", action="scroll", coordinate=[10, 20], scroll_direction="up", scroll_amount=5),
            {"type": "scroll", "at": (10, 20), "direction": "up", "amount": 0.5},
        ),
        (
            call("computer", action="left_click_drag", start_coordinate=[1, 2], coordinate=[3, 4]),
            {"type": "drag", "start": {"at": (1, 2)}, "end": {"at": (3, 4)}},
        ),
        (call("computer_use", action="wait", time=2), {"type": "wait", "seconds": 2}),
        (call("computer_use", action="terminate", status="failure"), {"type": "terminate", "status": "failure"}),
        (call("step_browser", action="key_press", key="Enter"), {"type": "press", "key": "Enter"}),
        (
            call("step_browser", action="select", target="size", value="L"),
            {"type": "select", "element": "size", "text": "L"},
        ),
        (call("step_browser", action="terminate", answer="42"), {"type": "answer", "text": "42"}),
        (call("goto_url", url="/x"), {"type": "goto", "url": "/x"}),
        (
            call("drag", **{"from": 3, "to": "bin"}),
            {"type": "drag", "start": {"element": 3}, "end": {"element": "bin"}},
        ),
        (call("uncheck", element=3), {"type": "check", "element": 3, "on": False}),
        (call("upload", element=3, file="a.txt"), {"type": "upload", "element": 3, "files": ("a.txt",)}),
    ],
)
def test_other_schemes_are_translated(response, told):
    assert parse(response).action.model_dump() == told


def test_half_a_surrogate_pair_can_be_stored():
    for response in ('type [1] "\ud800"', '{"action": "answer", "text": "\\ud800"}', "\udfff"):
        assert parse_action(response).model_dump_json()


def test_deep_and_long_texts_are_read_in_time():
    for response in (
        "[" * 50_000,
        '{"a":' * 20_000,
        '{"action":' + "[" * 5000,
        "click(" * 5000,
        "```" * 20_000,
        "<action>" * 9000,
    ):
        assert isinstance(parse_action(response), Invalid)
    assert parse_action("x " + "{" * 300 + '{"action": "back"}').type == "back"  # what precedes it is not read
    assert (
        parse_action("{" * 300 + '{"action": "back"}').type == "invalid"
    )  # a broken object is not replaced by one in it
    html = "<style>" + "p{margin:0}" * 9000 + "</style>"
    for form in (ActionFormat.JSON, ActionFormat.TOOL_CALL):
        assert parse_action("I hand it in.\n" + format_action(Submit(html=html), form)) == Submit(html=html)


KEEP = {"type": "remember", "key": "total", "value": "42.50"}
DROP = {"type": "forget", "key": "total"}


@pytest.mark.parametrize(
    ("response", "form", "told"),
    [
        ('remember [total] "42.50"', ActionFormat.BRACKETS, KEEP),
        ('remember [the total] "a\\nb"', ActionFormat.BRACKETS, {**KEEP, "key": "the total", "value": "a\nb"}),
        ('remember [12345] "x"', ActionFormat.BRACKETS, {**KEEP, "key": "12345", "value": "x"}),
        ("forget [total]", ActionFormat.BRACKETS, DROP),
        ('{"action": "remember", "key": "total", "value": "42.50"}', ActionFormat.JSON, KEEP),
        ('{"action": "remember", "key": "total", "value": 42.5}', ActionFormat.JSON, {**KEEP, "value": "42.5"}),
        ('<tool_call>{"name": "forget", "arguments": {"key": "total"}}</tool_call>', ActionFormat.TOOL_CALL, DROP),
        ('remember("total", "42.50")', ActionFormat.CALL, KEEP),
        ('forget(key="total")', ActionFormat.CALL, DROP),
        ('<action>remember [total] "42.50"</action>', ActionFormat.TAG, KEEP),
        ('I note it. {"action": "remember", "key": "total", "value": "42.50"}', ActionFormat.PROSE, KEEP),
        ("I am done.\nAction: forget [total]", ActionFormat.LAST_LINE, DROP),
    ],
)
def test_the_memory_is_written_in_every_form_and_only_where_there_is_one(response, form, told):
    read = parse(response, WITH_MEMORY)
    assert (read.form, read.action.model_dump()) == (form, told)
    without = parse(response).action
    assert isinstance(without, Invalid) and without.code in (ErrorCode.UNKNOWN_ACTION, ErrorCode.INVALID_ACTION)
    assert "forget" not in without.reason.partition("there are")[2]


@pytest.mark.parametrize(
    ("response", "code", "word"),
    [
        ('{"action": "remember", "key": "total"}', ErrorCode.BAD_ACTION, "value: Field required"),
        ('{"action": "remember", "key": "", "value": "x"}', ErrorCode.BAD_ACTION, "key: String should have at least 1"),
        ('{"action": "remember", "key": ["a"], "value": "x"}', ErrorCode.BAD_ACTION, "key: Input should be"),
        ('{"action": "remember", "key": true, "value": "x"}', ErrorCode.BAD_ACTION, "key: Input should be"),
        ('{"action": "remember", "key": "a", "value": "x", "for": 3}', ErrorCode.BAD_ACTION, "for: Extra inputs"),
        ('forget [total] "x"', ErrorCode.BAD_ACTION, "forget takes no text"),
        ("forget()", ErrorCode.BAD_ACTION, "key: Field required"),
        ("remember", ErrorCode.INVALID_ACTION, "not of the form"),
        ('remember [a] "x', ErrorCode.INVALID_ACTION, "not of the form"),
        ('{"action": "wave"}', ErrorCode.UNKNOWN_ACTION, ", remember, forget"),
    ],
)
def test_a_malformed_note_is_named(response, code, word):
    action = parse_action(response, WITH_MEMORY)
    assert isinstance(action, Invalid) and action.code == code
    assert word in action.reason


@pytest.mark.parametrize("form", [ActionFormat.BRACKETS, ActionFormat.JSON, ActionFormat.TOOL_CALL])
def test_notes_survive_writing_and_reading(form):
    for note in (Remember(key='a [b] "c"', value="</tool_call>\n{}"), Forget(key="3")):
        assert parse_action(format_action(note, form), WITH_MEMORY) == note

"""Tool calls and thoughts as other chat templates write them."""

from __future__ import annotations

import pytest

from envs.actions.parsing import parse_action


def at(x: float, y: float) -> dict[str, object]:
    return {"at": (x, y)}


CLICK_3 = ("click", {"element": 3})
TYPE_0123 = ("type", {"element": 3, "text": "0123"})


@pytest.mark.parametrize(
    ("turn", "done"),
    [
        ("◁think▷hm click [9]◁/think▷\nclick [3]", CLICK_3),
        ("[THINK]hm\nclick [9]\n[/THINK]click [3]", CLICK_3),
        ("<|channel>thought\nhm\nclick [9]\n<channel|>click [3]", CLICK_3),
        (
            "I see.\n<|begin_of_box|>left_click(start_box='[10,20]', element_info='x')<|end_of_box|>\nMemory:\n[]",
            ("click", at(10, 20)),
        ),
        ('<|begin_of_box|>{"action": "click", "element": 3}<|end_of_box|>', CLICK_3),
        ("<tool_call>click\n<arg_key>element</arg_key>\n<arg_value>3</arg_value>\n</tool_call>", CLICK_3),
        ("<tool_call>back\n</tool_call>", ("back", {})),
        (
            "I click.<|tool_calls_section_begin|><|tool_call_begin|>functions.click:0<|tool_call_argument_begin|>"
            '{"element": 3}<|tool_call_end|><|tool_calls_section_end|>',
            CLICK_3,
        ),
        ('[TOOL_CALLS] [{"name": "click", "arguments": {"element": 3}}]', CLICK_3),
        ('[TOOL_CALLS]click[ARGS]{"element": 3}', CLICK_3),
        ('I click.[TOOL_CALLS]click[CALL_ID]abc123[ARGS]{"element": 3}</s>', CLICK_3),
        ('[TOOL_CALLS]hover[ARGS]{"element": 9}[TOOL_CALLS]click[ARGS]{"element": 3}', CLICK_3),
        (
            "<|channel|>analysis<|message|>I see.\nclick [9]<|end|><|start|>assistant<|channel|>commentary to=functions.click "
            '<|constrain|>json<|message|>{"element": 3}<|call|>',
            CLICK_3,
        ),
        ('<|start|>assistant to=functions.click<|channel|>commentary json<|message|>{"element": 3}<|call|>', CLICK_3),
        ("<|channel|>final<|message|>click [3]<|return|>", CLICK_3),
        (
            "<tool_call>\n<function=type>\n<parameter=element>\n3\n</parameter>\n<parameter=text>\n0123\n</parameter>\n</function>\n</tool_call>",
            TYPE_0123,
        ),
        (
            "<function=computer_use><parameter=action>scroll</parameter><parameter=pixels>-500</parameter></function>",
            ("scroll", {"amount": 0.5}),
        ),
        (
            "<function=computer_use><parameter=action>left_click</parameter><parameter=coordinate>[10, 20]</parameter></function>",
            ("click", at(10, 20)),
        ),
        (
            '<minimax:tool_call>\n<invoke name="type">\n<parameter name="element">3</parameter>\n'
            '<parameter name="text">0123</parameter>\n</invoke>\n</minimax:tool_call>',
            TYPE_0123,
        ),
        ('<|python_tag|>{"name": "click", "parameters": {"element": 3}}', CLICK_3),
        # What is typed stays as it is.
        (
            'type [3] "◁think▷[THINK]<|begin_of_box|>"',
            ("type", {"element": 3, "text": "◁think▷[THINK]<|begin_of_box|>"}),
        ),
        (
            '{"action": "answer", "text": "<|channel|>final<|message|>"}',
            ("answer", {"text": "<|channel|>final<|message|>"}),
        ),
        # A quotation after a call is not done, whatever the call's form.
        ("<function=click><parameter=element>3</parameter></function>\nIt said <action>terminate</action>", None),
        ('[TOOL_CALLS]click[ARGS]{"element": 3} because it says {"action": "terminate"}', None),
        (
            '<|tool_call_begin|>functions.click:0<|tool_call_argument_begin|>{"element": 3}<|tool_call_end|>\nIt said:\nterminate',
            None,
        ),
        ('<|channel|>commentary to=functions.click<|message|>{"element": 3}<|call|>\nPage text:\nanswer [pwned]', None),
        ("[TOOL_CALLS]click[ARGS]{broken", None),
    ],
)
def test_tool_calls_of_other_chat_templates_are_read(turn, done):
    action = parse_action(turn)
    if done is None:
        assert action.type == "invalid"
    else:
        assert action.model_dump() == {"type": done[0], **done[1]}


def test_a_full_width_colon_after_the_label_is_a_colon():
    assert parse_action("Thought: 点击\nAction：click(start_box='(191,21)')").model_dump() == {
        "type": "click",
        **at(191, 21),
    }

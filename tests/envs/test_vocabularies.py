"""Every action of the vocabularies that models are trained on, as their own documents write it, to
ours. Each row names its source.

Sources: WA = WebArena's id-based actions (agent/prompts, browser_env/actions.py); BG = BrowserGym's
high-level action set (core/action/functions.py); WG = WebGym's two tools
(models/qwen/conversation_builder.py); UT = UI-TARS (README_v1.md, ui_tars/prompt.py); QW =
Qwen-VL's ``computer_use``; GE = Gemini's computer use; GL = GLM-4.5V's actions; KI = Kimi's and
OpenCUA's pyautogui; BU = browser-use's lists; CU = OpenAI's computer calls; AN = Anthropic's
computer tool of 2025-01-24.
"""

from __future__ import annotations

import json

import pytest

from envs.actions.parsing import parse, parse_action
from envs.types import ErrorCode


def tool(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def qwen(**arguments: object) -> str:
    return tool("computer_use", **arguments)


def anthropic(**arguments: object) -> str:
    return tool("computer", **arguments)


def marks(**arguments: object) -> str:
    return tool("web_interaction", **arguments)


def bu(*actions: dict[str, object]) -> str:
    return json.dumps({"thinking": "hm", "memory": "none", "next_goal": "go on", "action": actions})


def at(x: float, y: float) -> dict[str, object]:
    return {"at": (x, y)}


RIGHT, MIDDLE = {"button": "right"}, {"button": "middle"}
UNKNOWN = ErrorCode.UNKNOWN_ACTION

ROWS: list[tuple[str, str, str | ErrorCode, dict[str, object]]] = [
    # source, as it is written, our action, its arguments
    ("WA", "click [1582]", "click", {"element": 1582}),
    ("WA", "click[5]", "click", {"element": 5}),
    ("WA", "Click [5]", "click", {"element": 5}),
    ("WA", "hover [7]", "hover", {"element": 7}),
    ("WA", "type [7] [Carnegie Mellon] [1]", "type", {"element": 7, "text": "Carnegie Mellon", "enter": True}),
    ("WA", "type [7] [a]", "type", {"element": 7, "text": "a", "enter": True}),
    ("WA", 'type [7] [say "hi" [2]] [0]', "type", {"element": 7, "text": 'say "hi" [2]'}),
    ("WA", "press [Ctrl+v]", "press", {"key": "Ctrl+v"}),
    ("WA", "scroll [down]", "scroll", {}),
    ("WA", "scroll [direction=up]", "scroll", {"direction": "up"}),
    ("WA", "scroll up", "scroll", {"direction": "up"}),
    ("WA", "new_tab", "new_tab", {}),
    ("WA", "tab_focus [0]", "switch_tab", {"tab": 1}),
    ("WA", "page_focus [2]", "switch_tab", {"tab": 3}),
    ("WA", "close_tab", "close_tab", {}),
    ("WA", "page_close", "close_tab", {}),
    ("WA", "goto [http://127.0.0.1/?a=[1]]", "goto", {"url": "http://127.0.0.1/?a=[1]"}),
    ("WA", "go_back", "back", {}),
    ("WA", "go_forward", "forward", {}),
    ("WA", "stop [15213]", "answer", {"text": "15213"}),
    ("WA", "Stop [N/A]", "answer", {"text": "N/A"}),
    ("WA", 'stop [The "Big" One]', "answer", {"text": 'The "Big" One'}),
    (
        "WA",
        "In summary, the next action I will perform is ```stop [902101234567]```",
        "answer",
        {"text": "902101234567"},
    ),
    ("ours", "answer [15213]", "answer", {"text": "15213"}),
    ("ours", "switch_tab [2]", "switch_tab", {"tab": 2}),
    ("ours", "close_tab [2]", "close_tab", {"tab": 2}),
    ("ours", "Answer(15213)", "answer", {"text": "15213"}),
    ("ours", "answer(02139)", "answer", {"text": "02139"}),
    ("ours", "type(3, 15213)", "type", {"element": 3, "text": "15213"}),
    ("ours", '{"action": "answer", "text": 902101234567}', "answer", {"text": "902101234567"}),
    ("BG", "noop()", "wait", {}),
    ("BG", "noop(50)", "wait", {"seconds": 0.05}),
    ("BG", "noop(wait_ms=2000)", "wait", {"seconds": 2.0}),
    ("BG", "noop(0)", "wait", {"seconds": 0.001}),
    ("BG", "send_msg_to_user('It is 3.')", "answer", {"text": "It is 3."}),
    ("BG", "report_infeasible('no such page')", "terminate", {"status": "failure"}),
    ("BG", "scroll(0, 200)", "scroll", {"amount": 0.2}),
    ("BG", "scroll(-50.2, -100.5)", ErrorCode.BAD_ACTION, {}),  # a wheel turns one way
    ("BG", "scroll(0, -100.5)", "scroll", {"direction": "up", "amount": 0.1005}),
    ("BG", "fill('12', 'It's here')", "type", {"element": 12, "text": "It's here"}),
    ("BG", "fill('12', 'It's here', True)", "type", {"element": 12, "text": "It's here"}),
    ("BG", "fill('12', 'the boys', he said')", "type", {"element": 12, "text": "the boys', he said"}),
    ("BG", "send_msg_to_user('The answer isn't there')", "answer", {"text": "The answer isn't there"}),
    ("BG", "fill(bid='12', value='it's', note='x')", ErrorCode.INVALID_ACTION, {}),  # may be two arguments
    ("BG", "scroll(300, 0)", "scroll", {"direction": "right", "amount": 0.3}),
    ("BG", "scroll_at(50, 100, 0, -50)", "scroll", {**at(50, 100), "direction": "up", "amount": 0.05}),
    ("BG", "fill('237', 'example value')", "type", {"element": 237, "text": "example value"}),
    ("BG", "fill('a12', 'x', True)", "type", {"element": "a12", "text": "x"}),
    ("BG", "fill('a12', 'x', enable_autocomplete_menu=True)", "type", {"element": "a12", "text": "x"}),
    ("BG", "check('55')", "check", {"element": 55}),
    ("BG", "uncheck('55')", "check", {"element": 55, "on": False}),
    ("BG", "select_option('a48', 'blue')", "select", {"element": "a48", "text": "blue"}),
    ("BG", "select_option('c48', ['red', 'green'])", "select", {"element": "c48", "text": "red", "also": ("green",)}),
    ("BG", "click('51')", "click", {"element": 51}),
    ("BG", "click('b22', button='right')", "click", {"element": "b22", **RIGHT}),
    (
        "BG",
        "click('48', button='middle', modifiers=['Shift'])",
        "click",
        {"element": 48, **MIDDLE, "modifiers": ("Shift",)},
    ),
    ("BG", "click('48', 'left', ['ControlOrMeta', 'Alt'])", "click", {"element": 48, "modifiers": ("Control", "Alt")}),
    ("BG", "click('48', modifiers=[])", "click", {"element": 48}),
    ("BG", "dblclick('12')", "double_click", {"element": 12}),
    (
        "BG",
        "dblclick('178', button='middle', modifiers=['Shift'])",
        "double_click",
        {"element": 178, **MIDDLE, "modifiers": ("Shift",)},
    ),
    ("BG", "hover('b8')", "hover", {"element": "b8"}),
    ("BG", "press('88', 'Backspace')", "press", {"element": 88, "key": "Backspace"}),
    ("BG", "press('a26', 'ControlOrMeta+a')", "press", {"element": "a26", "key": "ControlOrMeta+a"}),
    ("BG", "clear('996')", "clear", {"element": 996}),
    ("BG", "drag_and_drop('56', '498')", "drag", {"start": {"element": 56}, "end": {"element": 498}}),
    ("BG", "drag_and_drop(from_bid='a5', to_bid='b6')", "drag", {"start": {"element": "a5"}, "end": {"element": "b6"}}),
    ("BG", "mouse_move(65.2, 158.5)", "hover", at(65.2, 158.5)),
    ("BG", "mouse_click(887.2, 68)", "click", at(887.2, 68)),
    ("BG", "mouse_click(56, 712.56, 'right')", "click", {**at(56, 712.56), **RIGHT}),
    ("BG", "mouse_dblclick(5, 236)", "double_click", at(5, 236)),
    ("BG", "mouse_drag_and_drop(10.7, 325, 235.6, 24.54)", "drag", {"start": at(10.7, 325), "end": at(235.6, 24.54)}),
    (
        "BG",
        "mouse_upload_file(132.1, 547, 'my_receipt.pdf')",
        "upload",
        {**at(132.1, 547), "files": ("my_receipt.pdf",)},
    ),
    ("BG", "keyboard_press('ControlOrMeta+a')", "press", {"key": "ControlOrMeta+a"}),
    ("BG", "keyboard_type('Hello world!')", "type", {"text": "Hello world!", "clear": False}),
    ("BG", "keyboard_insert_text('Hello')", "type", {"text": "Hello", "clear": False}),
    ("BG", "goto('http://127.0.0.1/')", "goto", {"url": "http://127.0.0.1/"}),
    ("BG", "go_back()", "back", {}),
    ("BG", "go_forward()", "forward", {}),
    ("BG", "new_tab()", "new_tab", {}),
    ("BG", "tab_close()", "close_tab", {}),
    ("BG", "tab_focus(1)", "switch_tab", {"tab": 2}),
    ("BG", "tab_focus(index=0)", "switch_tab", {"tab": 1}),
    ("BG", tool("tab_focus", index="2"), "switch_tab", {"tab": 3}),
    ("BG", "upload_file('572', 'my_receipt.pdf')", "upload", {"element": 572, "files": ("my_receipt.pdf",)}),
    ("BG", "upload_file('63', ['a.jpg', \"b.zip\"])", "upload", {"element": 63, "files": ("a.jpg", "b.zip")}),
    ("BG", "mouse_down(1, 2)", UNKNOWN, {}),
    ("BG", "keyboard_up('Shift')", UNKNOWN, {}),
    ("BG", "focus('b455')", UNKNOWN, {}),
    ("WG", marks(action="click", element_id="12"), "click", {"mark": 12}),
    ("WG", marks(action="type", element_id="3", text="shoes"), "type", {"mark": 3, "text": "shoes", "enter": True}),
    ("WG", marks(action="hover", element_id="4"), "hover", {"mark": 4}),
    ("WG", marks(action="scroll", direction="down"), "scroll", {}),
    ("WG", marks(action="wait", time=2), "wait", {"seconds": 2}),
    ("WG", marks(action="go_back"), "back", {}),
    ("WG", marks(action="navigate", url="https://example.test"), "goto", {"url": "https://example.test"}),
    ("WG", marks(action="answer", text="42"), "answer", {"text": "42"}),
    ("WG", qwen(action="navigate", url="https://example.test"), "goto", {"url": "https://example.test"}),
    ("WG", qwen(action="scroll", direction="up", coordinate=[500, 500]), "scroll", {**at(500, 500), "direction": "up"}),
    ("UT", "click(start_box='(197,525)')", "click", at(197, 525)),
    ("UT", "click(start_box='<|box_start|>(197,525)<|box_end|>')", "click", at(197, 525)),
    ("UT", "click(start_box='[100, 200, 300, 400]')", "click", at(200, 300)),
    ("UT", "click(start_box=[100, 200, 300, 400])", "click", at(200, 300)),
    ("UT", "click(point='<point>197 525</point>')", "click", at(197, 525)),
    ("UT", "click(start_box='<bbox>637 964 637 964</bbox>')", "click", at(637, 964)),
    ("UT", "left_double(start_box='(1,2)')", "double_click", at(1, 2)),
    ("UT", "right_single(point='<point>1 2</point>')", "click", {**at(1, 2), **RIGHT}),
    ("UT", "drag(start_box='(1,2)', end_box='(3,4)')", "drag", {"start": at(1, 2), "end": at(3, 4)}),
    (
        "UT",
        "drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')",
        "drag",
        {"start": at(1, 2), "end": at(3, 4)},
    ),
    ("UT", "hotkey(key='ctrl c')", "press", {"key": "ctrl+c"}),
    ("UT", "hotkey(key='ctrl shift esc')", "press", {"key": "ctrl+shift+esc"}),
    ("UT", "hotkey(key='enter')", "press", {"key": "enter"}),
    # A line break at the end submits; as in UI-TARS's own reader it stays in the text, and Enter is
    # pressed once.
    ("UT", "type(content='it\\'s\\n')", "type", {"text": "it's\n", "clear": False, "enter": True}),
    ("UT", "type(content='It's here\\n')", "type", {"text": "It's here\n", "clear": False, "enter": True}),
    ("UT", "type(content='a\\nb')", "type", {"text": "a\nb", "clear": False}),
    ("UT", "type(content='What's new')", "type", {"text": "What's new", "clear": False}),
    ("UT", "type(content='rock 'n' roll')", "type", {"text": "rock 'n' roll", "clear": False}),
    ("UT", 'type(content="size 15" wide")', "type", {"text": 'size 15" wide', "clear": False}),
    ("UT", "finished(content='It's done')", "answer", {"text": "It's done"}),
    ("UT", "type(content='a') and then click('b')", ErrorCode.BAD_ACTION, {}),
    ("UT", "click（start_box='（191，21）'）", "click", at(191, 21)),
    ("UT", "click(start_box=‘(191,21)’)", "click", at(191, 21)),
    ("UT", "type（content=“你好，世界（一）”）", "type", {"text": "你好，世界（一）", "clear": False}),
    ("UT", "type(content='你好，世界（一）：“二”')", "type", {"text": "你好，世界（一）：“二”", "clear": False}),
    ("UT", "click(start_box='[0.5, 0.3, 0.7, 0.5]')", "click", at(600, 400)),
    ("UT", "click(start_box='(0.25,0.5)')", "click", at(250, 500)),
    ("UT", "drag(start_box='(0.25,0.5)', end_box='(1,0.5)')", "drag", {"start": at(250, 500), "end": at(1000, 500)}),
    ("other", '{"action": "click", "position": [0.49, 0.42]}', "click", at(490, 420)),
    ("other", '{"action": "click", "x": 0.5, "y": 0}', "click", at(500, 0)),
    (
        "other",
        '{"action": "click", "coordinate": [1, 1]}',
        "click",
        at(1, 1),
    ),  # thousandths: nothing is between 0 and 1
    ("other", '{"action": "click", "coordinate": [0.5, 300]}', "click", at(0.5, 300)),
    ("other", "Click [257, 144]", "click", at(257, 144)),
    ("other", "hover [257,144]", "hover", at(257, 144)),
    ("other", "Click [1257, 144]", ErrorCode.BAD_ACTION, {}),
    ("other", "click【3】", "click", {"element": 3}),
    ("GE", "click_at(x=371, y=470)", "click", at(371, 470)),
    ("GE", '{"functionCall": {"name": "hover_at", "args": {"x": 1, "y": 2}}}', "hover", at(1, 2)),
    (
        "GE",
        '{"name": "type_text_at", "args": {"x": 371, "y": 470, "text": "hi"}}',
        "type",
        {**at(371, 470), "text": "hi", "enter": True},
    ),
    (
        "GE",
        'type_text_at(x=1, y=2, text="hi", press_enter=False, clear_before_typing=False)',
        "type",
        {**at(1, 2), "text": "hi", "clear": False},
    ),
    ("GE", 'key_combination(keys="control+a")', "press", {"key": "control+a"}),
    ("GE", "scroll_document(direction='up')", "scroll", {"direction": "up"}),
    ("GE", 'scroll_at(x=1, y=2, direction="down", magnitude=500)', "scroll", {**at(1, 2), "amount": 0.5}),
    (
        "GE",
        "drag_and_drop(x=1, y=2, destination_x=3, destination_y=4)",
        "drag",
        {"start": at(1, 2), "end": at(3, 4)},
    ),
    ("GE", "wait_5_seconds()", "wait", {"seconds": 5}),
    ("GE", '{"name": "open_web_browser", "args": {}}', "wait", {"seconds": 0.1}),
    (
        "GE",
        '{"name": "click_at", "args": {"x": 1, "y": 2, "safety_decision": {"decision": "regular"}}}',
        "click",
        at(1, 2),
    ),
    ("GE", "search()", UNKNOWN, {}),
    ("GL", "left_click(start_box='[10,20]', element_info='the button')", "click", at(10, 20)),
    ("GL", "left_double_click(start_box='[10,20]')", "double_click", at(10, 20)),
    ("GL", "left_drag(start_box='[1,2]', end_box='[3,4]')", "drag", {"start": at(1, 2), "end": at(3, 4)}),
    ("GL", "key(keys='ctrl a')", "press", {"key": "ctrl+a"}),
    (
        "GL",
        "scroll(start_box='[1,2]', direction='up', step=5)",
        "scroll",
        {**at(1, 2), "direction": "up", "amount": 0.5},
    ),
    ("GL", "WAIT()", "wait", {}),
    ("GL", "DONE()", "terminate", {}),
    ("GL", "FAIL()", "terminate", {"status": "failure"}),
    ("KI", "pyautogui.click(x=0.5, y=0.25)", "click", at(500, 250)),
    ("KI", "pyautogui.rightClick(0.5, 0.25)", "click", {**at(500, 250), **RIGHT}),
    ("KI", "pyautogui.moveTo(0.5, 0.25, duration=0.2)", "hover", at(500, 250)),
    ("KI", "pyautogui.click(512, 300)", ErrorCode.BAD_ACTION, {}),  # pixels of a picture of unknown size
    ("KI", "pyautogui.click()", ErrorCode.BAD_ACTION, {}),
    ("KI", "pyautogui.dragTo(0.5, 0.5)", UNKNOWN, {}),
    ("KI", "pyautogui.write(message='it's', interval=0.01)", "type", {"text": "it's", "clear": False}),
    ("KI", "pyautogui.hotkey('ctrl', 'c')", "press", {"key": "ctrl+c"}),
    ("KI", "pyautogui.hotkey(['ctrl', 'c'])", "press", {"key": "ctrl+c"}),
    ("KI", "pyautogui.press('enter')", "press", {"key": "enter"}),
    ("KI", "pyautogui.press(['a', 'b'])", ErrorCode.BAD_ACTION, {}),
    ("KI", "pyautogui.scroll(-5)", "scroll", {"amount": 0.5}),
    ("KI", "pyautogui.scroll(5)", "scroll", {"direction": "up", "amount": 0.5}),
    ("KI", "computer.terminate(status='success')", "terminate", {}),
    ("BU", bu({"click_element_by_index": {"index": 3}}), "click", {"element": 3}),
    ("BU", bu({"click": {"index": 3}}), "click", {"element": 3}),
    ("BU", bu({"input": {"index": 3, "text": "x", "clear": True}}), "type", {"element": 3, "text": "x"}),
    ("BU", bu({"input_text": {"index": 3, "text": "x"}}), "type", {"element": 3, "text": "x"}),
    ("BU", bu({"go_to_url": {"url": "/x", "new_tab": False}}), "goto", {"url": "/x"}),
    ("BU", bu({"navigate": {"url": "http://a.test/", "new_tab": True}}), "new_tab", {"url": "http://a.test/"}),
    ("BU", bu({"go_back": {}}), "back", {}),
    ("BU", bu({"scroll": {"down": True, "pages": 1.5}}), "scroll", {"amount": 1.5}),
    (
        "BU",
        bu({"scroll": {"down": False, "num_pages": 0.5, "index": 4}}),
        "scroll",
        {"element": 4, "direction": "up", "amount": 0.5},
    ),
    ("BU", bu({"scroll_up": {}}), "scroll", {"direction": "up"}),
    ("BU", bu({"send_keys": {"keys": "Enter"}}), "press", {"key": "Enter"}),
    ("BU", bu({"select_dropdown": {"index": 3, "text": "L"}}), "select", {"element": 3, "text": "L"}),
    ("BU", bu({"wait": {"seconds": 3}}), "wait", {"seconds": 3}),
    ("BU", bu({"done": {"text": "42", "success": True}}), "answer", {"text": "42"}),
    ("BU", bu({"switch": {"tab_id": "a1b2"}}), ErrorCode.BAD_ACTION, {}),
    ("BU", bu({"extract": {"query": "prices"}}), UNKNOWN, {}),
    (
        "BU",
        bu({"input": {"index": 1, "text": "x"}}, {"click": {"index": 3}}),
        ErrorCode.BAD_ACTION,
        {},
    ),  # both are meant
    ("BU", '{"click": {"index": 3}}', "click", {"element": 3}),
    (
        "AN",
        '{"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": "left_click", "coordinate": [10, 20]}}',
        "click",
        at(10, 20),
    ),
    ("AN", '{"action": "left_click", "coordinate": [10, 20]}', "click", at(10, 20)),
    ("AN", '{"action": "left_click", "coordinate": [1310, 20]}', ErrorCode.BAD_ACTION, {}),
    (
        "AN",
        '[{"type": "text", "text": "I save."}, {"type": "tool_use", "id": "t", "name": "computer", "input": {"action": "key", "text": "ctrl+s"}}]',
        "press",
        {"key": "ctrl+s"},
    ),
    ("UT", "scroll(start_box='(5,6)', direction='up')", "scroll", {**at(5, 6), "direction": "up"}),
    ("UT", "scroll(point='<point>5 6</point>', direction='Right')", "scroll", {**at(5, 6), "direction": "right"}),
    ("UT", "wait()", "wait", {}),
    ("UT", "finished(content='done')", "answer", {"text": "done"}),
    ("UT", "finished()", "answer", {"text": ""}),
    ("UT", "Finished( )", "answer", {"text": ""}),
    ("UT", tool("finished"), "answer", {"text": ""}),
    ("UT", "finished(content=None)", "answer", {"text": ""}),
    ("WA", "stop []", "answer", {"text": ""}),
    ("ours", "answer()", ErrorCode.BAD_ACTION, {}),
    (
        "CU",
        '{"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 300, "keys": ["SHIFT"]}',
        ErrorCode.BAD_ACTION,
        {},
    ),
    ("QW", qwen(action="wait", time=2, text=None, coordinate=None), "wait", {"seconds": 2}),
    ("QW", qwen(action="mouse_move", coordinate=[1, 2], pixels=None, text=None), "hover", at(1, 2)),
    (
        "AN",
        anthropic(action="scroll", coordinate=[1, 2], scroll_direction="up", scroll_amount=5, text=None),
        "scroll",
        {**at(1, 2), "direction": "up", "amount": 0.5},
    ),
    ("BG", "scroll(0, 200, None)", ErrorCode.BAD_ACTION, {}),
    ("QW", qwen(action="key", keys=["ctrl", "a"]), "press", {"key": "ctrl+a"}),
    ("QW", qwen(action="type", text="hi"), "type", {"text": "hi", "clear": False}),
    ("QW", qwen(action="mouse_move", coordinate=[1, 2]), "hover", at(1, 2)),
    ("QW", qwen(action="left_click", coordinate=[1, 2]), "click", at(1, 2)),
    ("QW", qwen(action="right_click", coordinate=[1, 2]), "click", {**at(1, 2), **RIGHT}),
    ("QW", qwen(action="middle_click", coordinate=[1, 2]), "click", {**at(1, 2), **MIDDLE}),
    ("QW", qwen(action="double_click", coordinate=[1, 2]), "double_click", at(1, 2)),
    ("QW", qwen(action="triple_click", coordinate=[1, 2]), "triple_click", at(1, 2)),
    ("QW", qwen(action="scroll", pixels=-500), "scroll", {"amount": 0.5}),
    ("QW", qwen(action="scroll", pixels=500), "scroll", {"direction": "up", "amount": 0.5}),
    ("QW", qwen(action="hscroll", pixels=-500), "scroll", {"direction": "right", "amount": 0.5}),
    ("QW", qwen(action="wait", time=2), "wait", {"seconds": 2}),
    ("QW", qwen(action="terminate", status="failure"), "terminate", {"status": "failure"}),
    ("QW", qwen(action="answer", text="42"), "answer", {"text": "42"}),
    ("CU", '{"type": "click", "button": "left", "x": 1, "y": 2}', "click", at(1, 2)),
    ("CU", '{"type": "click", "button": "right", "x": 1, "y": 2, "keys": null}', "click", {**at(1, 2), **RIGHT}),
    ("CU", '{"type": "click", "button": "wheel", "x": 1, "y": 2}', "click", {**at(1, 2), **MIDDLE}),
    ("CU", '{"type": "click", "button": "back", "x": 1, "y": 2}', "back", {}),
    (
        "CU",
        '{"type": "click", "button": "left", "x": 1, "y": 2, "keys": ["SHIFT"]}',
        "click",
        {**at(1, 2), "modifiers": ("Shift",)},
    ),
    ("CU", '{"type": "double_click", "x": 1, "y": 2}', "double_click", at(1, 2)),
    ("CU", '{"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 300}', "scroll", {**at(1, 2), "amount": 0.3}),
    ("CU", '{"type": "type", "text": "hi"}', "type", {"text": "hi", "clear": False}),
    ("CU", '{"type": "wait"}', "wait", {}),
    ("CU", '{"type": "move", "x": 1, "y": 2}', "hover", at(1, 2)),
    ("CU", '{"type": "keypress", "keys": ["CTRL", "A"]}', "press", {"key": "CTRL+A"}),
    (
        "CU",
        '{"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}, {"x": 5, "y": 6}]}',
        "drag",
        {"start": at(1, 2), "via": ((3, 4),), "end": at(5, 6)},
    ),
    ("CU", '{"type": "screenshot"}', "wait", {"seconds": 0.1}),
    (
        "CU",
        '{"type": "computer_call", "action": {"type": "click", "button": "left", "x": 1, "y": 2}}',
        "click",
        at(1, 2),
    ),
    ("AN", anthropic(action="key", text="ctrl+s"), "press", {"key": "ctrl+s"}),
    (
        "AN",
        anthropic(action="left_click", coordinate=[1, 2], text="ctrl+shift"),
        "click",
        {**at(1, 2), "modifiers": ("Control", "Shift")},
    ),
    (
        "AN",
        anthropic(action="left_click_drag", start_coordinate=[1, 2], coordinate=[3, 4]),
        "drag",
        {"start": at(1, 2), "end": at(3, 4)},
    ),
    (
        "AN",
        anthropic(action="scroll", coordinate=[1, 2], scroll_direction="left", scroll_amount=5),
        "scroll",
        {**at(1, 2), "direction": "left", "amount": 0.5},
    ),
    ("AN", anthropic(action="wait", duration=3), "wait", {"seconds": 3}),
    ("AN", anthropic(action="triple_click", coordinate=[1, 2]), "triple_click", at(1, 2)),
    ("AN", anthropic(action="hold_key", text="shift", duration=1), UNKNOWN, {}),
    ("AN", anthropic(action="left_mouse_down"), UNKNOWN, {}),
    ("other", '{"action": "rightClick", "element": 3}', "click", {"element": 3, **RIGHT}),
    ("other", '{"action": "doubleClick", "element": 3}', "double_click", {"element": 3}),
    ("other", '{"action": "goBack"}', "back", {}),
]


@pytest.mark.parametrize(
    ("source", "written", "ours", "arguments"), ROWS, ids=[f"{row[0]}: {row[1][:70]}" for row in ROWS]
)
def test_each_row_is_read(source, written, ours, arguments):
    action = parse_action(written)
    if isinstance(ours, ErrorCode):
        assert action.type == "invalid" and action.code == ours
    else:
        assert action.model_dump() == {"type": ours, **arguments}
        assert parse(f"Thought: I see.\nAction: {written}").action == action or written.startswith("In summary")


NULLS = (
    '{"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 300}',
    '{"type": "move", "x": 1, "y": 2}',
    '{"type": "click", "x": 1, "y": 2, "button": "right"}',
    '{"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}',
    '{"type": "type", "text": "a"}',
    '{"type": "wait"}',
    '{"type": "screenshot"}',
    '{"action": "click", "element": 3}',
)


@pytest.mark.parametrize("written", NULLS)
@pytest.mark.parametrize("key", ["keys", "modifiers", "coordinate", "element_id", "text", "name", "of_tomorrow"])
def test_an_argument_that_is_null_says_nothing(written, key):
    """OpenAI's calls have ``"keys": null`` where no key is held; schemas of tools have null for
    what is left out."""
    plain = json.loads(written)
    for action in (plain, {key: None} | plain, plain | {"keys": []}):
        action = {key: None} | action
        assert parse_action(json.dumps(action)) == parse_action(written)
        assert parse_action(written).type != "invalid"


@pytest.mark.parametrize("length", ["pixels", "delta_y", "dy", "scroll_y", "delta_x", "scroll_amount", "clicks"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("direction", ["up", "down", "left", "right", "Down"])
@pytest.mark.parametrize("name", ["scroll", "hscroll"])
def test_a_direction_that_is_given_holds_whatever_the_sign_of_the_length(name, direction, sign, length):
    read = parse_action(json.dumps({"action": name, "direction": direction, length: sign * 5}))
    assert read.direction == direction.lower()
    assert read.amount == pytest.approx(0.5 if length in ("scroll_amount", "clicks") else 0.005)


def test_of_two_lengths_the_one_along_the_direction_counts():
    read = parse_action('{"action": "scroll", "direction": "left", "delta_x": 300, "delta_y": 900}')
    assert (read.direction, read.amount) == ("left", 0.3)
    assert parse_action('{"action": "scroll", "delta_x": -300, "delta_y": 200}').type == "invalid"

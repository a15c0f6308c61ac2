"""A model turn's text to an action, and back. Reading never raises: what cannot be read is an ``Invalid`` action with a code and a reason.

What precedes the last ``</think>`` is not read, nor is white space around the action. The forms, in the order in which they are tried; how a
turn was read is part of the result, so that each can be counted:

=============== ==================================================== ==========================================================
form            looks like                                           kind
=============== ==================================================== ==========================================================
brackets        ``click [3]``, ``type [1] "text"``, ``scroll [down]`` strict: the tiny policy's form, after WebArena's
webarena        ``type [1] [text] [1]``                              fallback: WebArena's own form where it differs
json            ``{"action": "click", "element": 3}``                strict
tool_call       ``<tool_call>{"name": …, "arguments": …}</tool_call>`` strict: Hermes and Qwen; text before it is not read
first_tool_call the same, several times                              fallback: only the first one is read
call            ``click(3)``, ``type(1, "text")``                    fallback
tag             ``<action>…</action>``, the last one                 fallback: any of brackets, json and call inside
fence           a code block, the last one                           fallback: the same
prose           the last JSON object in a text                       fallback
last_line       ``Action: click [3]`` at the end of a text           fallback: brackets or call
none            nothing of the above                                 the action is ``Invalid``
=============== ==================================================== ==========================================================

Names and arguments of other schemes (computer use: ``left_click``, ``coordinate``; WEBSERV: ``target``, ``key_press``) are translated by
`vocabulary`; which were is in the result as well.
"""

from training.policy.parsing.forms import STRICT, Form, Parsed, parse, parse_action
from training.policy.parsing.writing import format_action

__all__ = ["STRICT", "Form", "Parsed", "format_action", "parse", "parse_action"]

"""Reads the action of a model turn's text, and writes one.

Reading never raises: a text that cannot be read is an ``Invalid`` action with a reason.

**The part that is read.** A turn thinks first and acts last, in every format. So the action is the
piece that *ends* the turn: a line, a JSON value, or the content of a tag or fence that closes
there. Of several actions (lines, tool calls, items of a JSON list) the last one is done.

Quotations before it are not read, since a page can say anything: neither in a thought, nor in a
code block, nor in a JSON string. After the action may stand lines such as ``Memory: …`` and
``Observation: …``, which are not read either. A plain remark (``Done.``) may follow if the action
is labelled (``Action: …``) or enclosed on lines of its own.

A broken action at the end makes the turn ``Invalid``; nothing is taken in its place. So does
another whole action before it, with words between (`pieces`): one of the two is quoted, or invented
with the turn that it stands in. An action in a sentence differs from a quotation only if a tag or
fence encloses it after plain words. JSON in a sentence (``So I say {…}.``), and an action after a
colon, a quotation mark or a word such as ``says``, cannot be told from one. There the last action
of the turn is done.

**The forms.** The result says in which form a turn was read, so that each form can be counted:

=============== ==================================================== ==========================================================
form            looks like                                           kind
=============== ==================================================== ==========================================================
brackets        ``click [3]``, ``type [1] "text"``, ``scroll [down]`` strict: the tiny policy's form, after WebArena's
webarena        ``type [1] [text] [1]``                              fallback: WebArena's own form where it differs
json            ``{"action": "click", "element": 3}``                strict
tool_call       ``<tool_call>{"name": …, "arguments": …}</tool_call>`` strict: Hermes and Qwen; text before it is not read
last_tool_call  the same, where the turn has several                 fallback: the last one is read
call            ``click(3)``, ``type(1, "text")``                    fallback
tag             ``<action>…</action>`` at the end                    fallback: any of brackets, json and call inside
fence           a code block at the end                              fallback: the same
prose           a JSON object or list at the end of a text           fallback
last_line       ``Action: click [3]`` at the end of a text           fallback: brackets or call
none            nothing of the above                                 the action is ``Invalid``
=============== ==================================================== ==========================================================

`vocabulary` translates names and arguments of other schemes (computer use: ``left_click``,
``coordinate``; WEBSERV: ``target``, ``key_press``).
"""

from envs.actions.parsing.turn import parse, parse_action
from envs.types.action_text import ActionFormat, format_action

__all__ = ["ActionFormat", "format_action", "parse", "parse_action"]

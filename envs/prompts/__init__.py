"""Words of a policy's prompt: the system turn and the user turn, pure functions of plain types.

Rollouts, training data and the adapters to other frameworks all read them, so that a policy sees
one text everywhere.
"""

from envs.prompts.step_renderer import StepRenderer
from envs.prompts.system_turn import PromptName, call_text, system_text, tool_schemas, tools_text
from envs.prompts.user_turn import MEMORY_BUDGET, ObservationMode, element_line, memory_lines, one_line, user_text

__all__ = [
    "MEMORY_BUDGET",
    "ObservationMode",
    "PromptName",
    "StepRenderer",
    "call_text",
    "element_line",
    "memory_lines",
    "one_line",
    "system_text",
    "tool_schemas",
    "tools_text",
    "user_text",
]

"""Requests to endpoints of OpenAI's API: judge, teacher, rubric writer and batches use them.

`ChatEndpoint` sends a request until an answer can be read: with retries, the pauses that a server
asks for, and without the parameters that it refuses. Each request is counted in a `Budget` before
it is sent; a `Ledger` shares that count between processes. Failures are `CallFailed`. A
`ModelAnswer` is an answer of either API (chat completions, Responses), with tool calls and tokens.
"""

from envs.chat.answers import ModelAnswer, ToolCall, Usage, read_completion, read_response
from envs.chat.endpoint import Attempts, ChatEndpoint
from envs.chat.failures import CallError, CallFailed, check_error, content_text
from envs.chat.ledger import Budget, DamagedLedger, Ledger, SpendingLimits, Spent

__all__ = [
    "Attempts",
    "Budget",
    "CallError",
    "CallFailed",
    "ChatEndpoint",
    "DamagedLedger",
    "Ledger",
    "ModelAnswer",
    "SpendingLimits",
    "Spent",
    "ToolCall",
    "Usage",
    "check_error",
    "content_text",
    "read_completion",
    "read_response",
]

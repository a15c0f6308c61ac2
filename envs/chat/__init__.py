"""Requests to chat-completions endpoints (OpenAI's API): judge, teacher and rubric writer use them.

`ChatEndpoint` sends a request until an answer can be read: with retries, the pauses that a server
asks for, and without the parameters that it refuses. Each request is counted in a `Budget` before
it is sent; a `Ledger` shares that count between processes. Failures are `CallFailed`.
"""

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
    "SpendingLimits",
    "Spent",
    "check_error",
    "content_text",
]

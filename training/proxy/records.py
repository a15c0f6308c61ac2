"""Records of calls: one file for each, written once and atomically under its session.

::

    <root>/sessions/NAME/calls/000000.json    one call
    <root>/blobs/ab/cd/abcdef….jpg            its images, shared by all sessions
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field

from envs.types import AnyPath, FinishReason, Record, StorageError, TokenSpan
from training.ledger.store import RunStore, read_record, write_json_once

CALL_SCHEMA = 1
"""Version of the stored calls; a newer one is refused."""
SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Pattern of a session's name, which is also a folder's."""


class RecordedCall(Record):
    """One call of a model by a foreign agent."""

    schema_version: int = Field(CALL_SCHEMA, ge=1, le=CALL_SCHEMA)
    session: str
    index: int = Field(ge=0)
    """Number of the call in its session, in order of arrival. Calls that failed leave gaps."""
    step: int | None = Field(None, ge=0)
    """Step of the episode that the agent named (``x-rollwright-step``); ``None``: it named none."""
    created: float
    """Seconds since 1970 at the call's arrival."""
    seconds: float
    """Seconds from its arrival to its turn."""
    model: str
    template: str
    """LLaMA-Factory's chat template that encoded the messages."""
    messages: tuple[dict[str, Any], ...]
    """Messages as the agent sent them; an image is ``{"type": "image", "sha256": …}``."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools that the prompt shows."""
    images: tuple[str, ...] = ()
    """Names of the blobs of the prompt's images, in order."""
    temperature: float
    """Sampling temperature; the log-probs are those of the tempered distribution."""
    greedy: bool = False
    """True for a request of temperature 0: the log-probs are those of temperature 1."""
    max_new_tokens: int
    seed: int | None = None
    """Seed that the request named."""
    prompt_ids: tuple[int, ...]
    """Token ids of the prompt, image placeholders expanded."""
    response_ids: tuple[int, ...]
    """Sampled ids, the end-of-turn token included."""
    logprobs: tuple[float, ...]
    """log pi_behaviour of each response id."""
    policy_version: int
    """Oldest version that generated a token of this response."""
    version_spans: tuple[TokenSpan, ...]
    finish_reason: FinishReason
    text: str
    """The whole response."""
    content: str | None
    """Content of the answered message: the text without its tool calls."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Tool calls of the answered message."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of prompt and response."""
        return self.prompt_ids + self.response_ids


class CallStore:
    """Reads and writes the sessions below a folder, which may be a run's."""

    def __init__(self, root: AnyPath) -> None:
        self.run = RunStore(root)
        """Storage of the images, and of joined trajectories."""

    def calls_path(self, session: str) -> Path:
        """Path of the folder of a session's calls."""
        return self.run.root / "sessions" / session / "calls"

    def write(self, record: RecordedCall) -> None:
        """Store a call.

        Raises:
            StorageError: A call of this number is there, so another process writes to the session.
            DiskError: It cannot be written.
        """
        path = self.calls_path(record.session) / f"{record.index:06d}.json"
        if not write_json_once(path, record, sealed=True):
            raise StorageError(f"{path} is there already: another proxy writes to {self.run.root}; give each its own")

    def calls(self, session: str) -> list[RecordedCall]:
        """Return the calls of a session in order; empty if there is none.

        Raises:
            StorageError: A call's file is damaged.
        """
        paths = sorted(self.calls_path(session).glob("[!.]*.json"))
        return [read_record(path, RecordedCall, "recorded call") for path in paths]

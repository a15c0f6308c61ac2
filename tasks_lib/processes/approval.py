"""Pauses a flow run until a person approves it in Prefect's UI."""

from __future__ import annotations

from prefect.exceptions import FlowPauseTimeout
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from prefect.settings import PREFECT_API_URL
from pydantic import Field

from envs.types import ConfigError, RollwrightError

POLL_SECONDS = 5
"""Seconds between two looks for an answer."""


class ApprovalForm(RunInput):
    """Form that a paused flow run shows."""

    approved: bool = Field(description="Go on; unchecked: end the flow run.")
    by: str = Field(min_length=1, max_length=200, description="Your name, which is recorded.")
    reason: str = Field("", max_length=2000, description="What is to be recorded with it.")


class RefusedError(RollwrightError):
    """An approval was refused, or not given in time."""


def check_can_be_approved(key: str) -> None:
    """Check that a person can reach the server of this run, whose pages have the form.

    Raises:
        ConfigError: the run would start a server of its own, which ends with it; names the ``key``.
    """
    if not PREFECT_API_URL.value():
        raise ConfigError(
            f"{key}: a person approves in the UI of a Prefect server, and PREFECT_API_URL names none; start one "
            f"(prefect server start) and set PREFECT_API_URL to its address, or do without the approval"
        )


def ask_approval(question: str, hours: float) -> ApprovalForm:
    """Pause this flow run until a person answers, and return the answer, which is a yes.

    Args:
        question: Sentence on what is to be approved, as Markdown.
        hours: Longest wait.

    Raises:
        RefusedError: the answer is no, or there was none in time.
    """
    form = ApprovalForm.with_initial_data(description=question)
    try:
        answer = pause_flow_run(wait_for_input=form, timeout=max(1, round(hours * 3600)), poll_interval=POLL_SECONDS)
    except FlowPauseTimeout:
        raise RefusedError(
            f"no approval within {hours:g} h: {question}; start the same command again to ask again"
        ) from None
    if not answer.approved:
        reason = f" ({answer.reason})" if answer.reason else ""
        raise RefusedError(f"{answer.by} did not approve{reason}: {question}")
    return answer

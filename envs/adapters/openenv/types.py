"""Messages of a client of the OpenEnv server, and their answers."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.types import Action, Observation, ResetRequest, State, StepRequest
from pydantic import BaseModel, Field, ValidationError

from envs.types import ConfigError, Record

MAX_HORIZON = 1000
"""Maximum number of steps that a client may ask for; an episode is recorded in memory."""


class OpenEnvAction(Action):
    """A step: the text of a model, or an action as a dictionary."""

    action: str | dict[str, Any] = Field(
        description='A model\'s text (click [1]), or a dictionary ({"type": "click", "element": 1}).'
    )


class OpenEnvObservation(Observation):
    """Result of a step. ``reward`` is 0 until the end and ``None`` if the episode abstained."""

    text: str = Field("", description="Page and task, as a text policy reads them.")
    screenshot: str = Field("", description="JPEG of the viewport in base64; empty where none is shown.")
    page: dict[str, Any] = Field(default_factory=dict, description="Elements, address and error of the last action.")
    episode_id: str = Field("", description="Episode that further HTTP requests name.")
    stop: str | None = Field(None, description="Reason why the episode is over.")
    abstained: str | None = Field(None, description="Reason why an ended episode has no reward: do not train on it.")


class OpenEnvState(State):
    """Place of a session in its episode."""

    task: str = ""
    seed: int | None = None
    done: bool = False
    abstained: str | None = None


class ResetOptions(Record):
    """Arguments of a reset."""

    seed: int | None = Field(None, ge=0, strict=True)
    episode_id: str | None = Field(None, min_length=1, max_length=255)
    task: str | None = None
    instruction: str | None = None
    horizon: int | None = Field(None, ge=1, le=MAX_HORIZON, strict=True)
    split: str | None = None
    index: int | None = Field(None, ge=0, strict=True)


class EpisodeReset(ResetRequest):
    """Body of ``POST /reset``; without an ``episode_id`` the answer names one."""

    task: str | None = Field(None, description="Id of the task; the server's default if not given.")


class EpisodeStep(StepRequest):
    """Body of ``POST /step``; a repeated ``request_id`` is answered, not done twice."""

    episode_id: str = Field(max_length=255, description="The same as of the reset.")


class EpisodeClose(BaseModel):
    """Body of ``POST /close``."""

    episode_id: str = Field(max_length=255)


def read_reset(values: dict[str, Any]) -> ResetOptions:
    """Read the arguments of a reset, which OpenEnv does not check on its WebSocket.

    Raises:
        ConfigError: One is unknown or wrong.
    """
    try:
        return ResetOptions.model_validate(values)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']} (got {one['input']!r})" for one in error.errors()]
        known = ", ".join(ResetOptions.model_fields)
        raise ConfigError(f"reset: {'; '.join(lines)}; it takes {known}") from None

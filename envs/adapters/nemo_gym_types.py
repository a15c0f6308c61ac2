"""Configuration, requests and answers of the NeMo-Gym server."""

from __future__ import annotations

from typing import Any, ClassVar

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyResponse,
    ReverifyMode,
)

from envs.prompts import ObservationMode
from envs.types import WebTask


class WebResourcesServerConfig(BaseResourcesServerConfig):
    """Options of the server, as keys of its NeMo-Gym configuration."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED
    mode: ObservationMode = "text"
    max_sessions: int = 64
    lease_seconds: float = 3600.0


class WebSeedRequest(BaseSeedSessionRequest):
    """The fields of a data row that begin an episode."""

    task: str | WebTask
    seed: int | None = None


class WebVerifyResponse(BaseVerifyResponse):
    """The reward of an episode, with our record of it."""

    steps: int = 0
    stop: str | None = None
    trajectory: dict[str, Any] | None = None

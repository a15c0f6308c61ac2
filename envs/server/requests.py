"""Bodies of requests, and the rules for what a client may ask for."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from envs.egress import AllowList
from envs.prompts import ObservationMode
from envs.registry import choose_task
from envs.server.refusals import Refusal
from envs.sites import LiveOptions, is_served
from envs.types import ConfigError, Record, WebTask
from envs.types.extensions import is_reference

MAX_HORIZON = 1000
"""Steps of a client's episode: its record is kept in memory until the next reset."""

MAX_LEASE_SECONDS = 86_400.0
"""Seconds of a lease: a day."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
"""A number that JSON holds exactly."""


class OpenRequest(Record):
    """Body of ``POST /sessions``."""

    task: str | WebTask
    """An id of ``GET /tasks``, an address that the server allows, or a whole task."""
    session_id: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{8,100}$")
    """Id that the client chose, so that it can ask again after a lost answer."""
    seed: Count | None = None
    instruction: str | None = Field(None, max_length=10_000)
    horizon: int | None = Field(None, ge=1, le=MAX_HORIZON)
    date: str | None = Field(None, max_length=100)
    repeats: int | None = Field(None, ge=0, le=MAX_HORIZON)
    stop_on_invalid: bool = False
    mode: ObservationMode = "text"
    """Form of the text and of the screenshots; ``set_of_marks`` draws the elements' numbers."""
    reward: str | None = Field(None, max_length=200)
    """Name of an installed reward function."""
    parser: str | None = Field(None, max_length=200)
    """Name of an installed parser of actions."""
    lease_seconds: float | None = Field(None, gt=0, le=MAX_LEASE_SECONDS, allow_inf_nan=False)


class ResetRequest(Record):
    """Body of ``POST /sessions/{id}/reset``; it may be empty."""

    seed: Count | None = None
    epoch: Count | None = None
    """Epoch that is to begin, from 1."""


class StepRequest(Record):
    """Body of ``POST /sessions/{id}/step``."""

    action: str | dict[str, Any]
    """Text of a model, or an action such as ``{"type": "click", "element": 1}``."""
    epoch: Count | None = None
    step: Count | None = None
    """Number of the step in its epoch, from 1."""


class ClientRules(Record):
    """Rules for what clients may ask for; the operator sets them."""

    allow_code: bool = False
    """Clients may name a site, reward or parser as ``module:function``: the server imports it."""
    reach: tuple[str, ...] = ()
    """Origins that live tasks may be opened on and may reach: ``https://*.example.com``."""
    addresses: dict[str, str] = Field(default_factory=dict)
    """Addresses of live sites by name."""

    def live(self) -> LiveOptions:
        """Return the live sites that sessions may reach.

        Raises:
            ConfigError: An entry is no origin, or leads to a private network.
        """
        AllowList.of(*self.reach, *(origin_of(address) for address in self.addresses.values()))
        named = {urlsplit(origin).netloc: origin for origin in self.reach if "*" not in origin}
        return LiveOptions(addresses={**named, **self.addresses}, reach=self.reach)

    def prepare(self, request: OpenRequest) -> tuple[WebTask, dict[str, Any]]:
        """Return the task and the options of `envs.open_env` that a client asked for.

        Raises:
            Refusal: It may not ask for that.
            TaskError, ConfigError: There is no such task, or an option is wrong.
        """
        names = {"reward": request.reward, "parser": request.parser}
        task = choose_task(
            request.task,
            seed=request.seed,
            instruction=request.instruction,
            horizon=request.horizon,
            date=request.date,
        )
        for what, name in {**names, "site": task.site}.items():
            if name is not None and is_reference(name) and not self.allow_code:
                raise Refusal(403, "code", f"{what} {name!r} is code: this server was not started with --allow-code")
        if task.horizon > MAX_HORIZON:
            raise ConfigError(f"horizon: got {task.horizon}; a session has at most {MAX_HORIZON} steps")
        live = self.live()
        if not is_served(task.site, live.addresses):
            live = self._reachable(request.task, task, live)
        options: dict[str, Any] = {name: value for name, value in names.items() if value is not None}
        if request.repeats is not None:
            options["repeats"] = request.repeats
        return task, {"seed": request.seed, "stop_on_invalid": request.stop_on_invalid, "live": live, **options}

    def _reachable(self, asked: str | WebTask, task: WebTask, live: LiveOptions) -> LiveOptions:
        """Return the options of a live task on a host that may be reached."""
        if task.site in live.addresses:
            return live
        scheme = asked.partition("://")[0].lower() if isinstance(asked, str) and "://" in asked else "https"
        origin = f"{scheme}://{task.site}"
        refused = AllowList.of(*self.reach).refuse_url(origin)
        if refused is not None:
            raise Refusal(
                403, "host", f"{origin} may not be reached ({refused}): the operator can add --reach {origin}"
            )
        return LiveOptions(addresses={task.site: origin, **live.addresses}, reach=live.reach)


def origin_of(address: str) -> str:
    """Return the scheme, host and port of an address."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"

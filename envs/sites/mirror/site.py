"""A recorded site, as a session sees it: each episode begins at the start of the recording."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from envs.sites.base import VIEWPORT, HostAddress
from envs.sites.mirror.har import RecordedExchange, read_har
from envs.sites.mirror.replay import MirroredEpisode, Miss, RecordedAnswers
from envs.sites.recipes.front import FrontedEpisode, FrontedSite, address_at
from envs.sites.recipes.gateway import PORT, EpisodeServer, HostGateway
from envs.types import SiteError, WebTask

logger = logging.getLogger(__name__)

NOT_SENT = frozenset(
    {"connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding", "alt-svc", "upgrade"}
)
"""Headers of the recorded connection. Bodies are recorded without a content encoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEpisode(FrontedEpisode):
    """An episode on a recording under the true names of its hosts."""

    server: EpisodeServer

    async def close(self) -> None:
        """Stop serving it."""
        await self.server.close()
        await FrontedEpisode.close(self)


class MirrorSite(FrontedSite):
    """A `Site` that answers with what was recorded. What was not is answered with 404.

    A site that was recorded over HTTPS is served under its own name, with the other hosts of the
    recording. Any other one is served at an address of loopback.

    Args:
        recording: An HTTP archive.
        address: Origin in the recording that is the site's own; the first request's by default.
        ignored: Names of query and form fields that do not count.
    """

    repeatable = True

    def __init__(
        self,
        name: str,
        recording: Path,
        *,
        address: str = "",
        ignored: tuple[str, ...] = (),
        viewport: tuple[int, int] = VIEWPORT,
    ) -> None:
        super().__init__(name, viewport)
        self.missed: dict[str, int] = {}
        """Number of requests that were not recorded, by the report on them."""
        self._path = recording
        self._address = address.rstrip("/")
        self._ignored = ignored
        self._recorded = RecordedAnswers(())
        self._gateway: HostGateway | None = None
        self._named: tuple[str, ...] = ()
        """Recorded hosts that are served under their names."""
        self._origins: dict[str, str] = {}
        """Recorded origins by host and port."""

    @property
    def origin(self) -> str:
        """The recorded origin, or ``http://127.0.0.1:<port>``, the same for all episodes."""
        return self._address if self._named else super().origin

    def problem(self) -> str:
        """Return why it cannot be started on this machine."""
        if self._path.is_file():
            return ""
        return f"site {self.name}: {self._path} is not there; python -m flows.sites record makes a recording"

    async def start(self) -> None:
        """Read the recording and begin to serve it.

        Raises:
            ConfigError: The recording cannot be read.
        """
        recording = await asyncio.to_thread(read_har, self._path)
        self._address = self._address or _origin_of(recording.exchanges[0])
        self._recorded = RecordedAnswers(recording.exchanges, self._ignored)
        self._origins = {urlsplit(one.url).netloc: _origin_of(one) for one in recording.exchanges}
        for reason, count in recording.skipped.items():
            logger.warning("site %s: %d exchanges %s are not replayed", self.name, count, reason)
        await super().start()
        if not _named_host(self._address):
            return
        self._named = tuple(dict.fromkeys(filter(None, (_named_host(one.url) for one in recording.exchanges))))
        self.hosts = tuple(f"https://{host}" for host in self._named if f"https://{host}" != self._address)
        self._gateway = HostGateway(self._named)
        await self._gateway.start()

    async def close(self) -> None:
        """Stop serving."""
        await super().close()
        if self._gateway is not None:
            await self._gateway.close()

    async def open_episode(self, task: WebTask, seed: int) -> FrontedEpisode:
        """Begin the recording anew for an episode; the seed changes nothing.

        Raises:
            SiteError: The task's page was not recorded.
        """
        key = self._recorded.key("GET", self._address + task.path)
        if not self._recorded.answers(key):
            raise SiteError(f"site {self.name}: {self._recorded.miss(key)}; record it, or correct the task's path")
        episode = await self.open_host(task, seed)
        if self._gateway is None:
            return episode

        async def find(host: str) -> HostAddress | None:
            return episode.address if host in self._named else None

        try:
            server = await self._gateway.open(find)
        except BaseException:
            await episode.close()
            raise
        routes = {(host, PORT): server.socket for host in self._named}
        return NamedEpisode(path=task.path, routes=routes, token=episode.token, front=self._front, server=server)

    async def open_host(self, task: WebTask, seed: int) -> FrontedEpisode:
        """Begin the recording anew; the task's page may be another host's."""
        token = self._front.admit(self._new_application())
        entrance, address = self._front.entrance(token, task.path), address_at(self._server.origin, token)
        return FrontedEpisode(path=entrance, address=address, token=token, front=self._front)

    def _new_application(self) -> ASGIApp:
        """Return the application of one episode, which begins at the start of the recording."""
        episode = MirroredEpisode(self._recorded)

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            response = await self._answer(episode, Request(scope, receive))
            await response(scope, receive, send)

        return application

    async def _answer(self, episode: MirroredEpisode, request: Request) -> Response:
        """Return the recorded answer of a request, or a page that says what is missing."""
        sent = await request.body()
        key = self._recorded.key(
            request.method, self._address_of(request), sent, request.headers.get("content-type", "")
        )
        answer = episode.answer(key)
        if isinstance(answer, Miss):
            preflight = request.method == "OPTIONS" and "access-control-request-method" in request.headers
            return _permission(request) if preflight else self._missing(answer)
        response = Response(answer.body if request.method != "HEAD" else b"", answer.status)
        sent_again = self._headers(answer, recorded_host=_host_of(request) in self._origins)
        kept = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in sent_again]
        response.raw_headers = [(b"content-length", str(len(answer.body)).encode()), *kept]
        return response

    def _address_of(self, request: Request) -> str:
        """Return a request's address as it was recorded."""
        target = request.scope["raw_path"].decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        return f"{self._origins.get(_host_of(request), self._address)}{target}{f'?{query}' if query else ''}"

    def _headers(self, answer: RecordedExchange, *, recorded_host: bool) -> list[tuple[str, str]]:
        """Return the headers that are sent again. At another address than the recorded one,
        redirects to the site stay there."""
        if recorded_host:
            return [(name, value) for name, value in answer.headers if name not in NOT_SENT]
        return [
            (name, value.removeprefix(self._address) or "/" if name == "location" else value)
            for name, value in answer.headers
            if name not in NOT_SENT
        ]

    def _missing(self, miss: Miss) -> Response:
        report = str(miss)
        if report not in self.missed:
            logger.warning("site %s: %s", self.name, report)
        self.missed[report] = self.missed.get(report, 0) + 1
        return PlainTextResponse(f"This page is not part of the recording.\n\n{report}.", status_code=404)


def _host_of(request: Request) -> str:
    return request.headers.get("host", "")


def _named_host(url: str) -> str:
    """Return the host of an HTTPS address without a port of its own; empty for another address."""
    parts = urlsplit(url)
    return parts.hostname or "" if parts.scheme == "https" and parts.port in (None, PORT) else ""


def _origin_of(exchange: RecordedExchange) -> str:
    parts = urlsplit(exchange.url)
    return f"{parts.scheme}://{parts.netloc}"


def _permission(request: Request) -> Response:
    """Return the answer to a CORS preflight, which archives do not hold."""
    asked = request.headers
    headers = {
        "access-control-allow-origin": asked.get("origin", "*"),
        "access-control-allow-methods": asked["access-control-request-method"],
        "access-control-allow-headers": asked.get("access-control-request-headers", ""),
        "access-control-allow-credentials": "true",
    }
    return Response(status_code=204, headers=headers)

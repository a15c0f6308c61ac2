"""A deployment's lease is renewed through an outage of the server, and a lost one does not end the
run."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest
from prefect._internal.concurrency.cancellation import CancelledError
from prefect.concurrency._leases import maintain_concurrency_lease
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_CSRF_SUPPORT_ENABLED,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    temporary_settings,
)

from tasks_lib.processes.lease import hold_lease

DURATION = 0.4
"""Seconds of the lease; it is renewed every 0.3."""


class Leases(http.server.ThreadingHTTPServer):
    """The one route of the Prefect API that renews a lease; ``statuses`` are its answers, the last
    one for ever."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Renewals)
        self.statuses = list(statuses)
        self.answered: list[int] = []
        self.changed = threading.Condition()

    def wait_for(self, status: int, times: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.answered.count(status) >= times, 30), self.answered


class _Renewals(http.server.BaseHTTPRequestHandler):
    server: Leases

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        with self.server.changed:
            self.server.answered.append(status)
            self.server.changed.notify_all()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def leases(request: pytest.FixtureRequest) -> Iterator[Leases]:
    server = Leases(*request.param)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/api"
    settings = {
        PREFECT_API_URL: address,
        PREFECT_CLIENT_MAX_RETRIES: 0,
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False,
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
    }
    with temporary_settings(settings):
        yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("leases", [[200, 503, 503, 503, 503, 503, 200]], indirect=True)
def test_a_lease_is_renewed_again_after_an_outage(leases: Leases) -> None:
    with hold_lease(uuid4(), DURATION, raise_on_lease_renewal_failure=True):
        leases.wait_for(503, 5)
        leases.wait_for(200, 3)
    answered = len(leases.answered)
    threading.Event().wait(2 * DURATION)
    assert len(leases.answered) == answered, "nothing is renewed after the block"


@pytest.mark.parametrize("leases", [[200, 410]], indirect=True)
def test_a_forgotten_lease_does_not_end_the_run(leases: Leases, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("prefect.concurrency")
    logger.addHandler(caplog.handler)  # Prefect's loggers do not reach pytest's handler
    try:
        with hold_lease(uuid4(), DURATION, raise_on_lease_renewal_failure=True):
            leases.wait_for(410, 1)
            threading.Event().wait(2 * DURATION)
    finally:
        logger.removeHandler(caplog.handler)
    assert leases.answered.count(410) == 1, "a forgotten lease is not asked for again"
    assert "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE" in caplog.text


@pytest.mark.parametrize("leases", [[410]], indirect=True)
def test_prefect_itself_cancels_the_block(leases: Leases) -> None:
    """The reason for `hold_lease`; when this fails, Prefect's own renewal may do."""
    with pytest.raises(CancelledError), maintain_concurrency_lease(uuid4(), DURATION, True):
        for _ in range(600):  # short waits: Prefect's exception is raised between two of them
            threading.Event().wait(0.05)
        pytest.fail("not cancelled")

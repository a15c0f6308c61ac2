"""Renews a deployment's concurrency lease for as long as its flow run lasts.

The flow run of a deployment with a ``concurrency_limit`` holds a lease of 300 s. Prefect 3.8.8
renews it every 225 s, and cancels the flow run where three tries within some seconds fail: a server
that restarts or is away at that moment ends a training run. `hold_lease` replaces Prefect's own
renewal: it tries again until the server answers. A lease that the server has forgotten (by default
it keeps leases in memory) is given up with a warning, and the run goes on: ``run.lock`` keeps a
second run out of its folder.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect import flow_engine
from prefect.client.orchestration import get_client
from prefect.logging.loggers import get_logger

RENEWED_AFTER = 0.75
"""Share of a lease's duration after which it is renewed, as in Prefect."""
RETRY_SHARE = 1 / 30
"""Share of a lease's duration between two tries without an answer: 10 s of 300 s."""
FORGOTTEN = (404, 410)
"""HTTP statuses for a lease that the server does not know or no longer knows."""


def use_patient_leases() -> None:
    """Make Prefect's flow engine hold leases with `hold_lease`."""
    flow_engine.maintain_concurrency_lease = hold_lease  # type: ignore[attr-defined]


@contextmanager
def hold_lease(
    lease_id: UUID, lease_duration: float, raise_on_lease_renewal_failure: bool = False, suppress_warnings: bool = False
) -> Iterator[None]:
    """Renew a lease in a thread while the block runs. The parameters are those of Prefect's
    function.

    Args:
        lease_id: Id of the deployment's lease.
        lease_duration: Duration in seconds.
        raise_on_lease_renewal_failure: Ignored: a failed renewal does not end the run.
        suppress_warnings: Do not warn of a lost lease.
    """
    ended = threading.Event()
    work = (_renew, lease_id, lease_duration, ended, suppress_warnings)
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=work, name=f"concurrency-lease-{lease_id}", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=2)  # a request that hangs must not delay the run's end


def _renew(lease_id: UUID, duration: float, ended: threading.Event, quiet: bool) -> None:
    logger = get_logger("concurrency")
    with get_client(sync_client=True) as client:
        while not ended.is_set():
            pause = duration * RENEWED_AFTER
            try:
                client.renew_concurrency_lease(lease_id=lease_id, lease_duration=duration)
            except httpx.HTTPStatusError as error:
                if error.response.status_code in FORGOTTEN:
                    if not quiet:
                        logger.warning(
                            "the Prefect server has forgotten lease %s of this deployment's concurrency limit (it was restarted, "
                            "and keeps leases in memory unless PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE says otherwise: "
                            "docs/prefect.md): the run goes on, and the limit may count it no more",
                            lease_id,
                        )
                    return
                pause = duration * RETRY_SHARE
            except httpx.HTTPError:
                pause = duration * RETRY_SHARE
            ended.wait(pause)

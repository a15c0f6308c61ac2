"""Checks the Prefect API address before a flow begins; an error takes one line.

Prefect itself notices it in the middle of its own start, with a traceback that has neither the
address nor a remedy.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import prefect
from prefect.client.base import ServerType
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_HOME,
    temporary_settings,
)

from envs.types import ConfigError

REQUEST_SECONDS = 10.0
"""Seconds that one request may take."""
TRIES = 2
"""Times that a request is sent. A server that has just started answers 503 for a moment."""
EXAMPLE = "http://127.0.0.1:4200/api"
_NO_ADDRESS = f"that is no address; expected something like {EXAMPLE}"


def check_api() -> str:
    """Return the version of the configured Prefect API, or ``cloud`` for Prefect Cloud.

    The request has the settings of Prefect's own client. Where no address is configured, nothing is
    requested and the result is empty: then a run starts a server for itself.

    Raises:
        ConfigError: nothing answers there, or the answer is not from a Prefect API of our major
            version, or it refuses us.
    """
    address = PREFECT_API_URL.value()
    if not address:
        return ""
    version = "cloud"
    if not address.partition("://")[2].strip("/"):
        raise ConfigError(f"PREFECT_API_URL={address}: {_NO_ADDRESS}; {_advice()}")
    patient = {PREFECT_API_REQUEST_TIMEOUT: REQUEST_SECONDS, PREFECT_CLIENT_MAX_RETRIES: TRIES - 1}
    try:
        with temporary_settings(patient), get_client(sync_client=True) as client:
            # A server's /health answers anyone; the cloud has no version.
            cloud = client.server_type == ServerType.CLOUD
            answer = client.request("GET", "/health" if cloud else "/admin/version")  # type: ignore[arg-type]
            problem = _describe_wrong_answer(address, answer) or ("" if cloud else _describe_wrong_version(answer))
            if not problem and not cloud:
                version = str(answer.json())
    except httpx.HTTPStatusError as error:
        problem = _describe_refusal(address, error.response)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        problem = _describe_no_answer(address, error)
    if problem:
        raise ConfigError(f"PREFECT_API_URL={without_password(address)}: {problem}; {_advice()}")
    return version


def check_home() -> Path:
    """Return the folder of the database of the server that a run starts for itself.

    Raises:
        ConfigError: it cannot be written to, and the server would be started again and again.
    """
    home = Path(str(PREFECT_HOME.value())).expanduser()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home, prefix=".rollwright-"):
            pass
    except OSError as error:
        raise ConfigError(
            f"PREFECT_HOME={home}: the Prefect server of this run cannot keep its database there ({error.strerror}); "
            f"set PREFECT_HOME to a folder that can be written to"
        ) from error
    return home


def _describe_wrong_answer(address: str, answer: httpx.Response) -> str:
    """Describe what is wrong with an answer that is no refusal; empty if nothing."""
    if answer.history:
        place = httpx.URL(answer.url).copy_with(raw_path=httpx.URL(address).raw_path)
        return f"it redirects to {answer.url.scheme}://{answer.url.netloc.decode()}, which changes requests; is it {without_password(str(place))}"
    try:
        answer.json()
    except ValueError:
        return _describe_no_prefect(address)
    return ""


def _describe_wrong_version(answer: httpx.Response) -> str:
    """Say why a server of this version cannot be used; empty if it can."""
    theirs, ours = answer.json(), prefect.__version__
    if not isinstance(theirs, str) or not theirs.split(".")[0].isdecimal():
        return "what answers is no Prefect server"
    return "" if theirs.split(".")[0] == ours.split(".")[0] else f"that server is Prefect {theirs}, this is {ours}"


def _describe_refusal(address: str, answer: httpx.Response) -> str:
    """Say why a server answers with an error."""
    code = answer.status_code
    if code in (401, 403):
        return f"it refuses us ({code}); set PREFECT_API_AUTH_STRING (a server of your own) or PREFECT_API_KEY (Prefect Cloud)"
    if code == 400 and "https" in answer.text.lower():
        return f"it speaks TLS; the address is {_with_scheme(address, 'https')}"
    if code >= 500 or code in (408, 429):
        return f"it answers {code} ({answer.reason_phrase}); look at its log"
    return _describe_no_prefect(address, f" ({code})")


def _describe_no_prefect(address: str, status: str = "") -> str:
    hint = "" if httpx.URL(address).path.rstrip("/").endswith("/api") else f", whose address ends in /api, as {EXAMPLE}"
    return f"what answers is no Prefect API{hint}{status}"


def _describe_no_answer(address: str, error: Exception) -> str:
    """Say why there is no answer."""
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL | ValueError):
        return _NO_ADDRESS
    if isinstance(error, httpx.TimeoutException):
        return f"nothing answers within {REQUEST_SECONDS:g} s"
    text = " ".join(str(cause) for cause in _chain(error))
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted; name the authority's file in PREFECT_API_SSL_CERT_FILE"
    if any(isinstance(cause, ssl.SSLError) for cause in _chain(error)) or "SSL" in text:
        return f"it does not speak TLS; the address is {_with_scheme(address, 'http')}"
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and address.startswith("http://"):
        return f"what answers is no HTTP server; if it speaks TLS, the address is {_with_scheme(address, 'https')}"
    reason = next(
        (cause.strerror for cause in _chain(error) if isinstance(cause, OSError) and cause.strerror), str(error)
    )
    return f"no Prefect server can be reached there ({reason})"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _advice() -> str:
    """Return the advice about an address that cannot be used."""
    away = "unset it" if "PREFECT_API_URL" in os.environ else "prefect config unset PREFECT_API_URL"
    return f"start that server (prefect server start), correct the address, or do without ({away}): then the run starts a server of its own"


def _with_scheme(address: str, scheme: str) -> str:
    return without_password(f"{scheme}://{address.partition('://')[2]}")


def without_password(address: str) -> str:
    """Return an address without its password."""
    scheme, separator, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else address

"""An address of the Prefect API that is of no use is named in one line, with what to do. Real
sockets, Prefect's own client."""

from __future__ import annotations

import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import (
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_TLS_INSECURE_SKIP_VERIFY,
    PREFECT_API_URL,
    PREFECT_HOME,
    temporary_settings,
)

from envs.types import ConfigError
from tasks_lib.commands import command_line
from tasks_lib.config import PROJECT, EvaluateConfig
from tasks_lib.processes import prefect_api
from tasks_lib.processes.own_server import api_url
from training.trainer.control.launch import free_port


@contextmanager
def served(
    answer: Callable[[str], tuple[int, bytes, dict[str, str]]], wrap: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server on loopback that gives ``answer(path)``; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body, headers = answer(self.path)
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:  # a client that speaks another protocol
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if wrap is not None:
        server.socket = wrap.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def version(text: str) -> Callable[[str], tuple[int, bytes, dict[str, str]]]:
    """As a Prefect server answers below ``/api``, and nowhere else."""

    def answer(path: str) -> tuple[int, bytes, dict[str, str]]:
        if path == "/api/admin/version":
            return 200, json.dumps(text).encode(), {"Content-Type": "application/json"}
        return 404, b'{"detail":"Not Found"}', {"Content-Type": "application/json"}

    return answer


def always(code: int, body: bytes = b"", **headers: str) -> Callable[[str], tuple[int, bytes, dict[str, str]]]:
    return lambda _path: (code, body, headers)


def refused(address: str) -> str:
    with temporary_settings({PREFECT_API_URL: address}), pytest.raises(ConfigError) as found:
        prefect_api.check_api()
    message = str(found.value)
    assert message.startswith(f"PREFECT_API_URL={address}: ") and "\n" not in message and len(message) < 500
    assert "correct the address" in message
    return message


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_api, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(prefect_api, "TRIES", 1)


def test_a_good_address_and_none_at_all_pass() -> None:
    with temporary_settings({PREFECT_API_URL: None}):
        prefect_api.check_api()
    with served(version("3.8.1")) as host, temporary_settings({PREFECT_API_URL: f"http://{host}/api"}):
        prefect_api.check_api()


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("", version("3.8.1"), "no Prefect API, whose address ends in /api"),
        ("/apii", version("3.8.1"), "no Prefect API, whose address ends in /api"),
        ("/api", version("2.20.3"), "that server is Prefect 2.20.3, this is 3."),
        ("/api", always(404, b"nothing"), "what answers is no Prefect API (404)"),
        ("/api", always(200, b"<html>hello</html>"), "what answers is no Prefect API"),
        ("/api", always(200, b'{"status": "ok"}'), "what answers is no Prefect server"),
        ("/api", always(200, b'"pong"'), "what answers is no Prefect server"),
        ("/api", always(401, b"{}"), "it refuses us (401); set PREFECT_API_AUTH_STRING"),
        ("/api", always(403, b"{}"), "it refuses us (403); set PREFECT_API_AUTH_STRING"),
        ("/api", always(500, b"oh"), "it answers 500 (Internal Server Error); look at its log"),
        ("/api", always(503, b"oh"), "it answers 503 (Service Unavailable); look at its log"),
        (
            "/api",
            always(400, b"The plain HTTP request was sent to HTTPS port"),
            "it speaks TLS; the address is https://127",
        ),
        ("/api", always(418, b"{}"), "what answers is no Prefect API (418)"),
    ],
)
def test_what_answers_otherwise_than_prefect_is_named(path: str, answer: Any, says: str) -> None:
    with served(answer) as host:
        assert says in refused(f"http://{host}{path}")


def test_a_redirect_is_named_with_where_it_leads() -> None:
    with served(version("3.8.1")) as good, served(always(301, Location=f"http://{good}/api/admin/version")) as host:
        assert f"it redirects to http://{good}" in refused(f"http://{host}/api")


def test_no_server_at_all() -> None:
    assert "no Prefect server can be reached there (Connection refused)" in refused(
        f"http://127.0.0.1:{free_port()}/api"
    )
    assert "no Prefect server can be reached there (" in refused("http://nowhere.invalid:4200/api")
    for text in ("127.0.0.1:4200/api", "nonsense", "ftp://127.0.0.1/api", "http://", "http://127.0.0.1:port/api"):
        assert "that is no address; expected something like http://127.0.0.1:4200/api" in refused(text), text


def test_a_server_that_does_not_answer_in_time_or_hangs_up() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        assert "nothing answers within 0.5 s" in refused(f"http://127.0.0.1:{silent.getsockname()[1]}/api")

    with closing(socket.create_server(("127.0.0.1", 0))) as rude:

        def hang_up() -> None:
            connection, _ = rude.accept()
            connection.recv(1000)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = rude.getsockname()[1]
        assert f"if it speaks TLS, the address is https://127.0.0.1:{port}/api" in refused(
            f"http://127.0.0.1:{port}/api"
        )
        thread.join()


def test_http_and_https_that_are_mixed_up(tmp_path: Path) -> None:
    made = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=127.0.0.1"
    command = [*made.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with served(version("3.8.1")) as host:
        assert f"it does not speak TLS; the address is http://{host}/api" in refused(f"https://{host}/api")
    with (
        served(version("3.8.1"), context) as host,
        temporary_settings({PREFECT_API_TLS_INSECURE_SKIP_VERIFY: False}),  # importing flows sets it, for http
    ):
        assert f"the address is https://{host}/api" in refused(f"http://{host}/api")
        assert "its certificate is not trusted; name the authority's file in PREFECT_API_SSL_CERT_FILE" in refused(
            f"https://{host}/api"
        )
        trusted = {PREFECT_API_URL: f"https://{host}/api", PREFECT_API_SSL_CERT_FILE: str(tmp_path / "cert.pem")}
        with temporary_settings(trusted):
            prefect_api.check_api()


def test_a_password_in_the_address_is_not_shown() -> None:
    address = f"http://me:hidden@127.0.0.1:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: address}), pytest.raises(ConfigError) as found:
        prefect_api.check_api()
    assert "hidden" not in str(found.value)


def test_the_fix_fits_where_the_address_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", address)
    assert "(unset it)" in refused(address)
    monkeypatch.delenv("PREFECT_API_URL")
    assert "(prefect config unset PREFECT_API_URL)" in refused(address)


def test_a_command_says_it_in_one_line_and_begins_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def never(_config: Any) -> None:
        raise AssertionError("nothing may begin")

    address = f"http://127.0.0.1:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: address}):
        arguments = ["--set", "run_id=mine", "--set", f"root={tmp_path}"]
        assert command_line.run_command(never, EvaluateConfig, lambda _config: [], arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: PREFECT_API_URL={address}: no Prefect server") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("home", ["/proc/none", "file/home"])
def test_an_unusable_prefect_home_is_named_before_the_server_starts(tmp_path: Path, home: str) -> None:
    (tmp_path / "file").touch()
    says = r"^PREFECT_HOME=.*cannot keep its database there \(.*\); set PREFECT_HOME"
    settings = {PREFECT_API_URL: None, PREFECT_HOME: tmp_path / home}
    with temporary_settings(settings), pytest.raises(ConfigError, match=says):
        api_url()


def test_an_own_server_that_does_not_start_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.server.api.server import SubprocessASGIServer

    broken = [sys.executable, "-c", "raise SystemExit(1)"]  # as of a database that a newer Prefect has migrated
    monkeypatch.setattr(SubprocessASGIServer, "_run_uvicorn_command", lambda _self: subprocess.Popen(broken))
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "1")
    start = SubprocessASGIServer.start
    monkeypatch.setattr(SubprocessASGIServer, "start", lambda self: start(self, timeout=1))
    says = r"^the Prefect server of this run did not start \(.*exited with code 1\."
    with temporary_settings({PREFECT_API_URL: None, PREFECT_HOME: tmp_path}):
        try:
            with pytest.raises(ConfigError, match=says):
                api_url()
        finally:
            SubprocessASGIServer().stop()  # else at exit


@pytest.mark.parametrize(
    ("address", "profile", "skipped"),
    [
        ("", False, True),
        ("", True, False),
        ("http://127.0.0.1:4200/api", True, True),
        ("https://prefect.example/api", False, False),
    ],
)
def test_certificates_are_looked_at_wherever_the_api_may_be_an_https_one(
    tmp_path: Path, address: str, profile: bool, skipped: bool
) -> None:
    """The address may stand in the user's profile, which is read later."""
    if profile:
        (tmp_path / ".prefect").mkdir()
        (tmp_path / ".prefect/profiles.toml").write_text(
            'active = "c"\n[profiles.c]\nPREFECT_API_URL = "https://a/api"'
        )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")} | {"HOME": str(tmp_path)}
    script = "import os, flows; print(os.environ.get('PREFECT_API_TLS_INSECURE_SKIP_VERIFY'))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | ({"PREFECT_API_URL": address} if address else {}),
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == ("true" if skipped else "None")


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, None),
        ({"HTTP_PROXY": "http://10.0.0.1:3128"}, "127.0.0.1,localhost,::1"),
        ({"https_proxy": "http://10.0.0.1:3128", "NO_PROXY": "corp.test"}, "corp.test,127.0.0.1,localhost,::1"),
        ({"ALL_PROXY": "http://10.0.0.1:3128", "no_proxy": "localhost"}, "localhost,127.0.0.1,::1"),
        ({"HTTP_PROXY": "http://10.0.0.1:3128", "NO_PROXY": "*"}, "*"),
    ],
)
def test_servers_of_this_machine_are_asked_without_a_proxy(given: dict[str, str], direct: str | None) -> None:
    """Prefect waited for its own server until it gave up where a proxy was set."""
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | given
    script = "import os, flows; print(os.environ.get('NO_PROXY'), os.environ.get('no_proxy'))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, cwd=PROJECT, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(direct)] * 2

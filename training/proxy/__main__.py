"""Start a recording proxy over a policy.

    python -m training.proxy --checkpoint datasets/policies/reader --root runs/foreign
    python -m training.proxy --checkpoint POLICY --server http://127.0.0.1:8000 --root runs/foreign

An agent's base URL is then http://127.0.0.1:8100/sessions/NAME/v1, or …/v1 with the header
x-rollwright-session. Ends with 2 for what is refused before it starts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from pydantic import ValidationError

from envs.types import ConfigError, RollwrightError
from training.ledger.disk import remove_leftovers, try_to_write
from training.ledger.seal import describe_first_error
from training.proxy.app import make_app
from training.proxy.following import FollowingEngine
from training.proxy.recorder import ProxyOptions, Recorder
from training.proxy.records import CallStore
from training.serving.config import LOOPBACK
from training.serving.engine import Engine

if TYPE_CHECKING:
    from training.policy.renderer import Renderer


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m training.proxy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face checkpoint folder of the policy")
    parser.add_argument("--version", type=int, default=0, help="policy version of that folder; 0 by default")
    parser.add_argument("--server", metavar="URL", help="vLLM server that generates, in place of this process")
    parser.add_argument("--server-key", metavar="VARIABLE", default="", help="variable with that server's API key")
    parser.add_argument("--root", type=Path, required=True, help="folder of the records, which may be a run's")
    parser.add_argument("--template", default="", help="LLaMA-Factory chat template; by default the checkpoint's")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; others need --api-key")
    parser.add_argument("--port", type=int, default=8100, help="port to listen on; 8100 by default, 0: a free one")
    parser.add_argument("--api-key", metavar="VARIABLE", default="", help="variable with the key that clients send")
    parser.add_argument("--device", default="auto", help="torch device of a policy in this process")
    for name, field in ProxyOptions.model_fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=field.default, help=field.description)
    given = parser.parse_args(arguments)
    try:
        asyncio.run(serve(given))
    except KeyboardInterrupt:
        return 0
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


async def serve(given: argparse.Namespace) -> None:
    """Serve until a signal ends the process.

    Raises:
        ConfigError, PolicyError, EngineError, StorageError: It cannot start.
    """
    try:
        options = ProxyOptions(**{name: getattr(given, name) for name in ProxyOptions.model_fields})
    except ValidationError as error:
        raise ConfigError(f"--{describe_first_error(error).replace('_', '-', 1)}") from error
    key = _key(given.api_key)
    if given.host not in LOOPBACK and not key:
        raise ConfigError(f"--host {given.host} can be reached from outside: give a key, --api-key VARIABLE")
    given.root.mkdir(parents=True, exist_ok=True)
    try_to_write(given.root)
    remove_leftovers(given.root)
    from training.policy.renderer import Renderer

    with _listener(given.host, given.port) as listener:
        renderer = Renderer(given.checkpoint, given.template)
        engine = await _engine(given, renderer)
        app = make_app(Recorder(engine, renderer, CallStore(given.root), options), key)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        port = listener.getsockname()[1]
        print(
            f"the proxy listens at http://{given.host}:{port}, and writes to {given.root}", file=sys.stderr, flush=True
        )
        try:
            await server.serve([listener])
        finally:
            await engine.close()


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"nothing can listen at {host}, port {port} ({error.strerror}): choose another --port"
        ) from error
    # asyncio leaves this out on such sockets. Without it a body waits 40 ms for the acknowledgement
    # of the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def _engine(given: argparse.Namespace, renderer: Renderer) -> Engine:
    if given.server:
        return await FollowingEngine.connect(
            given.server, given.checkpoint, given.version, renderer, _key(given.server_key)
        )
    from training.serving.local import LocalEngine, LocalModel

    engine = LocalEngine(LocalModel(renderer, given.device), deterministic=False)
    await engine.publish(given.version, given.checkpoint)
    return engine


def _key(variable: str) -> str:
    """Return the value of a key's variable; empty where none is named."""
    if variable and not os.environ.get(variable):
        raise ConfigError(f"the variable {variable} is not set; it has to hold the key")
    return os.environ[variable] if variable else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

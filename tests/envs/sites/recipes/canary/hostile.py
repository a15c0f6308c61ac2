"""An application without manners: each path takes what it can get, and then fails."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

KEPT = list[Any]()


def fork() -> str:
    while True:
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            time.sleep(900)


def eat() -> str:
    while True:
        KEPT.append(bytearray(1 << 20))


def fill(folder: str) -> str:
    for number in range(1 << 20):
        Path(folder, f"filling-{number}").write_bytes(os.urandom(1 << 20))
    return ""


def enlarge() -> str:
    with open("large", "wb", buffering=0) as file:
        while True:
            file.write(os.urandom(1 << 20))


def open_all() -> str:
    while True:
        KEPT.append(socket.socket())


def ignore_the_end() -> str:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return "ignored"


def who() -> str:
    places = ("/root", "/etc/shadow", os.environ["HOST_FOLDER"], f"/proc/{os.getppid()}/root")
    seen = [place for place in places if os.access(place, os.W_OK)]
    return f"{os.getuid()} {os.getgid()} {threading.active_count() < 9} {seen}"


PAGES: dict[str, Callable[[], str]] = {
    "/": lambda: "ready",
    "/fork": fork,
    "/eat": eat,
    "/fill": lambda: fill("."),
    "/fill-temporary": lambda: fill(tempfile.gettempdir()),
    "/enlarge": enlarge,
    "/open": open_all,
    "/who": who,
    "/processes": lambda: str(sum(name.isdigit() for name in os.listdir("/proc"))),
}


def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    text = PAGES[environ["PATH_INFO"]]()
    start("200 OK", [("Content-Type", "text/html; charset=utf-8")])
    return [f"<p>{text}</p>".encode()]


def forked() -> None:
    ignore_the_end()

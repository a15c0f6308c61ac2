"""The application of these tests: each path looks for, or leaves, something that another episode
must not see. A recipe's build copies this file; nothing imports it here."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl

STATE = Path(os.environ["SITE_STATE"])
SEEN = list[str]()
"""Memory of the process."""
LISTENING = list[socket.socket]()
REMADE = list[int]()
SHOP = """<ul>{orders}</ul><form method=post action=/buy><label>Item <input name=item></label>
<input type=hidden name=token value={token}><input type=hidden name=back value=/shop><button>Buy</button></form>
<p>ticket {token}</p><p id=visits></p><script>localStorage.n = 1 + Number(localStorage.n || 0);
visits.textContent = `visit ${{localStorage.n}} ${{document.cookie}}`</script>"""
DRAWN = "<p id=drawn></p><script>drawn.textContent = 'drawn ' + Math.random()</script><button>go</button>"


def remade() -> None:
    """Run after each fork."""
    REMADE.append(os.getpid())


def orders(item: str = "") -> list[str]:
    with closing(sqlite3.connect(Path(os.environ["SITE_STATE"], "shop.sqlite"))) as shop, shop:
        if item:
            shop.execute("INSERT INTO orders VALUES (?)", (item,))
        return [row[0] for row in shop.execute("SELECT item FROM orders ORDER BY item")]


def spawn() -> str:
    """Start a daemon: an orphan without its session, folder and files, which ignores SIGTERM."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 64)
            time.sleep(900)
        os._exit(0)
    os.waitpid(child, 0)
    return "1"


def listen() -> str:
    listener = socket.create_server(("127.0.0.1", 0))
    LISTENING.append(listener)
    return str(listener.getsockname()[1])


def reach(port: str) -> str:
    with socket.socket() as asked:
        return str(asked.connect_ex(("127.0.0.1", int(port))) == 0)


def leave(item: str) -> str:
    """Leave a canary in every place."""
    orders(item)
    SEEN.append(item)
    os.environ["CANARY"] = item
    Path(os.environ["SITE_STATE"], "note.txt").write_text(item)
    Path(tempfile.gettempdir(), "canary.txt").write_text(item)
    return item


def shop() -> str:
    """Return a form, with a ticket that is drawn at random."""
    return SHOP.format(orders="".join(f"<li>{item}" for item in orders()), token=secrets.token_hex(8))


def draw() -> str:
    Path(os.environ["SITE_STATE"], "note.txt").write_text(secrets.token_hex(8))
    return "drawn"


def write() -> str:
    """Write a number over and over: into many files in turn, then twice in a transaction."""
    files = [os.open(Path(os.environ["SITE_STATE"], f"part-{name:02}"), os.O_RDWR | os.O_CREAT) for name in range(90)]

    def write_all(number: int) -> None:
        for file in files:
            os.pwrite(file, b"%09d" % number, 0)
        with closing(sqlite3.connect(Path(os.environ["SITE_STATE"], "shop.sqlite"))) as shop, shop:
            shop.executemany("INSERT INTO orders VALUES (?)", [("left",), ("right",)])

    write_all(1)
    threading.Thread(target=lambda: [write_all(number) for number in range(2, 1 << 30)], daemon=True).start()
    return "1"


def written() -> str:
    """Return what `write` has written: the numbers of the files, and the counts of the rows."""
    parts = [int(path.read_text()) for path in sorted(Path(os.environ["SITE_STATE"]).glob("part-*"))]
    items = orders()
    return json.dumps({"parts": parts, "left": items.count("left"), "right": items.count("right")})


def look() -> str:
    """Return every canary that can be seen."""
    files = [Path(os.environ["SITE_STATE"], "note.txt"), Path(tempfile.gettempdir(), "canary.txt")]
    texts = [path.read_text() for path in files if path.exists()]
    return ",".join([*orders(), *SEEN, *texts, os.environ.get("CANARY", "")])


PAGES: dict[str, Callable[[str], str]] = {
    "/": lambda value: f"<h1>{len(orders())} orders</h1><p>{len(REMADE)} after the fork</p>",
    "/leave": leave,
    "/look": lambda value: look(),
    "/shop": lambda value: shop(),
    "/drawn": lambda value: DRAWN,
    "/draw": lambda value: draw(),
    "/write": lambda value: write(),
    "/written": lambda value: written(),
    "/remove": lambda value: str(Path(os.environ["SITE_STATE"], "old.txt").unlink()),
    "/listen": lambda value: listen(),
    "/reach": reach,
    "/spawn": lambda value: spawn(),
    "/processes": lambda value: str(sum(name.isdigit() for name in os.listdir("/proc"))),
    "/threads": lambda value: str(threading.active_count()),
    "/random": lambda value: str(random.random()),
    "/secret": lambda value: secrets.token_hex(16),
    "/clock": lambda value: time.strftime("%H:%M:%S ") + str(time.time()),
    "/eat": lambda value: str(SEEN.append("x" * (int(value) << 20))),
    "/die": lambda value: os._exit(3),
}


def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    path, query = environ["PATH_INFO"], parse_qs(environ["QUERY_STRING"])
    if environ["REQUEST_METHOD"] == "POST":
        sent = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
        form = json.loads(sent) if "json" in environ["CONTENT_TYPE"] else dict(parse_qsl(sent))
        orders(form["item"])
        start(
            "303 See Other",
            [("Location", form.get("back", "/")), ("Set-Cookie", "basket=1"), ("Set-Cookie", "seen=1")],
        )
        return [b""]
    if path == "/enter":
        place, session = secrets.token_hex(8), secrets.token_hex(8)
        start("303 See Other", [("Location", f"/?{place}"), ("Set-Cookie", f"session={session}")])
        return [b""]
    if path == "/cookies":
        text = environ.get("HTTP_COOKIE", "")
    elif path in PAGES:
        text = PAGES[path](query.get("value", [""])[0])
    else:
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"no such page"]
    start("200 OK", [("Content-Type", "text/html; charset=utf-8")])
    return [text.encode()]


def seed() -> None:
    with closing(sqlite3.connect("shop.sqlite")) as shop, shop:
        shop.execute("CREATE TABLE orders (item TEXT)")
        shop.execute("INSERT INTO orders VALUES ('of the seed')")
    Path("old.txt").write_text("of the seed")


if __name__ == "__main__":
    seed()

"""A shop and a forum of one town, which link, redirect and post to each other. Nothing imports it
here: a recipe's build copies it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

SHOP, FORUM = "https://shop.town.example", "https://forum.town.example"


def notes(text: str = "") -> list[str]:
    with closing(sqlite3.connect(Path(os.environ["SITE_STATE"], "notes.sqlite"))) as database, database:
        if text:
            database.execute("INSERT INTO notes VALUES (?)", (text,))
        return [row[0] for row in database.execute("SELECT text FROM notes")]


def page(environ: dict[str, Any], name: str) -> str:
    """What this site knows and sees of the visitor."""
    seen = f"{environ['wsgi.url_scheme']}://{environ['HTTP_HOST']} {environ.get('HTTP_COOKIE', 'no cookie')}"
    return f"<h1>{name}</h1><p>seen: {seen}</p><p>notes: {' '.join(notes()) or 'none'}</p>"


def shop(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    links = f'<a href="{FORUM}/">Forum</a><form method="post" action="{FORUM}/post">'
    links += '<input name="text" value="hello"><button>Post</button></form>'
    cookies = [("Set-Cookie", "town=member; Domain=town.example; Path=/"), ("Set-Cookie", "basket=3; Path=/")]
    start("200 OK", [("Content-Type", "text/html"), *cookies])
    return [(page(environ, "Shop") + links).encode()]


def forum(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/post":
        form = parse_qs(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode())
        notes(form["text"][0])
        start("303 See Other", [("Location", "/")])
        return [b""]
    if environ["PATH_INFO"] == "/to-the-shop":
        start("302 Found", [("Location", f"{SHOP}/?from=forum")])
        return [b""]
    if environ["PATH_INFO"] == "/end":
        os._exit(3)
    start("200 OK", [("Content-Type", "text/html")])
    ticket = f"<p>ticket {secrets.token_hex(8)}</p>"
    return [(page(environ, "Forum") + ticket + '<a href="/to-the-shop">Back</a>').encode()]


if __name__ == "__main__":
    with closing(sqlite3.connect("notes.sqlite")) as made, made:
        made.execute("CREATE TABLE notes (text TEXT)")

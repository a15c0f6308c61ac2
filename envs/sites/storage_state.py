"""Log-ins as files: the storage state that Playwright writes, with cookies and pages' stores."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from envs.types import SiteError
from envs.types.paths import AnyPath

COOKIE_FIELDS = ("path", "secure", "httpOnly", "sameSite")
"""Further fields of a cookie that the browser is given."""
SAME_SITE = ("Strict", "Lax", "None")
"""Values of a cookie's ``sameSite``."""


@dataclass(frozen=True, slots=True)
class StorageState:
    """Cookies and stores that a browser keeps of a log-in."""

    cookies: tuple[Mapping[str, Any], ...] = ()
    """Cookies in the form that the browser takes (``Storage.setCookies``)."""
    stores: tuple[Mapping[str, Any], ...] = ()
    """Contents of ``localStorage`` and IndexedDB by origin, as Playwright writes them."""


def read_storage_state(path: AnyPath) -> StorageState:
    """Read a storage state: ``{"cookies": […], "origins": […]}``.

    Raises:
        SiteError: The file does not exist or has another form. The message has none of its values.
    """
    try:
        given = orjson.loads(Path(path).read_bytes().removeprefix(BOM_UTF8))
    except OSError as error:
        raise SiteError(f"log-in {path}: cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError:
        given = None
    return check_storage_state(given, str(path))


def check_storage_state(given: object, name: str) -> StorageState:
    """Return a storage state that browsers accept.

    Args:
        name: Name of the log-in, for errors.

    Raises:
        SiteError: It has another form. The message has none of its values.
    """
    cookies = given.get("cookies") if isinstance(given, dict) else None
    if not isinstance(cookies, list):
        raise SiteError(f"log-in {name}: is no storage state; expected cookies with name, value and domain")
    for number, cookie in enumerate(cookies, start=1):
        if wrong := _cookie_problem(cookie):
            raise SiteError(f"log-in {name}: cookie {number} of {len(cookies)}: {wrong}")
    assert isinstance(given, dict)
    origins = given.get("origins", [])
    if not isinstance(origins, list):
        raise SiteError(f"log-in {name}: origins is no list")
    for number, origin in enumerate(origins, start=1):
        if wrong := _origin_problem(origin):
            raise SiteError(f"log-in {name}: origin {number} of {len(origins)}: {wrong}")
    return StorageState(tuple(map(_browser_cookie, cookies)), tuple(origins))


def _origin_problem(given: object) -> str:
    """Return the fault of an origin's stores without their values; empty if there is none."""
    if not isinstance(given, dict) or not isinstance(given.get("origin"), str):
        return "is no object with an origin"
    if not given["origin"].startswith(("http://", "https://")):
        return "its origin is no address of http or https"
    entries = given.get("localStorage", [])
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("value"), str)
        for entry in entries
    ):
        return "localStorage is no list of names and values"
    databases = given.get("indexedDB", [])
    if not isinstance(databases, list) or not all(
        isinstance(database, dict)
        and isinstance(database.get("name"), str)
        and isinstance(database.get("stores"), list)
        for database in databases
    ):
        return "indexedDB is no list of databases with stores"
    return ""


def _cookie_problem(given: object) -> str:
    """Return the fault of a cookie without its values; empty if browsers accept it."""
    if not isinstance(given, dict):
        return "is no object; expected name, value and domain"
    for name in ("name", "value", "domain"):
        if not isinstance(given.get(name), str):
            return f"{name} is missing or no text"
    if not isinstance(given.get("path", "/"), str):
        return "path is no text"
    for name in ("secure", "httpOnly"):
        if not isinstance(given.get(name, False), bool):
            return f"{name} is not true or false"
    if given.get("sameSite", "Lax") not in SAME_SITE:
        return f"sameSite is none of {', '.join(SAME_SITE)}"
    expires = given.get("expires", -1)
    if type(expires) not in (int, float) or (expires < 0 and expires != -1):
        return "expires is no time in seconds since 1970, and not -1"
    return ""


def _browser_cookie(given: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: given[name] for name in COOKIE_FIELDS if name in given}
    made = {"name": given["name"], "value": given["value"], "domain": given["domain"], "path": "/", **kept}
    # -1 stands for the end of the session, which the browser wants left out.
    return made if given.get("expires", -1) == -1 else {**made, "expires": given["expires"]}

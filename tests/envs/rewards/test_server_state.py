"""The state of a real server: rows of SQLite files and JSON over HTTP, read only, within a
deadline."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from envs.egress import AllowList
from envs.rewards import grade_by_program, record_answers
from envs.sites.server_state import MAX_ROWS, SiteState
from envs.types import SiteError
from tests.builders import make_rubric
from tests.loopback import Quiet, serving

from .played import EVIDENCE

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER, item TEXT, total REAL, note TEXT, seal BLOB)")
        rows = [(12, "lamp", 42.5, None, b"\0\1"), (13, "chair", 1e999, "büro", None)]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
    return path


def sql(place: Path | str, query: str, database: str = "", **more: Any) -> list[tuple[Any, ...]]:
    return asyncio.run(SiteState(databases={"": place}, **more).sql(query, database))


def test_rows_as_they_are(shop: Path) -> None:
    assert sql(shop, "SELECT id, item, total, note FROM orders WHERE id = 12") == [(12, "lamp", 42.5, None)]
    assert sql(shop, "SELECT note FROM orders WHERE id = 13") == [("büro",)]
    assert sql(shop, "SELECT hex(seal) FROM orders WHERE id = 12") == [("0001",)]
    assert sql(shop, "SELECT id FROM orders WHERE id > 99") == []


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM orders",
        "INSERT INTO orders (id) VALUES (99) RETURNING id",
        "DROP TABLE orders",
        "PRAGMA user_version = 7",
        "PRAGMA table_info(orders)",
        "ATTACH 'other.sqlite' AS other",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT 1; DELETE FROM orders",
        "SELECT load_extension('evil')",
        "SELECT nothing FROM orders",
        "SELECT * FROM nowhere",
        "nonsense",
        "SELECT '\0'",
        "SELECT seal FROM orders WHERE id = 12",
        "SELECT total FROM orders WHERE id = 13",
        "SELECT zeroblob(100000000)",
    ],
)
def test_what_is_no_plain_reading_is_refused_and_changes_nothing(shop: Path, query: str) -> None:
    before = shop.read_bytes()
    with pytest.raises(SiteError) as caught:
        sql(shop, query)
    assert query.split("\0")[0][:20] in str(caught.value)
    assert shop.read_bytes() == before
    assert [file.name for file in shop.parent.iterdir()] == [shop.name]


def test_a_database_in_memory_is_read_only_too() -> None:
    uri = "file:state-of-a-test?mode=memory&cache=shared"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        assert sql(uri, "SELECT x FROM t") == [(1,)]
        with pytest.raises(SiteError):
            sql(uri, "DELETE FROM t")
        assert sql(uri, "SELECT x FROM t") == [(1,)]


def test_which_database(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="no database 'other'; there are: ''"):
        sql(shop, "SELECT 1", "other")
    with pytest.raises(SiteError, match="unable to open"):
        sql(tmp_path / "gone.sqlite", "SELECT 1")
    assert not (tmp_path / "gone.sqlite").exists()
    (tmp_path / "text.sqlite").write_text("this is no database, but long enough to be looked at as one" * 20)
    with pytest.raises(SiteError, match="not a database"):
        sql(tmp_path / "text.sqlite", "SELECT * FROM t")


def test_an_endless_query_ends_at_its_deadline(shop: Path) -> None:
    started = time.monotonic()
    with pytest.raises(SiteError, match=r"no rows within 0\.1 s"):
        sql(shop, ENDLESS, deadline=0.1)
    assert time.monotonic() - started < 5


def test_too_many_rows(shop: Path) -> None:
    many = ENDLESS.replace("max(i)", "i") + f" LIMIT {MAX_ROWS + 1}"
    with pytest.raises(SiteError, match="more than 10,000 rows"):
        sql(shop, many)


def test_the_size_of_all_rows_is_bounded(shop: Path) -> None:
    """Each value and the number of rows may be: 5,000 rows of 900,000 letters would be 4.5 GB."""
    each = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n LIMIT 5000"
    with pytest.raises(SiteError, match="more than 4,000,000 bytes; ask for less"):
        sql(shop, each.format("printf('%900000d', i)"))
    assert len(sql(shop, each.format("printf('%100d', i)"))) == 5000
    with pytest.raises(SiteError, match="too many columns"):
        sql(shop, f"SELECT {', '.join('1' * 501)}")


@pytest.mark.parametrize("shared", [True, False])
def test_while_somebody_writes_it_is_asked_again_until_the_deadline(tmp_path: Path, shared: bool) -> None:
    place: Path | str = "file:locked-in-a-test?mode=memory&cache=shared" if shared else tmp_path / "a.sqlite"
    with closing(sqlite3.connect(place, uri=shared, isolation_level=None, check_same_thread=False)) as writer:
        writer.execute("CREATE TABLE t (x)")
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(SiteError, match=r"no rows within 0\.2 s|locked"):
            sql(place, "SELECT x FROM t", deadline=0.2)
        done = Timer(0.3, lambda: writer.execute("COMMIT"))
        done.start()
        assert sql(place, "SELECT x FROM t") == [(1,)]
        done.join()


ANSWERS: dict[str, tuple[int, bytes]] = {
    "/api/order/12?full=1": (200, b'{"total": 42.5, "lines": [{"item": "lamp"}]}'),
    "/api/gone": (404, b"{}"),
    "/api/broken": (500, b"{}"),
    "/api/text": (200, b"hello"),
    "/api/moved": (302, b""),
    "/api/long": (200, b'"' + b"x" * 5_000_000 + b'"'),
}


class Api(Quiet):
    def do_GET(self) -> None:
        if self.path == "/api/slow":
            time.sleep(1)
        if self.path in ("/api/who", "/api/host"):
            status, body = 200, json.dumps(self.headers["Host" if "host" in self.path else "Authorization"]).encode()
        else:
            status, body = ANSWERS.get(self.path, (200, b"1"))
        self.answer(status, body, "application/json", Location="/api/order/12?full=1")


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with serving(Api) as origin:
        yield origin


def get(origin: str, path: str, **more: Any) -> Any:
    return asyncio.run(SiteState(origin=origin, **more).get_json(path))


def test_json_as_it_is(origin: str) -> None:
    assert get(origin, "/api/order/12?full=1") == {"total": 42.5, "lines": [{"item": "lamp"}]}
    assert get(origin, "/api/gone") is None


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/api/broken", "answered 500"),
        ("/api/text", "no JSON"),
        ("/api/moved", "answered 302"),
        ("/api/long", "longer than"),
        ("/api/slow", r"no answer within 0\.2 s"),
        ("@elsewhere.example/x", "is no path on"),
        (".elsewhere.example/x", "is no path on"),
    ],
)
def test_what_is_no_answer(origin: str, path: str, cause: str) -> None:
    with pytest.raises(SiteError, match=cause):
        get(origin, path, deadline=0.2 if "slow" in path else 5.0)


@pytest.mark.parametrize("value", ["Bearer se\ncret", "Bearer se\0cret", "Bearer secr\xe9t-secret", " secret"])
async def test_a_header_that_cannot_be_sent_is_named_without_its_value(origin: str, value: str) -> None:
    with pytest.raises(SiteError, match="the header authorization has characters") as caught:
        await SiteState(origin=origin, headers={"authorization": value}).get_json("/api/order/12")
    assert "cret" not in str(caught.value) and caught.value.__context__ is None


def test_nobody_there_and_no_origin(origin: str) -> None:
    with pytest.raises(SiteError, match="ConnectError"):
        get("http://127.0.0.1:1", "/")
    with pytest.raises(SiteError, match="no address"):
        get("", "/")


def test_a_site_of_others_is_asked_as_its_pages_are(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads to this machine is not, and what is connected to is the address that was
    checked."""
    port = int(origin.rpartition(":")[2])
    asked: list[str] = []

    def getaddrinfo(host: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        asked.append(name)
        answer = {"shop.example": "127.0.0.1", "net.example": "10.0.0.7"}.get(name, name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for name, cause in (("shop", "loopback"), ("net", "private")):
        theirs = f"http://{name}.example:{port}"
        with pytest.raises(SiteError, match=f"leads to an address that may not be reached: {cause}"):
            get(theirs, "/api/order/12?full=1", allow=AllowList.of(theirs))
    assert asked == ["shop.example", "net.example"]
    assert get(origin, "/api/order/12?full=1", allow=AllowList.of(origin))["total"] == 42.5
    local = f"http://localhost:{port}"
    assert get(local, "/api/host", allow=AllowList.of(local)) == f"localhost:{port}"
    assert set(asked[2:]) <= {"127.0.0.1", "::1"}


def test_credentials_are_sent_and_not_shown(origin: str) -> None:
    headers = {"Authorization": "Bearer hidden"}
    assert get(origin, "/api/who", headers=headers) == "Bearer hidden"
    assert "hidden" not in repr(SiteState(origin=origin, headers=headers))


async def test_facts_are_graded_with_it(shop: Path, origin: str) -> None:
    facts = [
        {"id": "row", "type": "server_sql", "query": "SELECT item FROM orders WHERE id = 12", "rows": [["lamp"]]},
        {
            "id": "json",
            "type": "server_http",
            "path": "/api/order/12?full=1",
            "at": ["lines", 0, "item"],
            "value": "desk",
        },
        {"id": "none", "type": "server_http", "path": "/api/broken", "value": 1},
    ]
    rubric = make_rubric(*facts)
    state = SiteState(origin=origin, databases={"": shop})
    said = await record_answers(rubric, state)
    bundle = grade_by_program(rubric, EVIDENCE.model_copy(update={"server": said}))
    assert [part.value for part in bundle.parts] == [1.0, 0.0, None]
    assert "answered 500" in bundle.parts[2].evidence

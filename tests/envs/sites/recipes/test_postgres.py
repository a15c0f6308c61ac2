"""Instances with PostgreSQL databases of their own, copies of the seeded one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from envs.sites.recipes import postgres
from envs.sites.recipes.build import build_site
from envs.sites.recipes.check import check_site
from envs.sites.recipes.postgres import PostgresServer, find_program
from envs.sites.recipes.recipe import read_recipe
from envs.sites.recipes.site import RecipeSite
from envs.types import SiteError

from .making import Visitor, visited
from .test_instances import TASK

APPLICATION = '''
import os
from urllib.parse import parse_qs

import psycopg

LOADED = os.environ["DATABASE_URL"]
HELD = []

def reached(url):
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True

def others(base):
    """Databases and roles that this instance reaches besides its own."""
    with psycopg.connect(base) as own:
        names = [row[0] for row in own.execute("SELECT datname FROM pg_database WHERE datname <> current_database()")]
    own = base.split("@/")[1].split("?")[0]
    urls = [base.replace(f"@/{own}?", f"@/{name}?") for name in names]
    return [name for name, url in zip(names, urls) if reached(url)]

def answer(path, value, url):
    if path == "/loaded":
        return str(reached(LOADED))
    if path == "/others":
        return " ".join(others(url)) or "none"
    if path == "/hold":
        HELD.append(psycopg.connect(url))
        if value:
            HELD[-1].execute(value)
        return str(len(HELD))
    with psycopg.connect(url) as shop:
        if path == "/buy":
            shop.execute("INSERT INTO orders (item) VALUES (%s)", (value,))
        if path == "/make":
            shop.execute("CREATE TABLE made (number int)")
        return ",".join(row[0] for row in shop.execute("SELECT item FROM orders ORDER BY id"))

def application(environ, start):
    value = parse_qs(environ["QUERY_STRING"]).get("value", [""])[0]
    text = answer(environ["PATH_INFO"], value, os.environ["DATABASE_URL"])
    start("200 OK", [("Content-Type", "text/plain")])
    return [text.encode()]

if __name__ == "__main__":
    with psycopg.connect(LOADED) as shop:
        shop.execute("CREATE TABLE orders (id serial, item text, made timestamptz DEFAULT now())")
        shop.execute("CREATE VIEW items AS SELECT item FROM orders")
        shop.execute("INSERT INTO orders (item) VALUES ('of the seed')")
'''
RECIPE: dict[str, Any] = {
    "kind": "wsgi",
    "build": {"packages": ["psycopg[binary]==3.2.13"], "code": "code", "seed": ["python", "-m", "ledger"]},
    "start": {"application": "ledger:application"},
    "warm": ["/"],
    "state": {"databases": {"": "postgresql:DATABASE_URL"}, "ephemeral": ["DATABASE_URL:*.made"]},
    "limits": {"free_memory_mb": 64, "disk_mb": 256},
    "check": {"requests": [{"path": "/buy?value=tea"}, {"path": "/make"}, {"path": "/"}]},
}


OURS = {"rollwright", "site", "seed", "template", "reader", "seeded_0", "postgres", "template0", "template1"}
"""Databases and roles of the server itself."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    try:
        find_program("postgres")
    except SiteError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("ledgers")
    (folder / "code").mkdir()
    (folder / "code" / "ledger.py").write_text(APPLICATION)
    path = folder / "ledger.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWRIGHT_SITE_BUILDS", str(folder / "builds"))
        build_site(read_recipe(path))
        yield path


@pytest.fixture(scope="module", params=["isolated", "plain"])
async def site(recipe: Path, request: pytest.FixtureRequest) -> AsyncIterator[RecipeSite]:
    made = RecipeSite(read_recipe(recipe), isolate=request.param == "isolated")
    try:
        await made.start()
        assert made.report is not None
        if request.param == "isolated" and not made.report.isolated:
            pytest.skip(f"no namespaces here: {made.report.notices}")
        yield made
    finally:
        await made.close()


async def test_each_instance_has_a_database_of_its_own(site: RecipeSite) -> None:
    check = await check_site(site, site.recipe)
    assert check.ok and check.changed == ["DATABASE_URL:made", "DATABASE_URL:orders"], check.differences
    async with visited(site) as one, visited(site) as two:
        assert await one.text("/buy?value=tea") == "of the seed,tea"
        assert await two.text("/") == "of the seed"
        assert await one.text("/others") == "none"
        warm = site.report is not None and site.report.warm
        assert await one.text("/loaded") == str(not warm), "forks would share the database that the template had"


async def test_grading_reads_the_database_of_its_episode(site: RecipeSite) -> None:
    episode = await site.open_episode(TASK, 0)
    try:
        assert episode.state is not None
        await Visitor(site, episode.instance).text("/buy?value=tea")
        query = "SELECT item, id, id / 2.0, NULL, id AS item FROM orders ORDER BY orders.id;"
        assert await episode.state.sql(query, "") == [("of the seed", 1, 0.5, None, 1), ("tea", 2, 1.0, None, 2)]
        for wrong in (
            "DELETE FROM orders",
            "SELECT 1) AS t; DROP TABLE orders; SELECT (1",
            "SELECT setval('orders_id_seq', 9)",
        ):
            with pytest.raises(SiteError, match="only one SELECT"):
                await episode.state.sql(wrong, "")
        with pytest.raises(SiteError, match="no database 'users'"):
            await episode.state.sql("SELECT 1", "users")
        assert (await episode.state.sql("SELECT count(*) FROM orders", "")) == [(2,)]
    finally:
        await episode.close()


@pytest.mark.parametrize("connected", [False, True])
async def test_a_fork_has_the_databases_of_its_episode(site: RecipeSite, connected: bool) -> None:
    assert not site.fork_problem()
    async with visited(site) as one:
        site.keep_answers(one.instance)
        await one.text("/buy?value=tea")
        await one.text("/make")
        if connected:
            await one.text("/hold")
        here = await site.hash_state(one.instance)
        left, right = forks = [Visitor(site, fork) for fork in await site.fork(one.instance, 2)]
        for fork in forks:
            assert await site.hash_state(fork.instance) == here, "before it has been asked anything"
            await site.go_on(fork.instance)
        assert await left.text("/buy?value=left") == "of the seed,tea,left"
        assert await right.text("/buy?value=right") == "of the seed,tea,right"
        assert await one.text("/buy?value=first") == "of the seed,tea,first"
        for visitor in (one, left, right):
            server = server_of(visitor)
            assert await server.rows(visitor.instance.name, "DATABASE_URL", "SELECT max(id) FROM orders") == [(3,)]
            assert await visitor.text("/others") == "none"
        await site.drop(right.instance)
        await site.drop(left.instance)
        assert await names_on(one) == {one.instance.name, f"{one.instance.name}_0", *OURS}


async def test_a_database_that_cannot_be_copied_refuses_the_fork(site: RecipeSite) -> None:
    async with visited(site) as one:
        site.keep_answers(one.instance)
        await one.text("/hold?value=LOCK TABLE orders")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(postgres, "COPY_SECONDS", 0.3)
            with pytest.raises(SiteError, match=r"database i\d+_0 (cannot be|is not) copied"):
                await site.fork(one.instance, 1)
        assert site.instances == 1 and await names_on(one) == {one.instance.name, f"{one.instance.name}_0", *OURS}


async def test_nothing_of_an_instance_is_left_on_the_server(site: RecipeSite) -> None:
    async with visited(site) as one:
        async with visited(site) as two:
            await two.text("/make")
        assert await names_on(one) == {one.instance.name, f"{one.instance.name}_0", *OURS}


async def test_a_session_that_ends_is_begun_anew(site: RecipeSite) -> None:
    async with visited(site) as one:
        session = server_of(one)._session
        assert session is not None and session.stdout is not None
        session.kill()
        async with asyncio.timeout(30):
            while not session.stdout.at_eof():
                await asyncio.sleep(0.01)
        async with visited(site) as two:
            assert await two.text("/buy?value=tea") == "of the seed,tea"
        session = server_of(one)._session
        assert session is not None
        session.send_signal(signal.SIGSTOP)
        launching = asyncio.create_task(site.launch())
        while not server_of(one)._using.locked():
            await asyncio.sleep(0)
        session.kill()
        with pytest.raises(SiteError, match="the connection to PostgreSQL ended"):
            await launching
        async with visited(site) as three:
            assert await three.text("/") == "of the seed"


def server_of(visitor: Visitor) -> PostgresServer:
    server = visitor.instance.template.postgres  # type: ignore[union-attr]
    assert server is not None
    return server


async def names_on(visitor: Visitor) -> set[str]:
    """Names of all databases and roles."""
    known = (
        "SELECT datname FROM pg_database UNION SELECT rolname FROM pg_roles WHERE rolname NOT LIKE 'pg!_%' ESCAPE '!'"
    )
    return {row[0] for row in await server_of(visitor).rows(visitor.instance.name, "DATABASE_URL", known)}


WORKER = """
import asyncio, sys
from pathlib import Path
from envs.sites.recipes.recipe import read_recipe
from envs.sites.recipes.site import RecipeSite

async def main():
    site = RecipeSite(read_recipe(Path(sys.argv[1])), isolate=sys.argv[2] == "True")
    await site.start()
    instance = await site.launch()
    print(instance.template.pid, instance.template.folder, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("isolate", [True, False])
def test_the_server_ends_with_a_killed_worker(recipe: Path, isolate: bool) -> None:
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, "-c", WORKER, str(recipe), str(isolate)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert worker.stdout is not None
    supervisor, place = worker.stdout.readline().split()
    tree = [psutil.Process(int(supervisor)), *psutil.Process(int(supervisor)).children(recursive=True)]
    assert any("postgres" in process.name() for process in tree)
    worker.kill()
    worker.wait()
    _, alive = psutil.wait_procs(tree, timeout=60)
    assert alive == [] and not Path(place).exists()

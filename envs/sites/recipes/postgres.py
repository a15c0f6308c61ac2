"""Databases of instances: copies of a seeded one, on a PostgreSQL server of the worker.

The build makes a cluster with the seeded databases. A template starts a server on a copy of it
(`envs.sites.site_guest.postgres`). Each instance has a role and databases of its own; the roles
are members of ``site``, which owns what the seed made and may connect to nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from envs.sites.recipes.engine import finished
from envs.sites.server_state import MAX_ROW_BYTES, MAX_ROWS
from envs.sites.site_guest import postgres as guest
from envs.sites.site_http import shortened
from envs.types import SiteError

DEBIAN = Path("/usr/lib/postgresql")
"""Folder in which Debian has the programs of each version."""
SUPERUSER = "rollwright"
READER = "reader"
"""Role of facts, which may read all tables and change none."""
TEMPLATE = "template"
"""Role of the template's own databases, which are dropped before the first instance."""
PASSWORD = "rollwright.password"
"""File of the cluster with the password of superuser and reader."""
CONNECTIONS = 50
"""Maximum of connections of one instance; the server has 500 for all."""
SQL_SECONDS = 60.0
"""Real seconds for one statement of ours."""
COPY_SECONDS = 30.0
"""Real seconds for the copy of a database that is in use, and for a lock that it waits for."""
STOP_SECONDS = 30.0
"""Real seconds in which the server of a build must end."""
_MARK = "rollwright-done"
_CONNECTED = "SELECT pid FROM pg_stat_activity WHERE datname = '{}'"
_TABLES = """
SELECT n.nspname, c.relname, a.attname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
ORDER BY 1, 2, a.attnum
"""


def find_program(name: str) -> str:
    """Return the path of a program of PostgreSQL, also where Debian keeps it off the path.

    Raises:
        SiteError: It is not installed.
    """
    folders = sorted(DEBIAN.glob("*/bin"), key=lambda place: float(place.parent.name))
    if place := shutil.which(name) or next((str(one / name) for one in reversed(folders) if (one / name).exists()), ""):
        return place
    raise SiteError(f"a recipe with a PostgreSQL database needs {name}, which is not installed; install PostgreSQL")


@contextmanager
def new_cluster(to: Path, variables: Sequence[str]) -> Iterator[dict[str, str]]:
    """Make a cluster with empty databases; what is written to them inside is what instances get.

    Gives the URLs of the databases by environment variable.

    Raises:
        SiteError: PostgreSQL is not installed, or does not start.
    """
    programs = {name: find_program(name) for name in ("initdb", "postgres", "psql")}
    with tempfile.TemporaryDirectory(prefix="rollwright-postgres-") as place:
        try:
            os.chmod(place, 0o711)
            folder, password, seeds = Path(place) / "server", secrets.token_hex(16), secrets.token_hex(16)
            data = guest.make_place(folder)
            owner = guest.server_user()
            given = Path(place) / "given"
            given.write_text(f"{password}\n")
            if owner:
                os.chown(given, owner["user"], owner["group"])
            command = [programs["initdb"], "-D", str(data), "-U", SUPERUSER, "--pwfile", str(given), "--no-sync"]
            options = ["--auth=scram-sha-256", "--locale=C.UTF-8", "--encoding=UTF8", "--wal-segsize=1"]
            subprocess.run(
                [*command, *options], check=True, capture_output=True, cwd=data, timeout=SQL_SECONDS, **owner
            )
            (data / PASSWORD).write_text(password)
            server = guest.start_server(programs["postgres"], data)
        except subprocess.CalledProcessError as error:
            raise SiteError(f"initdb failed: {error.stderr.decode(errors='replace').strip()}") from None
        except OSError as error:
            raise SiteError(str(error)) from error
        try:
            _run_sql(folder, password, _new_roles(password, seeds))
            for number, _ in enumerate(variables):
                _run_sql(folder, password, _new_database(f"seeded_{number}", "seed", "template0"))
                _run_sql(folder, password, ["GRANT ALL ON SCHEMA public TO site"], f"seeded_{number}")
            yield _urls(folder, "seed", seeds, [f"seeded_{number}" for number, _ in enumerate(variables)], variables)
            _run_sql(folder, password, ["ALTER ROLE seed NOLOGIN"])  # its URL may be in the state by now
            for number, _ in enumerate(variables):
                _run_sql(folder, password, _new_database(f"template_{number}", TEMPLATE, f"seeded_{number}"))
        finally:
            server.send_signal(signal.SIGINT)  # a shutdown that ends connections and writes everything
            server.wait(STOP_SECONDS)
        shutil.copytree(data, to)


def template_urls(folder: Path, variables: Sequence[str]) -> dict[str, str]:
    """Return the URLs that a template has until it is warm."""
    return _urls(folder, TEMPLATE, TEMPLATE, [f"{TEMPLATE}_{number}" for number, _ in enumerate(variables)], variables)


class PostgresServer:
    """The databases of a template's instances. Used in one event loop."""

    def __init__(self, folder: Path, variables: Sequence[str]) -> None:
        """
        Args:
            folder: Folder of the server's socket.
            variables: Environment variables with the URLs, one for each database.
        """
        self._folder = folder
        self._variables = tuple(variables)
        self._password = (folder / "data" / PASSWORD).read_text()
        self._passwords = dict[str, str]()
        self._session: asyncio.subprocess.Process | None = None
        self._using = asyncio.Lock()
        self._batches = itertools.count()

    async def start(self) -> None:
        """Connect, and drop the template's databases: an instance that still had their URL would
        share them with all others."""
        await self._run([f"DROP DATABASE {TEMPLATE}_{number} WITH (FORCE)" for number, _ in enumerate(self._variables)])

    async def close(self) -> None:
        """Disconnect. The server ends with the template."""
        if self._session is not None and self._session.returncode is None:
            self._session.kill()
            await self._session.wait()

    async def create(self, instance: str, source: str = "") -> dict[str, str]:
        """Make role and databases of an instance; return their URLs by environment variable.

        Args:
            source: Instance whose databases are copied in place of the seeded ones.

        Raises:
            SiteError: The server refuses.
        """
        password, names = secrets.token_hex(16), self._databases(instance)
        self._passwords[instance] = password
        originals = self._databases(source) if source else [f"seeded_{number}" for number, _ in enumerate(names)]
        connected = [name for name in originals if source and await self._run([_CONNECTED.format(name)])]
        await self._run(
            [
                f"CREATE ROLE {instance} LOGIN CONNECTION LIMIT {CONNECTIONS} PASSWORD '{password}' IN ROLE site",
                f"ALTER ROLE {instance} SET role = site",
                *(
                    statement
                    for name, original in zip(names, originals, strict=True)
                    for statement in _new_database(name, instance, "template0" if original in connected else original)
                ),
            ]
        )
        for name, original in zip(names, originals, strict=True):
            if original in connected:
                await asyncio.to_thread(self._write_again, source, original, instance, name)
        return _urls(self._folder, instance, password, names, self._variables)

    def _write_again(self, source: str, original: str, instance: str, name: str) -> None:
        """Copy a database that is in use into an empty one, each as the role of its instance.

        The server itself copies only a database to which no application is connected.
        """
        _run_sql(self._folder, self._password, ["GRANT ALL ON SCHEMA public TO site"], name)
        there, wait = ["--no-password", "--host", str(self._folder)], f"--lock-wait-timeout={COPY_SECONDS:g}s"
        restore = [find_program("pg_restore"), *there, "--role=site", "--no-owner", "--no-privileges"]
        restore += ["--exit-on-error", "--single-transaction", "--dbname", name]
        with subprocess.Popen(
            [find_program("pg_dump"), *there, wait, "--format=custom", "--compress=0", original],
            env=self._own_environment(source),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as dump:
            try:
                restored = subprocess.run(
                    restore,
                    env=self._own_environment(instance),
                    stdin=dump.stdout,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    timeout=COPY_SECONDS,
                )
                problems = dump.communicate(timeout=COPY_SECONDS)[1] + restored.stderr
            except subprocess.TimeoutExpired:
                raise SiteError(f"database {original} is not copied after {COPY_SECONDS:g} s") from None
            finally:
                dump.kill()
        if dump.returncode or restored.returncode:
            raise SiteError(f"database {original} cannot be copied: {problems.decode(errors='replace').strip()}")

    def _own_environment(self, instance: str) -> dict[str, str]:
        """Return an environment in which an instance's role has also the rights of its own."""
        return {**_environment(instance, self._passwords[instance]), "PGOPTIONS": "-c role=none"}

    async def drop(self, instance: str) -> None:
        """Drop databases and role of an instance, if they are there."""
        self._passwords.pop(instance, None)
        await self._run(
            [
                *(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in self._databases(instance)),
                f"DROP ROLE IF EXISTS {instance}",
            ]
        )

    async def rows(
        self, instance: str, variable: str, query: str, seconds: float = SQL_SECONDS
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a ``SELECT``, read by a role that can change nothing.

        Raises:
            SiteError: The query fails, takes too long or gives too many rows.
        """
        name = self._databases(instance)[self._variables.index(variable)]
        wrapped = f"SELECT row_to_json(result) FROM (\n{query.rstrip().rstrip(';')}\n) AS result LIMIT {MAX_ROWS + 1}"
        environment = _environment(READER, self._password)
        environment["PGOPTIONS"] = f"-c statement_timeout={round(1000 * seconds)} -c default_transaction_read_only=on"
        asked = await asyncio.create_subprocess_exec(
            *_psql(self._folder, name),
            *("--record-separator-zero", "--command", wrapped),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=MAX_ROW_BYTES,
        )
        try:
            async with asyncio.timeout(seconds + 1):
                output, errors = await asked.communicate()
        except TimeoutError:
            raise SiteError(f"{shortened(query)}: no rows within {seconds:g} s") from None
        finally:
            if asked.returncode is None:
                asked.kill()
                await asked.wait()
        if asked.returncode:
            cause = errors.decode(errors="replace").strip().splitlines()[0]
            raise SiteError(f"{shortened(query)}: {cause} (only one SELECT is allowed)")
        lines = output.split(b"\0")[:-1]
        if len(lines) > MAX_ROWS or len(output) > MAX_ROW_BYTES:
            raise SiteError(
                f"{shortened(query)}: gives more than {MAX_ROWS:,} rows or {MAX_ROW_BYTES:,} bytes; ask for less"
            )
        return [_values(line, query) for line in lines]

    async def hash_state(self, instance: str, ignored: Sequence[str]) -> dict[str, str]:
        """Return a hash of the rows of each table, by ``VARIABLE:TABLE``.

        Args:
            ignored: Patterns of tables (``DATABASE_URL:session``) and columns, as for SQLite files.
        """
        parts = dict[str, str]()
        for variable in self._variables:
            columns = dict[tuple[str, str], list[str]]()
            for schema, table, column in await self.rows(instance, variable, _TABLES):
                columns.setdefault((schema, table), []).append(column or "")
            for (schema, table), names in columns.items():
                shown = f"{variable}:{table}" if schema == "public" else f"{variable}:{schema}.{table}"
                kept = [name for name in names if name and not _matches(f"{shown}.{name}", ignored)]
                if not _matches(shown, ignored):
                    query = _hash_query(f"{_quoted(schema)}.{_quoted(table)}", kept)
                    ((parts[shown],),) = await self.rows(instance, variable, query)
        return parts

    def _databases(self, instance: str) -> list[str]:
        return [f"{instance}_{number}" for number, _ in enumerate(self._variables)]

    async def _run(self, statements: Sequence[str]) -> list[str]:
        """Run statements as the superuser, and return the rows; a caller that is cancelled does not
        cut them short."""
        try:
            return await asyncio.shield(asyncio.ensure_future(self._run_all(statements)))
        except TimeoutError:
            raise SiteError(f"PostgreSQL has not done it after {SQL_SECONDS:g} s: {statements[0]}") from None

    async def _run_all(self, statements: Sequence[str]) -> list[str]:
        async with self._using, asyncio.timeout(SQL_SECONDS):
            session = await self._connected()
            assert session.stdin is not None and session.stdout is not None
            session.stdin.write("".join(f"{statement};\n" for statement in statements).encode())
            mark = f"{_MARK}-{next(self._batches)}\n"
            session.stdin.write(f"\\echo {mark}".encode())
            lines = list[str]()
            while (line := (await session.stdout.readline()).decode()) != mark:
                if not line:
                    raise SiteError(f"the connection to PostgreSQL ended: {' '.join(lines)}")
                lines = [] if line.startswith(_MARK) else [*lines, line.strip()]  # of a batch that was given up
        if problems := [line for line in lines if "ERROR:" in line or "FATAL:" in line]:
            raise SiteError(f"PostgreSQL: {problems[0]}")
        return lines

    async def _connected(self) -> asyncio.subprocess.Process:
        """Return the session of `_run`, which is begun anew where the last one has ended."""
        if self._session is None or self._session.stdout is None or self._session.stdout.at_eof():
            if self._session is not None:
                await self._session.wait()
            self._session = await asyncio.create_subprocess_exec(
                *_psql(self._folder, "postgres"),
                env=_environment(SUPERUSER, self._password),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        return self._session


def _new_roles(password: str, seeds: str) -> list[str]:
    return [
        "CREATE ROLE site",
        f"CREATE ROLE seed LOGIN PASSWORD '{seeds}' IN ROLE site",
        "ALTER ROLE seed SET role = site",
        f"CREATE ROLE {TEMPLATE} LOGIN PASSWORD '{TEMPLATE}' IN ROLE site",
        f"ALTER ROLE {TEMPLATE} SET role = site",
        f"CREATE ROLE {READER} LOGIN PASSWORD '{password}' IN ROLE pg_read_all_data",
        "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
        "REVOKE CONNECT ON DATABASE template1 FROM PUBLIC",
    ]


def _new_database(name: str, owner: str, template: str) -> list[str]:
    """Return the statements of a database that its owner and the reader alone may connect to."""
    return [
        f"CREATE DATABASE {name} TEMPLATE {template} OWNER {owner}",
        f"REVOKE ALL ON DATABASE {name} FROM PUBLIC",
        f"GRANT CREATE, TEMPORARY ON DATABASE {name} TO site",
        f"GRANT CONNECT ON DATABASE {name} TO {READER}",
    ]


def _run_sql(folder: Path, password: str, statements: Sequence[str], database: str = "postgres") -> None:
    words = [word for statement in statements for word in ("--command", statement)]
    command = [*_psql(folder, database), "--set", "ON_ERROR_STOP=1", *words]
    done = finished(command, SQL_SECONDS, env=_environment(SUPERUSER, password))
    if done.returncode:
        raise SiteError(f"PostgreSQL: {done.stderr.strip()}")


def _psql(folder: Path, database: str) -> list[str]:
    options = ["--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "--no-password"]
    return [find_program("psql"), *options, "--host", str(folder), "--dbname", database]


def _environment(role: str, password: str) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "PGUSER": role, "PGPASSWORD": password, "LC_ALL": "C.UTF-8"}


def _urls(folder: Path, role: str, password: str, databases: Sequence[str], variables: Sequence[str]) -> dict[str, str]:
    return {
        variable: f"postgresql://{role}:{password}@/{database}?host={folder}"
        for variable, database in zip(variables, databases, strict=True)
    }


def _hash_query(table: str, columns: Sequence[str]) -> str:
    row = f"ROW({', '.join(map(_quoted, columns))})::text"
    return (
        f"SELECT left(md5(coalesce(string_agg(line, E'\\n' ORDER BY line COLLATE \"C\"), '')), 16) "
        f"FROM (SELECT {row} AS line FROM {table}) AS lines"
    )


def _values(line: bytes, query: str) -> tuple[Any, ...]:
    """Return the values of a row; a name may be there twice."""
    values = tuple(value for _, value in json.loads(line, object_pairs_hook=tuple))
    if any(isinstance(value, list | tuple) for value in values):
        raise SiteError(f"{shortened(query)}: a value is JSON or an array; select it as text (…::text)")
    return values


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)

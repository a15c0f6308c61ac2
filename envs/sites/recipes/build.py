"""Builds a recipe's environment and state, once, into a folder named by the recipe's hash.

::

    NAME-HASH/
      code/           copy of the recipe's code
      env/            environment of the pinned packages; none if the recipe has no packages
      state/          what the seed wrote: every instance begins with it
      postgres/       cluster with the seeded databases; none if the recipe has no such database
      manifest.json   written last: without it the build is not finished

The build of a container has a manifest alone, which names the image.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from envs.atomic import open_atomic
from envs.sites.recipes.engine import BUILD_SECONDS, find_engine, finished
from envs.sites.recipes.postgres import new_cluster
from envs.sites.recipes.recipe import SiteRecipe
from envs.types import SiteError

BUILDS = "ROLLWRIGHT_SITE_BUILDS"
"""Environment variable with the folder of all builds; storage that workers share is possible."""
PYTHONS = tuple((3, minor) for minor in range(11, 15))
"""Versions of Python whose builds any process can use."""
MAX_SHOWN_LINES = 15
"""Last lines of a failed command that an error shows."""


@dataclass(frozen=True)
class SiteBuild:
    """The build of a recipe, finished or not."""

    recipe: SiteRecipe
    folder: Path

    @property
    def finished(self) -> bool:
        """True once it can be used."""
        return (self.folder / "manifest.json").is_file()

    @property
    def state(self) -> Path:
        """Folder of the seeded state; an instance sees its own at the same path."""
        return self.folder / "state"

    @property
    def code(self) -> Path:
        """Folder of the recipe's code."""
        return self.folder / "code"

    @property
    def cluster(self) -> Path:
        """Folder of the PostgreSQL cluster with the seeded databases."""
        return self.folder / "postgres"

    @property
    def image(self) -> str:
        """Id of the image of a container."""
        return str(orjson.loads((self.folder / "manifest.json").read_bytes())["image"])

    @property
    def python(self) -> Path:
        """Python of the site: its environment's, or this process's if it has no packages."""
        return self.folder / "env" / "bin" / "python" if self.recipe.build.packages else Path(sys.executable)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of seed, template and instances."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TZ", "TMPDIR") if name in os.environ}
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", "/usr/bin:/bin")])
        return {
            **kept,
            "PATH": path,
            "PYTHONPATH": str(self.code),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SITE_STATE": str(self.state),
            **self.recipe.start.environment,
        }

    def require_finished(self) -> None:
        """Check that it is built.

        Raises:
            SiteError: It is not; says how to build it.
        """
        if not self.finished:
            raise SiteError(
                f"site {self.recipe.name} is not built here ({self.folder} is missing or unfinished); "
                f"run: python -m flows.sites build {self.recipe.name}"
            )


def builds_folder() -> Path:
    """Return the folder of all builds."""
    return Path(os.environ.get(BUILDS) or "~/.cache/rollwright/sites").expanduser().resolve()


def build_of(recipe: SiteRecipe) -> SiteBuild:
    """Return the build of a recipe as it is now; a changed recipe has another one.

    A site with packages runs on its build's own Python. If this process's version has no build, a
    finished one of another version is returned.
    """
    own = sys.version_info[:2]
    others = [version for version in PYTHONS if version != own] if recipe.build.packages else []
    builds = [
        SiteBuild(recipe, builds_folder() / f"{recipe.name}-{recipe.fingerprint(version)}")
        for version in (own, *others)
    ]
    return next((build for build in builds if build.finished), builds[0])


def build_site(recipe: SiteRecipe, say: Callable[[str], None] = lambda line: None) -> SiteBuild:
    """Build a recipe, unless it is built. Another process that builds it is waited for.

    Raises:
        SiteError: A command failed; shows its last lines.
    """
    build = build_of(recipe)
    if recipe.kind == "container":
        return _build_image(build, say)
    if not recipe.served_by_process or build.finished:
        return build
    with _locked(build.folder):
        if build.finished:
            return build
        if build.folder.exists():
            shutil.rmtree(build.folder)  # of a build that was interrupted
        build.folder.mkdir(parents=True)
        begun = time.monotonic()
        packages = _make_environment(build, say)
        if recipe.build.code:
            shutil.copytree(recipe.path_of(recipe.build.code), build.code, ignore=shutil.ignore_patterns("__pycache__"))
            # Instances write no bytecode, and the first one would compile everything.
            _run(build, [str(build.python), "-m", "compileall", "-q", str(build.code)], "compile the code")
        else:
            build.code.mkdir()
        if recipe.build.files:
            shutil.copytree(recipe.path_of(recipe.build.files), build.state)
        else:
            build.state.mkdir()
        _seed(build, say)
        manifest: dict[str, Any] = {
            "site": recipe.name,
            "packages": packages,
            "seconds": round(time.monotonic() - begun, 1),
        }
        _write_manifest(build, manifest)
    return build


@contextmanager
def in_use(build: SiteBuild) -> Iterator[None]:
    """Keep a build from being cleaned meanwhile."""
    with _lock_file(build.folder).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def clean_builds(recipes: Iterable[SiteRecipe]) -> list[Path]:
    """Remove builds that no recipe has now and no process uses, and return their folders."""
    wanted = {build_of(recipe).folder.name for recipe in recipes}
    old = [folder for folder in sorted(builds_folder().glob("*-*")) if folder.is_dir() and folder.name not in wanted]
    removed = []
    for folder in old:
        with _lock_file(folder).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            manifest = folder / "manifest.json"
            if manifest.is_file() and (image := orjson.loads(manifest.read_bytes()).get("tag")):
                find_engine().remove_image(image)
            shutil.rmtree(folder)
            removed.append(folder)
    return removed


def _seed(build: SiteBuild, say: Callable[[str], None]) -> None:
    """Run the seed, with new databases where the recipe has some."""
    steps, variables = build.recipe.build.seed, sorted(build.recipe.state.postgres.values())
    command = [str(build.python) if word == "python" else word for word in steps]
    made: AbstractContextManager[dict[str, str]] = nullcontext({})
    if variables:
        made = new_cluster(build.cluster, variables)
    with made as urls:
        if command:
            say(f"seed: {shlex.join(steps)}")
            _run(build, command, "build.seed", urls=urls)


def _build_image(build: SiteBuild, say: Callable[[str], None]) -> SiteBuild:
    """Build or fetch the image of a container, unless it is on this machine."""
    engine = find_engine()
    with _locked(build.folder):
        if not build.finished or not engine.has_image(build.image):
            try:
                manifest = engine.image_of(build.recipe, say)
            except SiteError as error:
                raise SiteError(f"site {build.recipe.name}: {error}") from None
            build.folder.mkdir(exist_ok=True)
            _write_manifest(build, {"site": build.recipe.name, **manifest})
    return build


def _write_manifest(build: SiteBuild, manifest: dict[str, Any]) -> None:
    with open_atomic(build.folder / "manifest.json") as file:
        file.write(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))


def _make_environment(build: SiteBuild, say: Callable[[str], None]) -> list[str]:
    """Make the environment of the packages, and return all that it holds."""
    packages = build.recipe.build.packages
    if not packages:
        return []
    folder = build.folder / "env"
    say(f"environment: {len(packages)} packages into {folder}")
    _run(build, [sys.executable, "-m", "venv", "--without-pip", str(folder)], "make the environment", site=False)
    pip = [sys.executable, "-m", "pip", "--python", str(build.python), "--disable-pip-version-check"]
    _run(build, [*pip, "install", "--quiet", *packages], "build.packages", site=False)
    return _run(build, [*pip, "freeze"], "list the packages", site=False).split()


def _run(
    build: SiteBuild,
    command: list[str],
    what: str,
    *,
    site: bool = True,
    urls: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run a command of a build and return its output.

    Args:
        site: True to run it in the site's environment and its state folder.
        urls: Databases by environment variable.
    """
    environment = {**build.environment(), **urls} if site else None
    cwd = build.state if site and build.state.is_dir() else build.folder
    try:
        done = finished(command, BUILD_SECONDS, cwd=cwd, env=environment)
    except SiteError as error:
        raise SiteError(f"site {build.recipe.name}: {what}: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-MAX_SHOWN_LINES:]
        raise SiteError(
            f"site {build.recipe.name}: {what} failed with status {done.returncode}; correct the recipe "
            f"{build.recipe.folder / build.recipe.name}.yaml. Its last lines:\n" + "\n".join(lines)
        )
    return done.stdout


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a build, so that two processes do not build the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock_file(folder).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

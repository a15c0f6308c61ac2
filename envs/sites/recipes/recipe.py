"""Recipes of sites: YAML files that say how a site is built, started and checked."""

from __future__ import annotations

import os
import re
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from envs.egress.addresses import as_address, canonical_host, is_local_name
from envs.types import ConfigError
from envs.types.near import near

SHIPPED = Path(__file__).resolve().parents[3] / "deployments" / "sites"
"""Folder of the project's own recipes."""
FOLDERS = "ROLLWRIGHT_SITES"
"""Environment variable with further folders of recipes, separated as in ``PATH``."""
NOT_BUILT_YET = {
    "live": "a live site needs no recipe: name its host as the task's site",
    "external": "a site that you serve needs no recipe: give its address (tasks.addresses)",
}
"""Kinds that other systems have and this one has not, each with what to do instead."""
_PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9._,-]+\])?==[A-Za-z0-9.!+_-]+")
POSTGRES = "postgresql:"
"""Beginning of a database that is no SQLite file; the rest is an environment variable."""
_IMAGE = re.compile(r"([^@\s]+@)?sha256:[0-9a-f]{64}")


class RecipePart(BaseModel):
    """Base of a recipe's blocks: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BuildSteps(RecipePart):
    """Steps that are taken once: an environment and the seeded state."""

    packages: tuple[str, ...] = Field((), description="Packages from PyPI, each as NAME==VERSION.")
    code: str = Field("", description="Folder on the path of imports, relative to the recipe.")
    seed: tuple[str, ...] = Field((), description="Command that fills the state folder; python is the site's own.")
    files: str = Field("", description="Folder that is copied into the state folder before the seed.")
    context: str = Field("", description="Folder with the Dockerfile of kind container, relative to the recipe.")

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        if loose := [package for package in self.packages if not _PINNED.fullmatch(package)]:
            raise ValueError(f"packages: {loose[0]!r} has no version; write NAME==VERSION")
        return self


class StartSteps(RecipePart):
    """Steps that start an instance."""

    application: str = Field("", description="module:name of the WSGI or ASGI application, or of ours.")
    command: tuple[str, ...] = Field(
        (),
        description="Command of kind process, with {port} and {state} filled in; of kind container, else its image's.",
    )
    image: str = Field("", description="Image of kind container: NAME@sha256:… or the id of a local one.")
    port: int = Field(8080, ge=1, le=65535, description="Port of the server in its container.")
    temporary: tuple[str, ...] = Field(("/tmp",), description="Folders of a container that are in memory.")
    after_fork: str = Field("", description="module:function that makes handles anew in each instance.")
    environment: dict[str, str] = Field({}, description="Environment variables; $SITE_STATE is there too.")
    folder: str = Field("", description="Folder of pages of kind static, relative to the recipe.")
    recording: str = Field("", description="HTTP archive of kind mirror (.har or .zip), relative to the recipe.")
    address: str = Field("", pattern="^(https?://[^/]+)?$", description="Origin in the recording that is the site's.")
    ignored: tuple[str, ...] = Field((), description="Query and form fields of kind mirror that do not count.")


class ReadyCheck(RecipePart):
    """Condition under which an instance may be entered."""

    path: str = Field("/", pattern="^/", description="Path that answers below 400 once it is ready.")
    seconds: float = Field(30.0, gt=0, le=600, description="Real seconds until it must.")


class StateFiles(RecipePart):
    """Files that an episode may change, as patterns below the state folder."""

    folders: tuple[str, ...] = Field((), description="Folders of a container that an episode may change.")
    databases: dict[str, str] = Field(
        {},
        description='SQLite files, or postgresql:VARIABLE, by the name of facts; "" is the main one. The environment '
        "variable has the URL of an instance's own database.",
    )
    derived: tuple[str, ...] = Field((), description="Files that the application makes of others (an index).")
    ephemeral: tuple[str, ...] = Field(
        (), description="Files that do not matter (logs); tables as FILE:TABLE, columns as FILE:TABLE.COLUMN."
    )
    memory: bool = Field(False, description="True if the process holds state that no file has.")

    @property
    def postgres(self) -> dict[str, str]:
        """Environment variables of PostgreSQL databases, by the name of facts."""
        return {name: text.removeprefix(POSTGRES) for name, text in self.databases.items() if text.startswith(POSTGRES)}

    @model_validator(mode="after")
    def _variables(self) -> Self:
        for variable in self.postgres.values():
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*", variable):
                raise ValueError(f"databases: {variable!r} is no environment variable; write postgresql:DATABASE_URL")
        return self


class InstanceLimits(RecipePart):
    """Bounds of a worker's instances."""

    ahead: int = Field(0, ge=0, le=100, description="Instances that are started before an episode asks.")
    launches: int = Field(2, ge=1, le=64, description="Launches at one time.")
    free_memory_mb: int = Field(1024, ge=0, description="Free memory below which a launch is refused.")
    disk_mb: int = Field(4096, ge=128, description="Size of the image that holds the state of all instances.")
    memory_mb: int = Field(1024, ge=64, description="Private memory of each process of an instance.")
    processes: int = Field(256, ge=4, description="Processes and threads of an instance.")
    open_files: int = Field(1024, ge=64, description="Open files of each process of an instance.")
    written_mb: int = Field(256, ge=8, description="What an instance may write, temporary files included.")


class RecordedRequest(RecipePart):
    """One request of a check. Cookies that answers set are sent with the next ones."""

    path: str = Field(pattern="^(https://[^/]+)?/", description="Path, or an address on a host of kind group.")
    form: dict[str, str] | None = Field(None, description="Fields that are sent with POST.")
    token: str = Field("", description="Name of a hidden field in the page before, whose value is sent too.")
    body: dict[str, Any] | list[Any] | None = Field(None, description="JSON that is sent with POST, without a form.")

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if self.body is not None and (self.form is not None or self.token):
            raise ValueError("body: is JSON, in place of form and token; leave these out")
        return self


class CheckSteps(RecipePart):
    """Requests that `flows.sites check` plays, and what may differ."""

    requests: tuple[RecordedRequest, ...] = ()
    ignore: tuple[str, ...] = Field((), description="Patterns of text in answers that may differ.")

    @model_validator(mode="after")
    def _patterns(self) -> Self:
        for pattern in self.ignore:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"ignore: {pattern!r} is no pattern: {error}") from None
        return self


class SiteRecipe(RecipePart):
    """One site. Its name is that of its file."""

    name: str
    folder: Path
    """Folder of the file; other paths are relative to it."""
    kind: Literal["static", "app", "wsgi", "asgi", "process", "container", "mirror", "group"]
    about: str = Field("", description="What the site is, in a line.")
    tasks: str = Field("", description="File of its tasks, relative to the recipe; their ids are NAME/….")
    build: BuildSteps = BuildSteps()
    start: StartSteps = StartSteps()
    warm: tuple[str, ...] = Field((), description="Paths that the template asks before it is forked.")
    ready: ReadyCheck = ReadyCheck()
    state: StateFiles = StateFiles()
    limits: InstanceLimits = InstanceLimits()
    check: CheckSteps = CheckSteps()
    hosts: tuple[str, ...] = Field((), description="Further origins that its pages may reach.")
    sites: dict[str, str] = Field({}, description="Recipes of kind group, by the host that each serves.")
    login: str = Field("", description="Playwright storage state in the state folder, or beside a container's recipe.")
    viewport: tuple[int, int] = (1280, 720)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind == "group" or self.sites:
            return self._checked_group()
        if self.kind == "container":
            return self._checked_container()
        key = {"static": "folder", "process": "command", "mirror": "recording"}.get(self.kind, "application")
        if not getattr(self.start, key):
            raise ValueError(f"start.{key}: is missing; kind {self.kind} needs it")
        if key == "application" and not re.fullmatch(r"[\w.]+:\w+", self.start.application):
            raise ValueError(f"start.application: {self.start.application!r} is no module:name")
        if self.start.after_fork and not re.fullmatch(r"[\w.]+:\w+", self.start.after_fork):
            raise ValueError(f"start.after_fork: {self.start.after_fork!r} is no module:function")
        return self

    def _checked_group(self) -> Self:
        if self.kind != "group" or not self.sites:
            raise ValueError("sites: are those of kind group, by host; give both or neither")
        for host in self.sites:
            if canonical_host(host) != host or as_address(host) or is_local_name(host) or "." not in host:
                raise ValueError(f"sites: {host!r} is no name of a host; write it as in shop.example")
        return self

    def _checked_container(self) -> Self:
        if bool(self.start.image) == bool(self.build.context):
            raise ValueError("start.image: kind container needs either it or build.context, a folder with a Dockerfile")
        if self.start.image and not _IMAGE.fullmatch(self.start.image):
            raise ValueError(
                f"start.image: {self.start.image!r} may change; write NAME@sha256:… or the id of a local image, sha256:…"
            )
        for key in ("packages", "code", "seed", "files"):
            if getattr(self.build, key):
                raise ValueError(f"build.{key}: is not for kind container; put it into the Dockerfile of build.context")
        for folder in (*self.state.folders, *self.start.temporary, *self.state.databases.values()):
            if not re.fullmatch(r"(/[^/:]+)+", folder):
                raise ValueError(f"state: {folder!r} is no path in a container; write it as in /var/lib/shop")
        return self

    @property
    def served_by_process(self) -> bool:
        """True if each episode has a server process of its own, which needs a build."""
        return self.kind in ("wsgi", "asgi", "process", "container")

    @property
    def built_names(self) -> tuple[str, ...]:
        """Names of the recipes that are built for it: itself, or those of its hosts."""
        return tuple(dict.fromkeys(self.sites.values())) or (self.name,)

    def path_of(self, name: str) -> Path:
        """Return a path of the recipe, relative to its folder."""
        return (self.folder / name).resolve()

    def fingerprint(self, python: tuple[int, int]) -> str:
        """Return a hash of the recipe's build, of the files that it names, and of Python's
        version."""
        steps = self.build.model_dump_json(exclude={"context"})  # whose files are hashed below
        digest = sha256(f"{python} {self.kind} {steps}".encode())
        digest.update(f"{sorted(self.start.environment.items())}".encode())
        if self.kind == "container":
            digest.update(self.start.image.encode())
        digest.update(" ".join(sorted(self.state.postgres.values())).encode())
        for name in filter(None, (self.build.code, self.build.files, self.build.context)):
            for file in sorted(self.path_of(name).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    digest.update(f"{file.relative_to(self.path_of(name))}\0".encode() + file.read_bytes() + b"\0")
        return digest.hexdigest()[:16]


def recipe_files() -> dict[str, Path]:
    """Return the files of all recipes by name; a folder of the user's wins over the project's."""
    return {file.stem: file for folder in _folders() for file in sorted(folder.glob("*.yaml"))}


def is_recipe(name: str) -> bool:
    """Return True if there is a recipe of this name."""
    return "/" not in name and any((folder / f"{name}.yaml").is_file() for folder in _folders())


def find_recipe(name: str) -> SiteRecipe:
    """Return the recipe of a name.

    Raises:
        ConfigError: There is none (the message suggests similar names), or its file is wrong.
    """
    files = recipe_files()
    if name not in files:
        known = f"there are {', '.join(sorted(files))}" if files else "there is none"
        raise ConfigError(
            f"no recipe {name!r}; {near(name, files)}{known} in {SHIPPED} and the folders of ${FOLDERS}; "
            f"write {name}.yaml there"
        )
    return read_recipe(files[name])


def read_recipe(path: Path) -> SiteRecipe:
    """Read a recipe's file.

    Raises:
        ConfigError: It cannot be read or is wrong; names the file, the key and the fix.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; correct the path") from None
    return _parsed(path.resolve(), text)


def _folders() -> list[Path]:
    return [SHIPPED, *(Path(text) for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text)]


@cache
def _parsed(path: Path, text: str) -> SiteRecipe:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a block of keys is expected, such as kind: wsgi")
    kind = values.get("kind")
    if kind in NOT_BUILT_YET:
        raise ConfigError(f"{path}: kind: {kind} is not built yet; {NOT_BUILT_YET[kind]}")
    if taken := {"name", "folder"} & values.keys():
        raise ConfigError(f"{path}: {min(taken)}: is no key; the name is that of the file. Leave it out")
    try:
        recipe = SiteRecipe(**values, name=path.stem, folder=path.parent)
    except ValidationError as error:
        raise ConfigError("; ".join(_explained(path, values, one) for one in error.errors())) from None
    for key in ("code", "files", "context"):
        name = getattr(recipe.build, key)
        if name and not recipe.path_of(name).is_dir():
            raise ConfigError(f"{path}: build.{key}: {recipe.path_of(name)} is no folder; correct it")
    if recipe.tasks and not recipe.path_of(recipe.tasks).is_file():
        raise ConfigError(f"{path}: tasks: {recipe.path_of(recipe.tasks)} is no file; correct it")
    return recipe


def _explained(path: Path, values: dict[str, Any], problem: Any) -> str:
    """Return one problem with its key and the fix."""
    place = [str(part) for part in problem["loc"]]
    key = ".".join(place)
    if problem["type"] == "extra_forbidden":
        block: type[BaseModel] = SiteRecipe
        for part in place[:-1]:
            kind = block.model_fields[part].annotation if part in block.model_fields else None
            block = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else RecordedRequest
        known = [name for name in block.model_fields if name not in ("name", "folder")]
        return f"{path}: {key}: is no key; {near(place[-1], known)}the keys are {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{path}: {key}: is missing; give it"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not place:
        return f"{path}: {message}"
    if problem["type"] == "value_error":
        return f"{path}: {key}.{message}"
    return f"{path}: {key}: got {problem['input']!r}; {message}"

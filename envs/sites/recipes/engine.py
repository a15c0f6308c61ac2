"""Runs the command of Docker or Podman, and removes containers that killed workers left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from envs.sites.recipes.recipe import SiteRecipe
from envs.types import SiteError

ENGINE = "ROLLWRIGHT_CONTAINER_ENGINE"
"""Environment variable with the command of the engine."""
ENGINES = ("docker", "podman")
"""Commands that are tried without it."""
COMMAND_SECONDS = 60.0
"""Real seconds for one command of the engine."""
BUILD_SECONDS = 1800.0
"""Real seconds for one command of a build: an image is fetched, or packages are compiled."""
OWNER_LABEL = "rollwright.owner"
"""Label of a container with the process that it belongs to."""
REPOSITORY = "rollwright-site"
"""First part of the names of images that recipes build."""
_IS_GONE = re.compile("no such container|already in progress", re.IGNORECASE)


def finished(command: Sequence[str], seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Return a command that has ended, with its output.

    Args:
        options: Options of `subprocess.run`.

    Raises:
        SiteError: It cannot be run, or takes too long.
    """
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=seconds, **options
        )
    except OSError as error:
        raise SiteError(f"{command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise SiteError(f"{' '.join(command[:2])}: not over after {seconds:g} s") from None


@dataclass(frozen=True)
class ContainerEngine:
    """The engine of this machine."""

    command: str

    def run(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        """Run its command and return the output.

        Raises:
            SiteError: It fails; shows its last line.
        """
        status, output, errors = self.attempt(*arguments, seconds=seconds)
        if status:
            raise SiteError(f"{self.command} {arguments[0]}: {_last_line(errors or output)}")
        return output

    def attempt(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> tuple[int, str, str]:
        """Run its command and return exit status, output and errors.

        Raises:
            SiteError: It takes too long.
        """
        done = finished([self.command, *arguments], seconds)
        return done.returncode, done.stdout, done.stderr

    def has_image(self, image: str) -> bool:
        """Return True if an image is on this machine."""
        return self.attempt("image", "inspect", image)[0] == 0

    def image_of(self, recipe: SiteRecipe, say: Callable[[str], None]) -> dict[str, str]:
        """Build or fetch the image of a recipe; return its id, and its name if it was built.

        Raises:
            SiteError: It cannot be built or fetched.
        """
        if recipe.build.context:
            name = f"{REPOSITORY}/{recipe.name}:{recipe.fingerprint(sys.version_info[:2])}"
            say(f"image: {self.command} build {recipe.path_of(recipe.build.context)}")
            self.run("build", "--tag", name, str(recipe.path_of(recipe.build.context)), seconds=BUILD_SECONDS)
            return {"image": self._id_of(name), "tag": name}
        if not self.has_image(recipe.start.image):
            say(f"image: {self.command} pull {recipe.start.image}")
            self.run("pull", recipe.start.image, seconds=BUILD_SECONDS)
        return {"image": self._id_of(recipe.start.image)}

    def remove_image(self, name: str) -> None:
        """Remove an image that a recipe built, if it is there."""
        if self.has_image(name):
            self.run("image", "rm", name)

    def remove(self, *containers: str) -> None:
        """End containers and remove them with their volumes; those that are gone stay so."""
        if containers:
            status, _, errors = self.attempt("rm", "--force", "--volumes", *containers)
            lines = [line for line in errors.splitlines() if not _IS_GONE.search(line)]
            if status and lines:
                raise SiteError(f"{self.command} rm: {lines[-1]}")

    def remove_leftovers(self) -> list[str]:
        """Remove the containers of processes that have ended; return their ids."""
        ids = self.run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={OWNER_LABEL}").split()
        if not ids:
            return []
        _, output, _ = self.attempt("inspect", "--type", "container", *ids)  # one may have gone meanwhile
        left = [one["Id"] for one in orjson.loads(output) if _is_left(one)]
        self.remove(*left)
        return left

    def _id_of(self, image: str) -> str:
        text = self.run("image", "inspect", "--format", "{{.Id}}", image).strip()
        return text if text.startswith("sha256:") else f"sha256:{text}"


def find_engine() -> ContainerEngine:
    """Return the engine that answers: the one that is named, else Docker, else Podman.

    Raises:
        SiteError: None does; says why, and what to do.
    """
    named, problems = os.environ.get(ENGINE), list[str]()
    for command in [named] if named else ENGINES:
        if shutil.which(command) is None:
            problems.append(f"{command} is not installed")
            continue
        engine = ContainerEngine(command)
        status, _, errors = engine.attempt("ps", "--quiet")
        if not status:
            return engine
        problems.append(f"{command}: {_last_line(errors)}")
    raise SiteError(
        f"kind container needs a running Docker or Podman: {'; '.join(problems)}. Install and start one, or name "
        f"its command in ${ENGINE}"
    )


def owner_of_containers() -> str:
    """Return the value of the label for containers of this process."""
    return f"{_this_system()} {os.getpid()} {_begin_of(os.getpid())}"


def _is_left(container: dict[str, Any]) -> bool:
    """Return True if the process of a container has ended.

    Of another system (a machine with the same engine, or this one before it was started anew) it
    is not known; such a container is left if it does not run.
    """
    label = container["Config"]["Labels"][OWNER_LABEL]
    system, _, process = label.rpartition(" ")[0].rpartition(" ")
    if system != _this_system():
        return container["State"]["Status"] in ("exited", "dead")
    return bool(label != f"{system} {process} {_begin_of(int(process))}")


def _this_system() -> str:
    """Return the start of the kernel and the process namespace, in which a process id is unique."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _begin_of(pid: int) -> str:
    """Return when a process began, in ticks of the kernel; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        return ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]

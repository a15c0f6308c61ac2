"""The installer of the pinned Chromium: where packages come from, and that none of another hash is
used."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loopback import Quiet, serving

SCRIPT = Path(__file__).parents[1] / "scripts/install_chromium.py"
FONT = "package/400Regular/Arimo_400Regular.ttf"


def tarball(**files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, data in {FONT: b"a font", "package/README.md": b"words", **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


PACKAGE = tarball()
INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(PACKAGE).digest()).decode()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("install_chromium", SCRIPT)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    monkeypatch.setattr(found.shutil, "which", lambda _name: None)
    return found


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a registry with one package was asked for."""
    asked: list[str] = []

    class Registry(Quiet):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(200 if "arimo" in self.path else 404, PACKAGE)

    with serving(Registry) as origin:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", f"{origin}/npm/")
        yield asked


def test_a_package_is_fetched_from_the_registry_that_the_variable_names(module: Any, registry: list[str]) -> None:
    assert module.fetch("@fonts/arimo", "0.4.3", INTEGRITY) == PACKAGE
    assert registry == ["/npm/@fonts/arimo/-/arimo-0.4.3.tgz"]


def test_a_package_of_another_hash_is_refused(module: Any, registry: list[str]) -> None:
    with pytest.raises(module.SetupError, match=r"has the hash sha512-.*do not use that registry"):
        module.fetch("@fonts/arimo", "0.4.3", INTEGRITY.lower())


def test_a_package_that_cannot_be_had_says_what_to_do(module: Any, registry: list[str]) -> None:
    with pytest.raises(module.SetupError, match=r"none@1 cannot be downloaded \(HTTP Error 404.*NPM_CONFIG_REGISTRY"):
        module.fetch("none", "1", INTEGRITY)


@pytest.mark.parametrize("fails", [False, True])
def test_a_folder_is_replaced_as_a_whole_or_left(
    fails: bool, module: Any, registry: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "chromium"
    folder.mkdir()
    (folder / "pinned.json").write_text("an older one")
    pinned = tmp_path / "wanted.json"
    pinned.write_text(json.dumps({"packages": {"arimo": {"version": "1", "integrity": INTEGRITY}}}))
    ran: list[tuple[str, ...]] = []

    def run(*command: str, **_: Any) -> str:
        ran.append(command)
        if fails:
            raise OSError("it does not start")
        return ""

    monkeypatch.setattr(module, "PINNED", pinned)
    monkeypatch.setattr(module, "run", run)
    install: Callable[[Path], None] = module.main
    if fails:
        with pytest.raises(OSError, match="does not start"):
            install(folder)
        assert (folder / "pinned.json").read_text() == "an older one"
    else:
        install(folder)
        install(folder)  # is there already
        assert len(ran) == 2 and len(registry) == 1
        assert [each.name for each in (folder / "fonts").iterdir()] == ["Arimo_400Regular.ttf"]
    assert {each.name for each in tmp_path.iterdir()} == {"chromium", "wanted.json"}, "nothing half made stays"


@pytest.mark.parametrize("old", [False, True])
def test_libraries_are_unpacked_also_by_the_python_of_debian_12(
    old: bool, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.2 has neither `tarfile.data_filter` nor the argument ``filter``."""
    extractall = tarfile.TarFile.extractall
    if old:
        monkeypatch.delattr(tarfile, "data_filter")
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda archive, path: extractall(archive, path))
    monkeypatch.setattr(module, "decompress", lambda data: data)
    module.unpack(tarball(**{"package/bin/swiftshader.tar.br": PACKAGE}), tmp_path)
    assert (tmp_path / FONT).read_bytes() == b"a font"

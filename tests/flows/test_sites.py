"""The command ``flows.sites`` on a recipe of its own, in its process and as a flow run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows.sites import main

RECIPE = {
    "kind": "wsgi",
    "about": "One page.",
    "build": {"code": "code", "seed": ["python", "-c", "open('count', 'w').write('0')"]},
    "start": {"application": "page:application"},
    "warm": ["/"],
    "limits": {"free_memory_mb": 64, "disk_mb": 256},
}
PAGE = """
import time
def application(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [CONTENT]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLWRIGHT_SITES", str(tmp_path))
    monkeypatch.setenv("ROLLWRIGHT_SITE_BUILDS", str(tmp_path / "builds"))
    monkeypatch.setattr("envs.sites.recipes.recipe.SHIPPED", tmp_path / "none")
    (tmp_path / "code").mkdir()
    write(tmp_path, 'b"a page"')
    return tmp_path


def write(folder: Path, content: str) -> None:
    (folder / "code" / "page.py").write_text(PAGE.replace("CONTENT", content))
    (folder / "page.yaml").write_text(yaml.safe_dump(RECIPE))


def test_a_site_is_built_checked_and_cleaned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0 and capsys.readouterr().out.split()[:4] == ["page", "wsgi", "not", "built"]
    assert main(["check", "page"]) == 1 and "python -m flows.sites build page" in capsys.readouterr().err
    assert main(["build"]) == 0
    assert main(["check", "page"]) == 0 and "page: alike" in capsys.readouterr().out
    write(folder, "str(time.time()).encode()")
    assert main(["build", "page"]) == 0
    assert main(["check", "page"]) == 1 and "a clock" in capsys.readouterr().out
    assert main(["clean"]) == 0 and "1 builds removed" in capsys.readouterr().out
    assert main(["list"]) == 0 and capsys.readouterr().out.split()[:3] == ["page", "wsgi", "built"]


def test_a_wrong_name_or_recipe_is_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "pages"]) == 2 and "did you mean page?" in capsys.readouterr().err
    (folder / "page.yaml").write_text("kind: wsgi")
    assert main(["check", "page"]) == 2 and "start.application: is missing" in capsys.readouterr().err
    assert main(["list"]) == 0 and "start.application: is missing" in capsys.readouterr().out

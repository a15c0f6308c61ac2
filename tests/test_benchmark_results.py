"""The recorded results of benchmarks: what stays and what is replaced when one runs again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import Figure, adapter_steps, record
from benchmarks.adapter_steps.arms import ARMS


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the recorded results and of README.md, which `record` works on."""
    shutil.copytree(record.RESULTS, tmp_path / "results")
    shutil.copy(record.README, tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(record, "README", tmp_path / "README.md")
    return tmp_path


@pytest.mark.parametrize(("whole", "others"), [(True, 0), (False, 3)])
def test_a_part_replaces_its_figures_and_a_whole_run_all(results: Path, whole: bool, others: int) -> None:
    old = record.read("nodes")
    new = Figure("update, one machine", 6.54321, "s", "")
    record.write(record.merge(old, [new], whole=whole))
    written = record.read("nodes")
    assert written.notes == old.notes and written.headline == old.headline
    assert {figure.name: figure.value for figure in written.figures}[new.name] == 6.543
    kept = [figure for figure in written.figures if figure.name != new.name]
    assert len(kept) == others and all(figure in old.figures for figure in kept)


def test_the_table_has_headlines_and_missed_targets(results: Path) -> None:
    missed = Figure("a figure that is in no headline", 2.0, "s", "<= 1")
    met = Figure("another one", 1.0, "s", "<= 1")
    record.write(record.merge(record.read("nodes"), [missed, met], whole=False))
    page = (results / "README.md").read_text()
    assert f"|{missed.name}|2 s|**missed**: <= 1|" in page
    assert met.name not in page and "|update, two machines / one|1.015 ratio||" in page
    assert page.count("## Results") == 1 and record.with_table(page) == page


async def test_an_adapter_without_its_environment_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(adapter_steps.NAMES) == set(ARMS)
    monkeypatch.setattr(adapter_steps, "ROOT", tmp_path)
    assert await adapter_steps.figures(["verl"]) == []
    assert "verl is left out: scripts/setup_frameworks verl" in capsys.readouterr().err

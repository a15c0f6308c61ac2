"""The terminal: what a person types is done in the page, and what it shows is the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.repl import main
from envs.types import Trajectory


def test_a_person_plays_an_episode_and_saves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = iter(
        [
            ":save early.json",
            "fly away",
            'type [1] "Nathalie"',
            "",
            ":nothing",
            ":screenshot seen.jpg",
            "click [2]",
            ":save",
            ":reset x",
            ":reset 8",
            ":quit",
        ]
    )
    assert main(["miniwob/enter-text", "--seed", "7"], lambda prompt: next(lines)) == 0
    said = capsys.readouterr().out
    assert "error: the episode is not over yet" in said and not (tmp_path / "early.json").exists()
    assert "error: no command :nothing; there are :reset" in said and "invalid literal" in said
    assert 'textbox "" value "Nathalie"' in said
    assert "The episode is over (done): reward 1.0\n`:reset` begins another episode." in said
    assert said.count("Task: ") == 5, "the first page, that of each action, refused or not, and the next episode's"
    assert (tmp_path / "seen.jpg").read_bytes().startswith(b"\xff\xd8") and (tmp_path / "screenshot.jpg").exists()
    saved = Trajectory.model_validate_json((tmp_path / "episode.json").read_text())
    assert [step.action.type for step in saved.steps] == ["invalid", "type", "click"] and saved.seed == 7


def test_an_unknown_task_is_refused_and_the_end_of_input_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["miniwob/click-tset"]) == 2
    assert "did you mean" in capsys.readouterr().err

    def end(prompt: str) -> str:
        raise EOFError

    assert main(["miniwob/click-test"], end) == 0

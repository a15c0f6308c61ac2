"""Where no episode has a reward the success is unknown: null in files, a gap in curves, a word in
tables."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image

from envs.types import PolicyError, TrainingError
from tasks_lib.config import EvaluateConfig, WarmStartConfig
from tasks_lib.folder.metrics import MetricsLog, episode_figures, format_share, success, success_by_kind
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics
from tasks_lib.loops.base import describe_iteration
from tasks_lib.loops.results import result_sentence, write_result
from tasks_lib.report import artifacts, build_report, learning_curve_png
from tasks_lib.report.charts import DrawnSeries
from tasks_lib.report.curve import learning_curves
from tasks_lib.report.data import read_run
from tasks_lib.report.summary import headline, kind_rows
from tasks_lib.rollouts.evaluation import evaluate_version
from tasks_lib.warm_start.stages import WarmStart, check_gate, measured_rows, measured_words
from training.ledger.store import RunStore, read_json, write_json

MakeRun = Callable[..., Any]
NOTHING = {"mean": None, "low": None, "high": None, "n": 0}
SOME = {"mean": 0.5, "low": 0.1, "high": 0.9, "n": 4}


def evaluation(version: int, found: dict[str, Any], **kinds: dict[str, Any]) -> dict[str, Any]:
    return {"version": version, **found, "by_kind": kinds, "episodes": [], "abstained": 4, "seconds": 7.0}


def rewrite(run: Any, version: int, found: dict[str, Any], **kinds: dict[str, Any]) -> None:
    """Another evaluation of a version in a made-up run, in its file and in its metrics."""
    changed = {**found, "by_kind": kinds}
    path = run.store.evaluation_path(version)
    write_json(path, read_json(path) | changed)
    lines = [orjson.loads(line) for line in run.store.metrics_path.read_bytes().splitlines()]
    lines = [line | changed if line["kind"] == "evaluation" and line["version"] == version else line for line in lines]
    run.store.metrics_path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def test_nothing_graded_is_unknown_by_kind_too(synthetic_group: Any) -> None:
    lost = synthetic_group("i000000-g0000", [None, None])
    some = synthetic_group("i000000-g0001", [1.0, 0.0], kind="enter-text")
    assert success(lost.episodes) == NOTHING and success([]) == NOTHING
    assert success_by_kind([lost, some]) == {"click-test": NOTHING, "enter-text": success(some.episodes)}
    assert success(some.episodes)["mean"] == 0.5
    assert success(synthetic_group("i0-g0", [0.0]).episodes)["mean"] == 0.0, "a failure is known"


def test_an_evaluation_that_is_there_is_read_as_unknown(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    write_json(store.evaluation_path(3), evaluation(3, NOTHING, a=NOTHING, b=SOME))
    found = evaluate_version(SimpleNamespace(store=store), 3, [], episodes=4, workers=1)  # type: ignore[arg-type]
    assert found == evaluation(3, NOTHING, a=NOTHING, b=SOME)


def test_metrics_have_null_and_tensorboard_no_point(tmp_path: Path, synthetic_group: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    figures = episode_figures([synthetic_group("i000000-g0000", [None, None])])
    assert figures["success"] is None and figures["success_by_kind"] == {"click-test": NOTHING}
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    log.append(EvaluationMetrics.model_validate(evaluation(0, NOTHING, a=NOTHING, b=SOME), extra="ignore"), 0)
    log.append(IterationMetrics(iteration=0, **figures), 0)
    log.close()
    assert log.lines(EvaluationMetrics)[0].mean is None
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["tensors"])
    assert {"evaluation/n", "evaluation/by_kind/a/n", "evaluation/by_kind/b/mean"} <= tags
    assert not tags & {
        "evaluation/mean",
        "evaluation/low",
        "evaluation/by_kind/a/mean",
        "iteration/success",
        "evaluation/by_kind/a/high",
    }


def test_a_result_has_null_and_its_sentence_says_unknown(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    write_json(store.evaluation_path(0), evaluation(0, NOTHING, a=NOTHING, b=NOTHING))
    write_json(store.evaluation_path(2), evaluation(2, SOME, a=NOTHING, b=SOME))
    run: Any = SimpleNamespace(
        store=store,
        version=2,
        metrics=SimpleNamespace(lines=lambda _model: []),
        journal=SimpleNamespace(episodes=dict, abstentions=dict),
        config=SimpleNamespace(run_id="r", preset="", seed=0, evaluation=SimpleNamespace(split="held_out")),
    )
    result = write_result(run, set_up=1.0, loop=2.0, peak_rss_mb=3.0)
    assert (result["success_before"], result["success_after"]) == (NOTHING, SOME)
    assert result["success_by_kind"] == {
        "a": {"before": None, "after": None, "n": 0},
        "b": {"before": None, "after": 0.5, "n": 4},
    }
    assert read_json(store.result_path)["success_before"] == NOTHING
    assert "success unknown, no episode has a reward -> 0.50 [0.10, 0.90] over 2 task kinds (" in result_sentence(
        result
    )
    assert " over 1 task kind (" in result_sentence({**result, "success_by_kind": {"b": {}}})


def test_the_report_says_unknown(make_run: MakeRun) -> None:
    run = make_run(iterations=1, every=1, finished=False)
    rewrite(run, 0, NOTHING, **{"click-test": NOTHING, "enter-text": SOME})
    rewrite(run, 1, SOME, **{"click-test": SOME, "enter-text": NOTHING})
    data = read_run(run.root)
    assert not data.problems and [e.mean for e in data.evaluations] == [None, 0.5]
    assert {row.kind: (row.before, row.after, set(row.unknown)) for row in kind_rows(data)} == {
        "click-test": (None, 0.5, {"before"}),
        "enter-text": (0.5, None, {"after"}),
    }
    page = build_report(run.root).read_text()
    head = page[page.index('<p class="result">') : page.index('<p class="facts">')]
    assert (
        "<b>unknown</b>" in head and "no episode has a reward" in head and "<b>0.50</b>" in head and "0.00" not in head
    )
    kinds = page[page.index('<table class="kinds">') :]
    kinds = kinds[: kinds.index("</table>")]
    assert kinds.count(">unknown<") == 2 and "0.00" not in kinds and kinds.count('<circle class="before"') == 1
    assert "<td>v0</td><td>unknown</td><td>–</td><td>0</td>" in page
    assert "held-out unknown, no episode has a reward" in page


def test_a_finished_runs_report_says_unknown(make_run: MakeRun) -> None:
    run = make_run(iterations=1, every=1)
    rewrite(run, 0, SOME, **{"click-test": NOTHING, "enter-text": SOME})
    result = read_json(run.store.result_path)
    changes = {
        "click-test": {"before": NOTHING["mean"], "after": 0.5, "n": 4},
        "enter-text": {"before": 0.5, "after": NOTHING["mean"], "n": 0},
    }
    write_json(run.store.result_path, result | {"success_after": NOTHING, "success_by_kind": changes})
    data = read_run(run.root)
    assert not data.problems
    after = headline(data).after
    assert after is not None and (after.mean, after.low, after.high, after.n) == (None, None, None, 0)
    assert {row.kind: set(row.unknown) for row in kind_rows(data)} == {
        "click-test": {"before"},
        "enter-text": {"after"},
    }
    assert "<b>unknown</b>" in build_report(run.root).read_text()


def test_an_evaluation_alone_says_unknown(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "e")
    store.root.mkdir()
    config = EvaluateConfig.model_validate({"run_id": "e", "root": str(tmp_path)}).model_dump(mode="json")
    write_json(store.config_path, {"config": config, "versions": {}, "git_commit": None})
    write_json(store.evaluation_path(0), evaluation(0, NOTHING, **{"click-test": NOTHING}))
    page = build_report(store.root).read_text()
    assert (
        "Success <b>unknown</b>" in page
        and 'class="n"><span class="quiet">unknown</span>' in page
        and "0.00" not in page
    )


def evaluated(folder: Path, *found: dict[str, Any]) -> Path:
    """A run's folder with nothing but its evaluations, one of each version."""
    lines = [{"kind": "evaluation", **evaluation(version, each)} for version, each in enumerate(found)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return folder


def test_the_curve_leaves_a_gap(tmp_path: Path) -> None:
    def held_out(*found: dict[str, Any]) -> DrawnSeries:
        chart = learning_curves(read_run(evaluated(tmp_path / "r", *found)))["updates"]
        return next(series for series in chart.series if series.name == "held-out")

    line = held_out(SOME, SOME, NOTHING, SOME, SOME)
    assert line.path.count("M") == line.band.count("M") == line.path.count("L") == 2
    assert [x for x, _ in line.dots] == [x for x, _, _ in line.whiskers] == [0.0, 25.0, 75.0, 100.0]
    assert {y for _, y in line.dots} == {50.0}
    whole = held_out(SOME, SOME, SOME)
    assert (whole.path.count("M"), whole.band.count("M"), len(whole.dots)) == (1, 1, 3)
    none = held_out(NOTHING, NOTHING)
    assert (none.path, none.band, none.dots) == ("", "", ())


def test_null_over_episodes_is_a_problem_of_the_page(tmp_path: Path) -> None:
    run = read_run(evaluated(tmp_path / "r", SOME, {**SOME, "low": None}))
    assert [e.version for e in run.evaluations] == [0]
    assert (
        "metrics.jsonl line 2 is no evaluation: " in run.problems[0]
        and "low is null, over 4 episodes" in run.problems[0]
    )


def test_the_picture_leaves_a_gap(tmp_path: Path) -> None:
    def low_blue(*found: dict[str, Any]) -> int:
        """Pixels of the held-out line's colour near success 0, where that of the other versions is
        not."""
        data = learning_curve_png(evaluated(tmp_path / "r", *found))
        picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
        blue = np.abs(picture - (0, 0x72, 0xB2)).sum(axis=2) < 30
        return int(blue[480:560].sum())

    assert low_blue(SOME, SOME, SOME) == low_blue(SOME, NOTHING, SOME) == low_blue(NOTHING, NOTHING) == 0
    assert low_blue(SOME, {**SOME, "mean": 0.0}, SOME) > 0, "a success of 0 is drawn"


def test_what_is_printed_and_published_of_an_iteration_says_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (format_share(None), format_share(0.0), format_share(0.9544)) == ("unknown", "0.000", "0.954")
    line = IterationMetrics.model_validate(
        {
            "iteration": 0,
            "version": 1,
            "success": None,
            "success_by_kind": {"a": NOTHING, "b": SOME},
            "groups": {"total": 2, "zero_variance": 2},
            "seconds": {"rollout": 1.0, "train": 1.0, "orchestrate": 1.0},
            "train": {"ess": 0.5, "kl_by_images": {"1": 0.25}},
            "asynchronous": {"staleness": {"0": 3, "2": 1}, "timeline": [("groups", 1.0, 2.0)]},
        }
    )
    assert describe_iteration(line).startswith("iteration   0: success unknown, 0/2 groups")
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(artifacts, "create_table_artifact", lambda **given: made.append(given))
    artifacts.publish_iteration_table("r", line)
    assert made[0]["table"][:2] == [{"what": "a", "value": None, "n": 0}, {"what": "b", "value": 0.5, "n": 4}]
    assert made[0]["description"] == "Iteration 0: success unknown with version 0"
    values = {row["what"]: row["value"] for row in made[0]["table"]}
    assert (values["train: ess"], values["train: kl_by_images/1"]) == (0.5, 0.25)
    assert (values["asynchronous: staleness/0"], values["asynchronous: staleness/2"]) == (3, 1)


@pytest.mark.parametrize("gate", [0.0, 0.25])
def test_what_is_unknown_does_not_pass_the_gate(gate: float) -> None:
    with pytest.raises(
        PolicyError, match=r"success .* is unknown, which does not pass the gate of .*none of 4 episodes has a reward"
    ):
        check_gate(evaluation(0, NOTHING, a=NOTHING), gate)
    below = evaluation(0, {**SOME, "mean": 0.1}, a=NOTHING, b={**SOME, "mean": 0.1})
    with pytest.raises(PolicyError, match=r"kinds below it: b 0\.10, a unknown\."):
        check_gate(below, 0.25)


def test_a_warm_starts_measurements_are_told_where_one_is_unknown() -> None:
    sampled, greedy = evaluation(0, SOME, a=SOME, b=NOTHING), evaluation(0, NOTHING, a=NOTHING, b=NOTHING)
    assert measured_rows(sampled, greedy) == [
        {"kind": "a", "sampled": 0.5, "greedy": None},
        {"kind": "b", "sampled": None, "greedy": None},
    ]
    assert measured_words(sampled, greedy) == "validation success 0.500 sampled, unknown greedy (n = 4 and 0)"


def test_demonstrations_without_a_reward_are_not_called_failures(tmp_path: Path) -> None:
    write_json(tmp_path / "demonstrations.json", evaluation(0, NOTHING, a=NOTHING))
    run: Any = SimpleNamespace(store=RunStore(tmp_path), config=WarmStartConfig())
    with pytest.raises(TrainingError, match="none of 4 demonstrations has a reward, so nothing is known of them"):
        WarmStart.demonstrate(run, workers=1)

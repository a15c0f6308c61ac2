"""The warm start: refused below its gate, gone on with from what is there, and published with what
it scores."""

from __future__ import annotations

import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from envs.bundled.generate import GeneratorSpec, generate
from envs.tasks import load_tasks, save_tasks
from envs.types import ConfigError, PolicyError, Split
from flows.warm_start import warm_start
from tasks_lib.config import PROJECT, WarmStartConfig, merge, parse_assignments, resolve
from tasks_lib.config.parameters import parameters_of
from tasks_lib.warm_start.stages import check_gate, open_warm_start, select_demonstrable
from tests.chat_endpoint import completion, endpoint
from training.ledger.checkpoint_files import MANIFEST, RECIPE
from training.ledger.journal import read_group
from training.ledger.store import RunStore, read_json, write_json
from training.policy.renderer import Renderer
from training.serving.vllm.probe import TransformersScorer

from .services import PrefectServer
from .test_vllm import recorded

READER = PROJECT / "datasets" / "policies" / "reader"
KINDS = ("click-checkboxes-large", "enter-text")
"""One that the reader solves at times, and one that it hardly can."""
KEY, SECRET = "ROLLWRIGHT_TEST_FLOW_TEACHER_KEY", "sk-of-nobody"


def config(tmp_path: Path, **changes: object) -> WarmStartConfig:
    return WarmStartConfig.model_validate({"root": str(tmp_path), "run_id": "ws", **changes})


def measured(mean: float, **kinds: float) -> dict:
    by_kind = {kind: {"mean": value} for kind, value in kinds.items()}
    return {"mean": mean, "low": 0.0, "high": 1.0, "n": 10, "by_kind": by_kind}


def test_the_gate_names_the_kinds_below_and_what_to_change():
    check_gate(measured(0.25, good=0.5, bad=0.0), 0.25)
    with pytest.raises(
        PolicyError, match=r"0\.240 .*gate of 0\.25.*: bad 0\.10, poor 0\.20\. .*cloning_updates"
    ) as caught:
        check_gate(measured(0.24, good=0.5, poor=0.2, bad=0.1), 0.25)
    assert "good" not in str(caught.value)


def test_all_kinds_with_an_oracle_are_taken_unless_some_are_named(tmp_path):
    everything = load_tasks(PROJECT / "datasets" / "tasks" / "miniwob.jsonl")
    chosen = select_demonstrable(config(tmp_path))
    assert 40 < len(chosen) < len(everything)
    mute = next(task.kind for task in everything if task not in chosen)
    named = {"tasks": {"kinds": [mute]}}
    assert [task.kind for task in select_demonstrable(config(tmp_path, **named))] == [mute]
    with pytest.raises(ConfigError, match=f"no scripted oracle for {mute}"):
        select_demonstrable(config(tmp_path, cloning_updates=1, **named))


def test_generated_tasks_are_taken_if_their_solution_is_known(tmp_path):
    file = tmp_path / "set.jsonl"
    whole, other = generate(GeneratorSpec(count=2, splits={Split.DEMO: 1}))
    part = whole.model_copy(update={"task_id": f"{whole.task_id}~0123456789ab"})
    save_tasks(file, [whole, part, other])
    wanted = {"tasks": {"file": str(file)}, "cloning_updates": 1}
    assert select_demonstrable(config(tmp_path, **wanted)) == [whole, other]
    named = {"file": str(file), "kinds": [whole.kind]}
    with pytest.raises(ConfigError, match=f"for {whole.kind}; leave them out.* is no id of a generated task"):
        select_demonstrable(config(tmp_path, tasks=named, cloning_updates=1))
    assert part in select_demonstrable(config(tmp_path, tasks=named))
    save_tasks(file, [part])
    with pytest.raises(ConfigError, match=f"no scripted oracle for {whole.kind}"):
        select_demonstrable(config(tmp_path, **wanted))


@pytest.mark.parametrize(("missing", "there"), [("demo", "validation"), ("validation", "demo")])
def test_too_few_tasks_are_told_before_anything_is_done(tmp_path, missing, there):
    file = tmp_path / "set.jsonl"
    save_tasks(file, list(generate(GeneratorSpec(count=2, splits={Split(there): 1}))))
    wanted = config(tmp_path, tasks={"file": str(file)}, cloning_updates=1, demonstrations=2, gate_episodes=2)
    with (
        pytest.raises(ConfigError, match=f"2 tasks, none with {missing} seeds; they have {there}"),
        open_warm_start(wanted),
    ):
        pass
    assert not RunStore(tmp_path / "ws").tasks_path.exists(), "with a better file the same run can be begun"


def test_a_folder_of_someone_else_is_not_replaced(tmp_path):
    (tmp_path / "theirs").mkdir()
    wanted = config(tmp_path, output=str(tmp_path / "theirs"))
    with pytest.raises(ConfigError, match="theirs is there and not of this run"), open_warm_start(wanted):
        pass


def test_a_warm_start_goes_on_with_its_own_settings_only(tmp_path):
    for gate in (0.25, 0.1):
        with open_warm_start(config(tmp_path, gate=gate)) as run:
            assert not run.finished
    changed = config(tmp_path, cloning_updates=3, seed=1)
    with pytest.raises(ConfigError, match="other values of: seed, cloning_updates"), open_warm_start(changed):
        pass


def test_a_warm_start_of_before_a_key_was_there_goes_on_with_its_default(tmp_path):
    with open_warm_start(config(tmp_path)) as run:
        path = run.store.config_path
    written = read_json(path)
    del written["config"]["rollout"]["prewarm"], written["config"]["trainer"]["torch_threads"]
    write_json(path, written)
    with open_warm_start(config(tmp_path)):
        assert "prewarm" in read_json(path)["config"]["rollout"]
    write_json(path, written)
    changed = config(tmp_path, rollout={"prewarm": 0})
    with pytest.raises(ConfigError, match="other values of: rollout "), open_warm_start(changed):
        pass


def test_a_base_that_is_no_checkpoint_is_named(tmp_path):
    wanted = config(tmp_path, base=str(tmp_path / "nowhere"))
    with (
        open_warm_start(wanted) as run,
        pytest.raises(PolicyError, match=r"base: .*nowhere is no Hugging Face checkpoint"),
    ):
        run.pre_train()


def settings_of(root: Path, **changes: object) -> list[str]:
    """A small warm start's settings, as a command has them."""
    settings = {
        "root": root,
        "run_id": "tiny",
        "base": "datasets/policies/reader",
        "tasks.kinds": f"[{','.join(KINDS)}]",
        "demonstrations": 8,
        "cloning_updates": 1,
        "gate_episodes": 8,
        "output": root / "published",
        "trainer.torch_threads": 1,
        **changes,
    }
    return [f"{key}={value}" for key, value in settings.items()]


def start(root: Path, server: PrefectServer, **changes: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.warm_start", "--preset", "reader"]
    command += [part for setting in settings_of(root, **changes) for part in ("--set", setting)]
    environment = {**os.environ, **server.environment}
    return subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


def resume(root: Path, **changes: object) -> dict[str, Any]:
    """The same in this process."""
    values = merge({"preset": "reader"}, parse_assignments(settings_of(root, **changes)))
    return warm_start(**parameters_of(resolve(WarmStartConfig, values)))


def files(store: RunStore) -> dict[Path, int]:
    patterns = ("groups/*/*.json", "batches/*.json", f"policies/*/{MANIFEST}", "evaluations/*.json", "*.json")
    paths = [path for pattern in patterns for path in store.root.glob(pattern) if not path.name.startswith("config.")]
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.timeout(1500)
def test_refused_by_the_gate_then_published(tmp_path, server, prefect_api, dask_cluster, capsys):
    store, output = RunStore(tmp_path / "tiny"), tmp_path / "published"
    cluster = {"cluster.address": dask_cluster.address}

    refused = start(tmp_path, server, gate=1, **cluster)
    assert refused.returncode == 1, refused.stderr[-6000:]
    assert "below the gate of 1" in refused.stderr and KINDS[0] in refused.stderr
    assert not output.exists()

    seeds = {task.kind: task.seeds for task in load_tasks(store.tasks_path)}
    assert tuple(seeds) == KINDS
    for phase, split in (("i000000", Split.DEMO), ("s000001", Split.VALIDATION)):
        records = [read_group(store, group_id) for group_id in store.group_ids(phase)]
        assert sum(len(record.episodes) for record in records) == 8
        for record in records:
            allowed = seeds[record.kind][split]
            assert all(allowed.start <= episode.seed < allowed.stop for episode in record.episodes)
    batch = read_json(store.batch_path(1))
    assert batch["algorithm"] == "filtered_bc"
    shown = [store.trajectory(episode_id) for episode_id in {row["episode_id"] for row in batch["rows"]}]
    assert shown and all(trajectory.reward.passed for trajectory in shown)
    assert len(batch["rows"]) == sum(len(trajectory.steps) for trajectory in shown)
    assert {logprob for trajectory in shown for step in trajectory.steps for logprob in step.logprobs} == {0.0}
    assert store.manifest(1)["metrics"]["optimizer_steps"] >= 1

    before = files(store)
    published = resume(tmp_path, gate=0, **cluster)
    after = files(store)
    assert {path: after[path] for path in before} == before, "a part that was there was done again"

    record = read_json(output / RECIPE)
    assert record == published
    assert record["run_id"] == "tiny" and record["seed"] == 0 and record["versions"]["torch"]
    assert record["config"]["base"] == "datasets/policies/reader"
    assert record["demonstrations"]["n"] == 8 and record["demonstrations"]["mean"] > 0
    assert [update["version"] for update in record["cloning"]] == [1]
    for how in ("sampled", "greedy"):
        assert record["validation"][how]["n"] == 8 and set(record["validation"][how]["by_kind"]) == set(KINDS)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (output, store.policy_path(1), READER)]
    assert weights[0] == weights[1] != weights[2]
    assert not (output / MANIFEST).exists()

    stamp = (output / RECIPE).stat().st_mtime_ns
    capsys.readouterr()
    assert resume(tmp_path, gate=0, **cluster) == record and "finished already" in capsys.readouterr().err
    assert (output / RECIPE).stat().st_mtime_ns == stamp


class Teacher:
    """Does click-button by the words of the request. Its first three answers are an error, a
    refusal and no action."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._numbers = itertools.count()

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        number = next(self._numbers)
        if number < 2:
            return (500, 400)[number], {"error": {"message": "not now"}}
        self.said.append("I would rather not." if number == 2 else self._click(body))
        return 200, completion(self.said[-1])

    def _click(self, body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"][-1]["text"]
        label = re.search(r'Click on the "(.+?)" button', text)
        assert label is not None, text
        element = re.search(rf'\[(\d+)\] button "{re.escape(label[1])}"', text)
        assert element is not None, text
        call = json.dumps({"name": "browser", "arguments": {"action": "click", "element": int(element[1])}})
        return f"<think>{label[1]} is there.</think>\nAction: Click it.\n<tool_call>\n{call}\n</tool_call>"


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_teachers_successes_are_cloned_and_published(
    tmp_path: Path, server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    store, output, teacher = RunStore(tmp_path / "taught"), tmp_path / "published", Teacher()
    settings = {"run_id": "taught", "tasks.kinds": "[click-button]", "policy.prompt": "vanilla", "gate": 0}
    settings |= {"gate_episodes": 4, "trainer.learning_rate": 0.001}
    with endpoint(teacher) as (address, served):
        settings |= {"teacher.address": address, "teacher.model": "big", "teacher.api_key": KEY}
        done = start(tmp_path, server, **settings)
    assert done.returncode == 0, done.stderr[-6000:]

    with closing(sqlite3.connect(store.root / "teacher_spent.sqlite")) as spent:
        assert spent.execute("SELECT requests FROM spent").fetchall() == [(len(served.asked),)]
    assert set(served.keys) == {f"Bearer {SECRET}"} and {body["model"] for body in served.asked} == {"big"}
    episodes = [episode for name in store.group_ids("i000000") for episode in read_group(store, name).episodes]
    assert Counter(episode.passed for episode in episodes if episode.score is not None) == {True: 6, False: 1}
    assert len(episodes) == 8, "one was refused, and has no reward"
    assert len(served.asked) == 9, "and one was asked for twice"
    shown = {episode.episode_id: store.trajectory(episode.episode_id) for episode in episodes}
    said = [step.response for trajectory in shown.values() for step in trajectory.steps]
    assert Counter(said) == Counter(teacher.said)

    cloned = {row["episode_id"] for row in read_json(store.batch_path(1))["rows"]}
    assert cloned == {episode.episode_id for episode in episodes if episode.passed}
    renderer = Renderer(READER, "qwen2_vl")
    turns = [recorded(store, renderer, step, 1.0) for name in sorted(cloned) for step in shown[name].steps]
    before, after = (sum(map(sum, TransformersScorer(renderer)(folder, turns))) for folder in (READER, output))
    assert before < after, "the published policy says what the teacher said with a higher probability"

    record = read_json(output / RECIPE)
    assert (record["demonstrations"]["n"], record["demonstrations"]["abstained"]) == (7, 1)
    by = record["config"]["teacher"]
    assert (by["address"], by["model"], by["api_key"]) == (address, "big", KEY)
    written = [*(path for path in tmp_path.rglob("*") if path.is_file()), *server.home.glob("prefect.db*")]
    assert store.config_path in written and not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert SECRET not in done.stdout + done.stderr

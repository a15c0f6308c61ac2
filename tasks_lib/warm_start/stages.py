"""Stages of a warm start: pre-train, demonstrate, clone, measure, publish.

Each is skipped when its product exists.

Its folder is that of a training run (docs/architecture.md) without ledger and metrics, and with::

    pretrain/stage-1/ …        checkpoints of the recipe's stages, pretrain.log
    demonstrations.json        success of the scripted oracles or the teacher; their groups are
                               those of phase i000000
    teacher_spent.sqlite       requests to the teacher
    evaluations/sampled-v….json   input of the gate, phase s……
    output/                    the published checkpoint, unless the settings name another
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from prefect import task
from prefect.cache_policies import NO_CACHE

from envs.bundled.oracles import is_generated, oracle_of
from envs.tasks import load_tasks, save_tasks
from envs.types import ConfigError, PolicyError, Split, TaskError, TrainingError, WebTask
from tasks_lib.config import PROJECT, TrainConfig, WarmStartConfig, resolve_checkpoint, resolve_path
from tasks_lib.folder.checkpoints import check_checkpoint, publish_base
from tasks_lib.folder.derived import with_derived
from tasks_lib.folder.failed_start import undo_failed_start
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.metrics import format_share, success, success_by_kind
from tasks_lib.folder.task_sets import select_kinds
from tasks_lib.folder.values import freeze_config, git_commit, versions
from tasks_lib.processes.trainer import Trainer, update_policy
from tasks_lib.rollouts.evaluation import evaluate_version, evaluation_groups, prepare_evaluation
from tasks_lib.rollouts.shards import RolloutResult, Rollouts
from tasks_lib.warm_start.successes import take_successes
from tasks_lib.worker.requests import ActorName, RolloutRequest
from training.config import AlgorithmConfig
from training.environment import TORCH_ENVIRONMENT
from training.ledger.checkpoint_files import MANIFEST, RECIPE, commit_folder, file_hashes
from training.ledger.disk import folder_bytes, raise_disk_errors, temporary_name
from training.ledger.journal import read_group
from training.ledger.paths import policy_name
from training.ledger.store import RunStore, read_json, write_json
from training.policy.adapters import is_adapter, merge_adapter
from training.records.batches import build_batch
from training.warm_start.recipe import Recipe, stage_path

MAY_CHANGE = frozenset({"root", "cluster", "output", "gate"})
"""Keys that may differ when a warm start is resumed. They do not change finished work."""
WHERE = {"root", "output", "cluster"}
"""Keys of the places of a warm start, which are not written into the published checkpoint."""
DEMONSTRATIONS = "i000000"
"""Phase of the demonstrations' groups."""
LOG_TAIL = 2000
"""Maximum characters of pretrain.log in an error."""


class WarmStart:
    """One warm start, opened by the one flow process that may write its folder.

    Opening an existing one resumes it.
    """

    def __init__(self, config: WarmStartConfig) -> None:
        config = with_derived(config)
        self.config = config
        self.store = RunStore(config.run_dir)
        self.rollouts = Rollouts(self.store, config.policy, config.rollout, config.seed, teacher=config.teacher)
        self.output = output_of(config)
        check_output(config)
        self.tasks = self._freeze_tasks()
        freeze_config(config, self.store, MAY_CHANGE)

    @property
    def finished(self) -> bool:
        """True when the checkpoint is published."""
        return (self.output / RECIPE).exists()

    @property
    def version(self) -> int:
        """The version that is measured and published: the base, or the last one of cloning."""
        return self.config.cloning_updates

    def pre_train(self) -> None:
        """Publish version 0: the base, or the result of the recipe."""
        if 0 in self.store.versions():
            self.store.check_policy(0)
            return
        if self.config.base:
            source = resolve_checkpoint(self.config.base)
            check_checkpoint(source, "base")
        else:
            source = run_recipe(self.config.recipe, self.store.root / "pretrain", self.config.seed)
        publish_base(self.store, source)

    def warm_request(self) -> RolloutRequest:
        """Return the request that workers get when they start."""
        return self.rollouts.warm_request(self.tasks[0], 0)

    def demonstrate(self, workers: int) -> dict[str, Any]:
        """Record demonstrations and return their success: ``{mean, low, high, n, by_kind,
        seconds}``.

        They are episodes of the oracles or the teacher on demonstration seeds, or stored successes.

        Raises:
            TrainingError: none of them succeeded.
        """
        path = self.store.root / "demonstrations.json"
        if not path.exists():
            write_json(path, _summary(self._demonstrations(workers)))
        result: dict[str, Any] = read_json(path)
        if not result["n"]:
            raise TrainingError(
                f"none of {result['abstained']} demonstrations has a reward, so nothing is known of them; see why in {self.store.root / 'groups'}"
            )
        if not result["mean"]:
            raise TrainingError(
                f"none of {result['n']} demonstrations succeeded, so there is nothing to clone; see {self.store.root / 'groups'}"
            )
        return result

    def _demonstrations(self, workers: int) -> RolloutResult:
        config = self.config
        if config.episodes:
            runs = [resolve_path(run) for run in config.episodes]
            return take_successes(self.store, runs, config.policy, DEMONSTRATIONS, config.demonstrations)
        groups = evaluation_groups(self.tasks, phase=DEMONSTRATIONS, episodes=config.demonstrations, split=Split.DEMO)
        actor: ActorName = "oracle" if config.teacher is None else "teacher"
        return self.rollouts.run(groups, version=0, workers=workers, actor=actor)

    def clone(self) -> list[dict[str, Any]]:
        """Train the versions of cloning and return their manifests.

        Every update passes over all successful demonstrations.
        """
        config = self.config
        algorithm = AlgorithmConfig(name="filtered_bc")
        if self.version and self.store.latest_policy() != self.version:
            episodes = [read_group(self.store, group_id).episodes for group_id in self.store.group_ids(DEMONSTRATIONS)]
            settings = TrainConfig(
                policy=config.policy,
                algorithm=algorithm,
                trainer=config.trainer,
                iterations=config.cloning_updates,
                seed=config.seed,
            )
            with Trainer(self.store, settings) as trainer:
                for version in range((self.store.latest_policy() or 0) + 1, self.version + 1):
                    update_policy(self.store.root, build_batch(version, episodes, algorithm), trainer)
        return [self.store.manifest(version) for version in range(1, self.version + 1)]

    def measure(self, workers: int, *, greedy: bool) -> dict[str, Any]:
        """Return the success of the version on validation seeds, greedy or as it samples in
        training."""
        config, version = self.config, self.version
        prepare_evaluation(self.store, version)
        if greedy:
            return evaluate_version(
                self.rollouts,
                version,
                self.tasks,
                episodes=config.gate_episodes,
                workers=workers,
                split=Split.VALIDATION,
            )
        path = self.store.root / "evaluations" / f"sampled-{policy_name(version)}.json"
        if not path.exists():
            groups = evaluation_groups(
                self.tasks,
                phase=f"s{version:06d}",
                episodes=config.gate_episodes,
                split=Split.VALIDATION,
                greedy=False,
            )
            summary = _summary(self.rollouts.run(groups, version=version, workers=workers))
            write_json(path, {**summary, "version": version, "split": str(Split.VALIDATION), "greedy": False})
        return dict(read_json(path))

    def publish(self, sampled: dict[str, Any], greedy: dict[str, Any]) -> dict[str, Any]:
        """Copy the checkpoint to the output folder atomically, and return its ``recipe.json``."""
        source = self.store.policy_path(self.version)
        self.store.check_policy(self.version)
        temporary = temporary_name(self.output)
        record = self._record(sampled, greedy)
        with raise_disk_errors(self.output, needed=folder_bytes(source)):
            try:
                if is_adapter(source):
                    merge_adapter(source, temporary)
                else:
                    shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(MANIFEST, "stage.json", RECIPE))
                write_json(temporary / RECIPE, {**record, "files": file_hashes(temporary)})
                commit_folder(temporary, self.output)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        return self.record()

    def record(self) -> dict[str, Any]:
        """Return ``recipe.json`` of the published checkpoint."""
        record: dict[str, Any] = read_json(self.output / RECIPE)
        return record

    def _record(self, sampled: dict[str, Any], greedy: dict[str, Any]) -> dict[str, Any]:
        folder = self.store.root / "pretrain"
        stages = [read_json(path) for path in sorted(folder.glob("stage-*/stage.json"))]
        manifests = self.clone()
        demonstrations = self.demonstrate(0) if manifests else None
        return {
            "run_id": self.config.run_id,
            "seed": self.config.seed,
            "config": self.config.model_dump(mode="json", exclude=WHERE),
            "git_commit": git_commit(),
            "versions": versions(),
            "pre_training": [{name: stage[name] for name in ("stage", "held_out", "seconds")} for stage in stages],
            "demonstrations": demonstrations,
            "cloning": [
                {"version": m["version"], "loss": m["metrics"]["loss"], "rows": m["metrics"]["rows"]} for m in manifests
            ],
            "validation": {"sampled": _select_metrics(sampled), "greedy": _select_metrics(greedy)},
            "seconds": {
                "pre_train": sum(stage["seconds"] for stage in stages),
                "demonstrate": demonstrations["seconds"] if demonstrations else 0.0,
                "clone": sum(sum(manifest["seconds"].values()) for manifest in manifests),
                "measure": sampled["seconds"] + greedy["seconds"],
            },
        }

    def _freeze_tasks(self) -> list[WebTask]:
        if not self.store.tasks_path.exists():
            tasks = select_demonstrable(self.config)
            check_enough(tasks, self.config)
            save_tasks(self.store.tasks_path, tasks)
        return load_tasks(self.store.tasks_path)


@contextmanager
def open_warm_start(config: WarmStartConfig) -> Iterator[WarmStart]:
    """Open (or resume) the warm start under its run's lock."""
    with run_lock(config.run_dir), undo_failed_start(RunStore(config.run_dir)):
        yield WarmStart(config)


def output_of(config: WarmStartConfig) -> Path:
    """Return the folder that a warm start publishes to."""
    return resolve_path(config.output) if config.output else config.run_dir / "output"


def check_output(config: WarmStartConfig) -> None:
    """Raise ``ConfigError`` if the output folder holds another run's checkpoint, which is never
    replaced."""
    output = output_of(config)
    if output.exists():
        made_by = read_json(output / RECIPE)["run_id"] if (output / RECIPE).exists() else None
        if made_by != config.run_id:
            raise ConfigError(f"output: {output} is there and not of this run; name another folder")


def select_demonstrable(config: WarmStartConfig) -> list[WebTask]:
    """Return the tasks of the configured kinds, or all that have an oracle.

    Raises:
        ConfigError: there is cloning to do, and a task of a named kind, or every task, cannot be
            demonstrated.
    """
    tasks = select_kinds(resolve_path(config.tasks.file), config.tasks.kinds)
    if config.episodes or config.teacher is not None:
        return tasks
    without_oracle = {task.task_id: reason for task in tasks if (reason := explain_missing_oracle(task))}
    if config.cloning_updates and without_oracle and (config.tasks.kinds or len(without_oracle) == len(tasks)):
        kinds = sorted({task.kind for task in tasks if task.task_id in without_oracle})
        reasons = (without_oracle.get(task.task_id, "") for task in tasks if is_generated(task))
        generated = next(filter(None, reasons), "")
        raise ConfigError(
            f"tasks.kinds: no scripted oracle for {', '.join(kinds)}; leave them out, or set cloning_updates=0"
            + (f" ({generated})" if generated else "")
        )
    return tasks if config.tasks.kinds else [task for task in tasks if task.task_id not in without_oracle]


def check_enough(tasks: list[WebTask], config: WarmStartConfig) -> None:
    """Check that there are pages for all later episodes, before the first stage takes hours.

    Raises:
        ConfigError: there are too few demonstration or validation pages.
    """
    if config.cloning_updates and not config.episodes:
        evaluation_groups(tasks, phase=DEMONSTRATIONS, episodes=config.demonstrations, split=Split.DEMO)
    evaluation_groups(tasks, phase="s000000", episodes=config.gate_episodes, split=Split.VALIDATION)


def explain_missing_oracle(task: WebTask) -> str:
    """Say why no oracle demonstrates a task; empty if one does."""
    try:
        oracle_of(task)
    except TaskError as error:
        return str(error)
    return ""


@task(task_run_name="pre-train", cache_policy=NO_CACHE, persist_result=False)
def run_recipe(recipe: Recipe, folder: Path, seed: int) -> Path:
    """Pre-train in a separate process and return the last stage's checkpoint.

    The separate process keeps torch out of the flow's. It continues after the last complete stage.

    Raises:
        PolicyError: the process failed; with the end of its log.
    """
    write_json(folder / RECIPE, recipe)
    owner = psutil.Process()
    command = [sys.executable, "-m", "training.warm_start.pretrain", str(folder), "--recipe", str(folder / RECIPE)]
    command += ["--seed", str(seed), "--owner-pid", str(owner.pid), "--owner-started", str(owner.create_time())]
    environment = {**os.environ, **TORCH_ENVIRONMENT, "OMP_NUM_THREADS": str(recipe.threads)}
    log_path = folder / "pretrain.log"
    with open(log_path, "ab") as log:
        process = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        code = process.wait()
    finally:
        process.kill()  # harmless once it has ended
        process.wait()
    if code:
        raise PolicyError(
            f"pre-training failed (exit code {code}); the end of {log_path}:\n{log_path.read_text(errors='replace')[-LOG_TAIL:]}"
        )
    return stage_path(folder, len(recipe.stages))


def check_gate(sampled: dict[str, Any], gate: float) -> None:
    """Refuse a policy that RL could not improve: groups in which every sample fails teach nothing.

    The gate takes sampled success, not greedy. A policy with .5 greedy success may have none when
    it samples (its format is not sharp yet), and then no number of iterations helps.

    Raises:
        PolicyError: mean success is below ``gate``, and the message names the kinds below it; or no
            episode has a reward: unknown success does not pass.
    """
    if not sampled["n"]:
        raise PolicyError(
            f"sampled success on validation seeds is unknown, which does not pass the gate of {gate:g}: none of {sampled['abstained']} episodes "
            f"has a reward. Look at why in groups/ of the run's folder, mend that, and start with another run_id"
        )
    if sampled["mean"] >= gate:
        return
    measured = {kind: entry["mean"] for kind, entry in sampled["by_kind"].items() if entry["mean"] is not None}
    failing = sorted((mean, kind) for kind, mean in measured.items() if mean < gate)
    below = [f"{kind} {mean:.2f}" for mean, kind in failing]
    below += [f"{kind} unknown" for kind in sampled["by_kind"] if kind not in measured]
    raise PolicyError(
        f"sampled success on validation seeds is {sampled['mean']:.3f} [{sampled['low']:.3f}, {sampled['high']:.3f}] "
        f"(n = {sampled['n']}), below the gate of {gate:g}; kinds below it: {', '.join(below)}. Raise cloning_updates or demonstrations, pre-train "
        f"longer (recipe.stages) or leave those kinds out (tasks.kinds), with another run_id; or lower gate and start this run again"
    )


def measured_rows(sampled: dict[str, Any], greedy: dict[str, Any]) -> list[dict[str, Any]]:
    """Return sampled and greedy success of each kind, ``None`` where it is unknown."""

    def rounded(entry: dict[str, Any]) -> float | None:
        return None if entry["mean"] is None else round(entry["mean"], 3)

    return [
        {"kind": kind, "sampled": rounded(entry), "greedy": rounded(greedy["by_kind"][kind])}
        for kind, entry in sampled["by_kind"].items()
    ]


def measured_words(sampled: dict[str, Any], greedy: dict[str, Any]) -> str:
    """Describe sampled and greedy success in a sentence."""
    return (
        f"validation success {format_share(sampled['mean'])} sampled, {format_share(greedy['mean'])} greedy "
        f"(n = {sampled['n']} and {greedy['n']})"
    )


def _summary(rollout: RolloutResult) -> dict[str, Any]:
    episodes = [episode for record in rollout.records for episode in record.episodes]
    return {
        **success(episodes),
        "by_kind": success_by_kind(rollout.records),
        "abstained": sum(episode.score is None for episode in episodes),
        "seconds": rollout.seconds["wall"],
    }


def _select_metrics(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("mean", "low", "high", "n", "by_kind", "abstained", "seconds")}

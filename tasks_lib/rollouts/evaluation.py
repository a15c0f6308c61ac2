"""Evaluates one policy version: greedy success on held-out seeds.

A version that was damaged is made again, and may have other weights then (`training.ledger.store.RunStore.check_policy`). So what its
evaluation is of is written down, and an evaluation of other weights is moved to ``outdated/``, with its groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from envs.tasks import TaskIndex
from envs.types import Memory, Split, StorageError, WebTask
from tasks_lib.episode.reward_stage import judge_account
from tasks_lib.folder.metrics import count_causes, mark_unknown, success, success_by_kind
from tasks_lib.folder.repair import recount_advice
from tasks_lib.processes.prefect_run import emit, run_as_task
from tasks_lib.rollouts.planning import evaluation_groups
from tasks_lib.rollouts.sampling import with_memories
from tasks_lib.rollouts.shards import Rollouts
from training.ledger.journal import read_group
from training.ledger.store import RunStore, move_aside_advice, policy_name, read_json, sha256_of, write_json

PHASES = "es"
"""First letters of the phases that play to measure a version: an evaluation, and a warm start's as it samples in training."""


def evaluate_version(
    rollouts: Rollouts,
    version: int,
    tasks: TaskIndex | Sequence[WebTask],
    *,
    episodes: int,
    workers: int,
    split: Split = Split.HELD_OUT,
    greedy: bool = True,
    memories: Mapping[str, Memory] | None = None,
) -> dict[str, Any]:
    """Success of a published version, from ``evaluations/`` when it is there already.

    Its episodes begin with the ``memories`` of their task families, and add nothing to them.

    Raises:
        StorageError: it cannot be counted what the judge spends, before anything is played; or what is there is damaged.

    Returns ``{version, mean, low, high, n, by_kind, episodes, abstained, causes, seconds}``; the interval is Wilson's at 95 %. Mean and interval
    are ``None`` where no episode has a reward, by kind too.
    """
    path = rollouts.store.evaluation_path(version)
    prepare_evaluation(rollouts.store, version)
    if path.exists():
        return read_evaluation(rollouts.store, version)
    judge_account(rollouts.rollout.judge, rollouts.store.spent_path())

    def measure() -> dict[str, Any]:
        return _measure(rollouts, version, tasks, episodes, workers, split, greedy, memories)

    result = run_as_task("evaluate", f"evaluate-v{version:06d}", measure)
    write_json(path, result, sealed=True)
    figures = {name: result[name] for name in ("version", "mean", "low", "high", "n", "split")}
    emit("rollwright.evaluation.finished", rollouts.store.root.name, figures)
    return result


def _measure(
    rollouts: Rollouts,
    version: int,
    tasks: TaskIndex | Sequence[WebTask],
    episodes: int,
    workers: int,
    split: Split,
    greedy: bool,
    memories: Mapping[str, Memory] | None,
) -> dict[str, Any]:
    groups = evaluation_groups(
        tasks,
        phase=f"e{version:06d}",
        episodes=episodes,
        split=split,
        greedy=greedy,
        horizon=rollouts.rollout.horizon,
    )
    rollout = rollouts.run(with_memories(groups, memories or {}), version=version, workers=workers)
    summaries = [episode for record in rollout.records for episode in record.episodes]
    return {
        "version": version,
        "policy": policy_digest(rollouts.store, version),
        **success(summaries),
        "by_kind": success_by_kind(rollout.records),
        "episodes": [episode.episode_id for episode in summaries],
        "abstained": sum(episode.score is None for episode in summaries),
        "causes": count_causes(summaries),
        "split": str(split),
        "greedy": greedy,
        "seconds": rollout.seconds["wall"],
        "activity": rollout.seconds,
        "batches": rollout.batches,
        **judge_account(rollouts.rollout.judge, rollouts.store.spent_path()),
    }


def read_evaluation(store: RunStore, version: int) -> dict[str, Any]:
    """The stored evaluation of a version, as `evaluate_version` returns it.

    Raises:
        StorageError: It is missing, damaged, or another version's.
    """
    path = store.evaluation_path(version)
    remedy = recount_advice(path)
    found = read_json(path, remedy)
    kinds = found.get("by_kind") if isinstance(found, dict) else None
    entries = [found, *kinds.values()] if isinstance(kinds, dict) else []
    if not entries or not all(isinstance(each, dict) and "mean" in each and "n" in each for each in entries):
        raise StorageError(f"{path} is damaged: it is no evaluation; {remedy}")
    if found.get("version") != version:
        raise StorageError(f"{path} is the evaluation of version {found.get('version')}; {remedy}")
    return mark_unknown(found)


def recover_evaluations(store: RunStore, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write evaluations whose file is gone again, from their lines in the metrics and their groups.

    Args:
        lines: Of evaluations. One whose groups are not all there any more is left out.
    """
    for line in lines:
        path = store.evaluation_path(line["version"])
        records = [read_group(store, group_id) for group_id in store.group_ids(f"e{line['version']:06d}")]
        episodes = [episode for record in records for episode in record.episodes]
        if path.exists() or not episodes or len(episodes) != line["n"] + line.get("abstained", 0):
            continue
        found = {name: value for name, value in line.items() if name not in ("kind", "wall")}
        names = [episode.episode_id for episode in episodes]
        write_json(path, {**found, "episodes": names, "causes": count_causes(episodes)}, sealed=True)


def evaluated_path(store: RunStore, version: int) -> Path:
    """Which weights the evaluation of a version is of, written when it begins."""
    return store.root / "policies" / f"evaluated-{policy_name(version)}.json"


def policy_digest(store: RunStore, version: int) -> str:
    """sha256 of what a version's manifest says of its files: the same for the same weights, tokenizer and template only."""
    return sha256_of(orjson.dumps(store.manifest(version)["files"], option=orjson.OPT_SORT_KEYS))


def is_outdated(store: RunStore, version: int) -> bool:
    """Whether the evaluation of a version is of other weights than it has now.

    Of one that says nothing of its weights it is not known.
    """
    path = evaluated_path(store, version)
    remedy = f"{move_aside_advice(path)} and start the same command again"
    if version not in store.versions() or not path.exists():
        return False
    if not isinstance(found := read_json(path, remedy), str):
        raise StorageError(f"{path} is damaged: it holds no sha256; {remedy}")
    return found != policy_digest(store, version)


def move_outdated_aside(store: RunStore, version: int) -> str:
    """Move the evaluation of a version to ``outdated/`` if it is of other weights; what was done, empty if nothing had to be."""
    if not is_outdated(store, version):
        return ""
    number, name = 1, policy_name(version)
    while (folder := store.root / "outdated" / f"{name}-{number}").exists():
        number += 1
    evaluation = store.evaluation_path(version)
    moved = [evaluation, evaluation.with_name(f"sampled-{name}.json")]
    moved += [store.root / "groups" / f"{letter}{version:06d}" for letter in PHASES]
    for path in (*moved, evaluated_path(store, version)):  # the last one says that there is something to move
        _move(path, folder / path.relative_to(store.root))
    return f"policy v{version} was made again with other weights: its evaluation was moved to {folder}"


def mark_evaluations_doubtful(store: RunStore) -> None:
    """Before versions are made again: an evaluation of older code whose policy is not there may be of any weights, so it will not stand."""
    played = [path.name for path in (store.root / "groups").glob(f"[{PHASES}]{'[0-9]' * 6}")]
    counted = [path.stem for path in store.evaluation_path(0).parent.glob(f"v{'[0-9]' * 6}.json")]
    for version in {int(name[1:]) for name in (*played, *counted)} - set(store.versions()):
        if not evaluated_path(store, version).exists():
            write_json(evaluated_path(store, version), "")


def prepare_evaluation(store: RunStore, version: int) -> None:
    """Before a version is measured: what was measured of other weights does not count, and these weights are written down."""
    move_outdated_aside(store, version)
    if version in store.versions() and not evaluated_path(store, version).exists():
        write_json(evaluated_path(store, version), policy_digest(store, version))


def _move(path: Path, target: Path) -> None:
    if path.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

"""Evaluates one policy version: greedy success on held-out seeds.

A damaged version is made again, and may then have other weights
(`training.ledger.store.RunStore.check_policy`). So the weights of each evaluation are recorded, and
an evaluation of other weights is moved to ``outdated/``, with its groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from envs.ends import HorizonPolicy
from envs.tasks import TaskIndex
from envs.types import ConfigError, Memory, PolicyError, Split, StorageError, WebTask
from tasks_lib.config import EvaluateConfig
from tasks_lib.folder.metrics import count_causes, success, success_by_kind
from tasks_lib.folder.metrics_lines import EvaluationMetrics
from tasks_lib.folder.repair import recount_advice
from tasks_lib.folder.task_sets import with_hashes
from tasks_lib.processes.prefect_run import emit, run_as_task
from tasks_lib.rollouts.sampling import with_horizon, with_memories
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker.requests import ActorName
from tasks_lib.worker.reward_stage import judge_account
from training.ledger.journal import read_group
from training.ledger.paths import policy_name
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore, move_aside_advice, read_json, write_json
from training.records.groups import EpisodeSummary, GroupSpec

PHASES = "es"
"""First letters of measuring phases: an evaluation (e) or a warm start's sampling (s)."""

EVALUATION_SEED = 0
"""Seed of the choice of tasks where there are more than episodes.

It is the same in all runs, so that they can be compared.
"""


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
    actor: ActorName = "policy",
) -> dict[str, Any]:
    """Return the success of a published version, from ``evaluations/`` when it is stored there.

    Its episodes begin with the ``memories`` of their task families, and add nothing to them.

    Raises:
        StorageError: the judge's spending cannot be counted, before anything is played; or a stored
            file is damaged.

    Returns ``{version, mean, low, high, n, by_kind, episodes, abstained, causes, seconds}``; the
    interval is Wilson's at 95 %. Mean and interval are ``None`` where no episode has a reward, by
    kind too.
    """
    path = rollouts.store.evaluation_path(version)
    prepare_evaluation(rollouts.store, version)
    if path.exists():
        return read_evaluation(rollouts.store, version)
    judge_account(rollouts.rollout.judge, rollouts.store.spent_path())

    def measure() -> dict[str, Any]:
        return _measure(rollouts, version, tasks, episodes, workers, split, greedy, memories, actor)

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
    actor: ActorName,
) -> dict[str, Any]:
    groups = evaluation_groups(
        tasks,
        phase=f"e{version:06d}",
        episodes=episodes,
        split=split,
        greedy=greedy,
        horizon=rollouts.rollout.horizon,
    )
    rollout = rollouts.run(with_memories(groups, memories or {}), version=version, workers=workers, actor=actor)
    model = {"model": rollouts.teacher.model} if actor == "teacher" and rollouts.teacher is not None else {}
    summaries = [episode for record in rollout.records for episode in record.episodes]
    if actor == "policy":
        _check_measured(rollouts.store, version, summaries)
    return {
        "version": version,
        "policy": policy_digest(rollouts.store, version),
        **model,
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


def _check_measured(store: RunStore, version: int, episodes: Sequence[EpisodeSummary]) -> None:
    """Refuse an evaluation with tokens of other versions, and move its groups aside.

    Raises:
        PolicyError: it has such tokens.
    """
    for episode in episodes:
        if others := {number for pair in episode.versions for number in pair} - {version}:
            folder = _set_aside(store, version)
            raise PolicyError(
                f"the evaluation of v{version} has tokens of v{min(others)} (episode {episode.episode_id}), so it measures "
                f"no version: its groups were moved to {folder}. Does another run publish to the same servers? Give "
                "each run servers of its own, and start the same command again: v"
                f"{version} is measured anew"
            )


def evaluation_groups(
    tasks: TaskIndex | Sequence[WebTask],
    *,
    phase: str,
    episodes: int,
    split: Split = Split.HELD_OUT,
    greedy: bool = True,
    horizon: HorizonPolicy | None = None,
) -> list[GroupSpec]:
    """Return groups on the first page seeds of ``split``, ``episodes`` in all, the same each time.

    Every task gets an equal share, or all of its seeds where those are fewer. Where there are more
    tasks than episodes, one task per episode is drawn with a fixed seed, and each difficulty bucket
    of each site gets its share.

    Raises:
        ConfigError: there are fewer seeds than ``episodes``.
        TaskError: a task's rubric is not the one that was frozen.
    """
    index = tasks if isinstance(tasks, TaskIndex) else TaskIndex.build(tasks)
    rows = np.flatnonzero(index.seeds_of(split) > 0)
    if len(rows) > episodes:
        rows = np.sort(rows[index.only(rows).stratified(episodes, EVALUATION_SEED)])
    sizes = index.seeds_of(split)[rows].astype(np.int64)
    if not len(rows):
        others = [name for name in Split if index.seeds_of(name).any()]
        raise ConfigError(
            f"{len(index)} tasks, none with {split} seeds; they have {', '.join(others)}: "
            f"evaluate those by flows.evaluate --set split={others[0]}, or give tasks {split} seeds"
        )
    if sizes.sum() < episodes:
        raise ConfigError(
            f"{episodes} {split} episodes are wanted, and of {len(rows)} task{'s' * (len(rows) != 1)} there are {sizes.sum()} {split} seeds in all; "
            f"lower the number of episodes to {sizes.sum()}, or take a set with more (a generated one has a share of {split} in its spec.splits)"
        )
    groups = []
    for number, (row, share) in enumerate(zip(index.take(rows), equal_shares(episodes, sizes.tolist()), strict=True)):
        task = with_horizon(with_hashes(row), horizon, split)
        first = task.seeds[split].start
        page_seeds = tuple(range(first, first + share))
        groups.append(GroupSpec(group_id=f"{phase}-g{number:04d}", task=task, seeds=page_seeds, greedy=greedy))
    return groups


def fit_default(episodes: int, tasks: TaskIndex, split: Split) -> int:
    """Return the default number of episodes of `flows.evaluate`, cut to the seeds of a smaller set.

    Any other number is returned as it is.
    """
    if episodes != EvaluateConfig.model_fields["episodes"].default:
        return episodes
    return min(episodes, int(tasks.seeds_of(split).astype(np.int64).sum()) or episodes)


def equal_shares(total: int, limits: Sequence[int]) -> list[int]:
    """Divide ``total`` as equally as the ``limits`` allow. The rest goes to the first ones.

    ``total`` is at most the sum of ``limits``.
    """
    level, top = 0, max(limits, default=0)
    while level < top:  # search the highest level to which all can be filled
        middle = (level + top + 1) // 2
        if sum(min(limit, middle) for limit in limits) <= total:
            level = middle
        else:
            top = middle - 1
    shares = [min(limit, level) for limit in limits]
    deeper = [place for place, limit in enumerate(limits) if limit > level]
    for place in deeper[: total - sum(shares)]:
        shares[place] += 1
    return shares


def read_evaluation(store: RunStore, version: int) -> dict[str, Any]:
    """Return the stored evaluation of a version, as `evaluate_version` returns it.

    Raises:
        StorageError: it is missing, damaged, or another version's.
    """
    path = store.evaluation_path(version)
    remedy = recount_advice(path)
    evaluation = read_json(path, remedy)
    kinds = evaluation.get("by_kind") if isinstance(evaluation, dict) else None
    entries = [evaluation, *kinds.values()] if isinstance(kinds, dict) else []
    if not entries or not all(isinstance(entry, dict) and "mean" in entry and "n" in entry for entry in entries):
        raise StorageError(f"{path} is damaged: it is no evaluation; {remedy}")
    if evaluation.get("version") != version:
        raise StorageError(f"{path} is the evaluation of version {evaluation.get('version')}; {remedy}")
    found: dict[str, Any] = evaluation
    return found


def recover_evaluations(store: RunStore, lines: Iterable[EvaluationMetrics]) -> None:
    """Write lost evaluation files again, from their lines in the metrics and their groups.

    Args:
        lines: Metrics lines of evaluations. One whose groups are incomplete is left out.
    """
    for line in lines:
        path = store.evaluation_path(line.version)
        if path.exists():
            continue
        records = [read_group(store, group_id) for group_id in store.group_ids(f"e{line.version:06d}")]
        episodes = [episode for record in records for episode in record.episodes]
        if not episodes or len(episodes) != line.n + line.abstained:
            continue
        fields = line.model_dump(exclude_unset=True, exclude={"wall"})
        names = [episode.episode_id for episode in episodes]
        write_json(path, {**fields, "episodes": names, "causes": count_causes(episodes)}, sealed=True)


def evaluated_path(store: RunStore, version: int) -> Path:
    """Return the path of the file that records the evaluated weights, written when an evaluation
    begins."""
    return store.root / "policies" / f"evaluated-{policy_name(version)}.json"


def policy_digest(store: RunStore, version: int) -> str:
    """Return the sha256 of the file list in a version's manifest.

    It is the same only for the same weights, tokenizer and template.
    """
    return sha256_of(orjson.dumps(store.manifest(version)["files"], option=orjson.OPT_SORT_KEYS))


def is_outdated(store: RunStore, version: int) -> bool:
    """Return True if a version has other weights now than when it was evaluated.

    An evaluation that does not record its weights counts as current.

    Raises:
        StorageError: the file that records the weights is damaged.
    """
    path = evaluated_path(store, version)
    remedy = f"{move_aside_advice(path)} and start the same command again"
    if not store.is_published(version) or not path.exists():
        return False
    if not isinstance(digest := read_json(path, remedy), str):
        raise StorageError(f"{path} is damaged: it holds no sha256; {remedy}")
    return digest != policy_digest(store, version)


def move_outdated_aside(store: RunStore, version: int) -> str:
    """Move an evaluation of other weights to ``outdated/``.

    Returns what was done; empty if nothing had to be.
    """
    if not is_outdated(store, version):
        return ""
    folder = _set_aside(store, version)
    return f"policy v{version} was made again with other weights: its evaluation was moved to {folder}"


def _set_aside(store: RunStore, version: int) -> Path:
    """Move the measurements of a version to a new folder below ``outdated/``."""
    number, name = 1, policy_name(version)
    while (folder := store.root / "outdated" / f"{name}-{number}").exists():
        number += 1
    evaluation = store.evaluation_path(version)
    moved = [evaluation, evaluation.with_name(f"sampled-{name}.json")]
    moved += [store.root / "groups" / f"{letter}{version:06d}" for letter in PHASES]
    # The record of the weights goes last: it says that there is something to move.
    for path in (*moved, evaluated_path(store, version)):
        _move(path, folder / path.relative_to(store.root))
    return folder


def prepare_evaluation(store: RunStore, version: int) -> None:
    """Move outdated measurements of a version aside and record its weights, before it is
    measured."""
    move_outdated_aside(store, version)
    if store.is_published(version) and not evaluated_path(store, version).exists():
        write_json(evaluated_path(store, version), policy_digest(store, version))


def _move(path: Path, target: Path) -> None:
    if path.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

"""Selects the episodes for the report's viewer and converts them to plain values.

All content of a trajectory comes from pages and policies and is untrusted. It leaves here as JSON
values only; the viewer puts them on the page as text, never as markup.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from envs.types import (
    Action,
    Click,
    Invalid,
    RewardBundle,
    Select,
    StopReason,
    StorageError,
    Trajectory,
    Type,
)
from tasks_lib.report.data import RunData, describe_phase
from tasks_lib.report.evidence import LEFT_OUT, Evidence, cut_text
from tasks_lib.report.regraded import Grade, GradedEpisode, RegradingData, classify_change
from tasks_lib.report.tokens import TokenTexts
from training.ledger.paths import phase_of
from training.ledger.store import RunStore
from training.records.groups import EpisodeSummary, GroupRecord

MAX_EPISODES = 40
"""Maximum number of episodes. A person can leaf through them, and the page has about a megabyte."""

MAX_ABSTENTIONS = 5
MAX_TRAINING = 6
MAX_REGRADED = 8
"""Maximum number of episodes that are shown because the newest regrading changed them."""
MAX_LATER = 30_000
"""Maximum characters of evidence for all later grades of one episode."""
NOT_AGAIN = "not graded again"

MAX_IMAGE_BYTES = 3_000_000
"""Maximum bytes of all embedded screenshots (of steps and last pages), as base64.

Beyond it a step names its blob instead.
"""

MAX_TEXT = 20_000
"""Maximum characters of a prompt, a response or any other text that are embedded."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An episode for the viewer, and the reason for its choice."""

    group: GroupRecord
    member: EpisodeSummary
    reason: str
    """``first evaluation``, ``last evaluation``, ``training``, ``abstention`` or ``graded
    again``."""


def choose_episodes(groups: list[GroupRecord], wanted: Sequence[str] = ()) -> list[Chosen]:
    """Choose at most ``MAX_EPISODES`` of a run's episodes that show what changed.

    They are abstentions, a few of the last training iteration, and per kind a success and a failure
    of the first and the last evaluation. Where possible, a kind shows the same page before and
    after: failed first, solved last. The episodes ``wanted`` are always included, in place of the
    last ones.
    """
    phases = sorted({group.phase for group in groups})
    evaluations = [phase for phase in phases if phase.startswith("e")]
    trainings = [phase for phase in phases if phase.startswith("i")]
    failed = ((g, m) for g, m in _members(groups) if m.abstained is not None)
    abstained = [Chosen(g, m, "abstention") for g, m in failed if m.stop_reason is not StopReason.ABANDONED]
    chosen = abstained[-MAX_ABSTENTIONS:]

    training = [Chosen(g, m, "training") for g, m in _scored(groups, trainings[-1:])]
    chosen += _alternating(training, MAX_TRAINING)

    first = [Chosen(g, m, "first evaluation") for g, m in _scored(groups, evaluations[:1])]
    last = [Chosen(g, m, "last evaluation") for g, m in _scored(groups, evaluations[1:][-1:])]
    learned = {_page(c) for c in first if not _passed(c)} & {_page(c) for c in last if _passed(c)}

    def by_kind(pool: list[Chosen], passed: bool) -> dict[str, Chosen]:
        first_by_kind: dict[str, Chosen] = {}
        for entry in sorted(pool, key=lambda c: _page(c) not in learned):  # learned pages first
            if _passed(entry) == passed:
                first_by_kind.setdefault(entry.group.kind, entry)
        return first_by_kind

    for slot in (by_kind(last, True), by_kind(first, False), by_kind(last, False), by_kind(first, True)):
        chosen += [slot[kind] for kind in sorted(slot)][: MAX_EPISODES - len(chosen)]
    return _with_wanted(chosen, groups, wanted) if wanted else chosen


def _with_wanted(chosen: list[Chosen], groups: list[GroupRecord], wanted: Sequence[str]) -> list[Chosen]:
    missing = {*wanted} - {entry.member.episode_id for entry in chosen}
    added = [Chosen(g, m, "graded again") for g, m in _members(groups) if m.episode_id in missing]
    others = [entry.member.episode_id for entry in chosen if entry.member.episode_id not in wanted]
    dropped = {*others[len(others) - max(0, len(chosen) + len(added) - MAX_EPISODES) :]}
    return [entry for entry in chosen if entry.member.episode_id not in dropped] + added


def _members(groups: Iterable[GroupRecord]) -> Iterator[tuple[GroupRecord, EpisodeSummary]]:
    return ((group, member) for group in groups for member in group.episodes)


def _scored(groups: list[GroupRecord], phases: list[str]) -> Iterator[tuple[GroupRecord, EpisodeSummary]]:
    return ((g, m) for g, m in _members(groups) if g.phase in phases and m.abstained is None and m.score is not None)


def _passed(chosen: Chosen) -> bool:
    """Return True if the score suffices for the choice. The page shows the reward bundle's own
    verdict."""
    return (chosen.member.score or 0.0) >= 0.5


def _page(chosen: Chosen) -> tuple[str, int]:
    return chosen.group.task_id, chosen.member.seed


def _alternating(pool: list[Chosen], limit: int) -> list[Chosen]:
    """Return failures and successes in turn, each of another group while there are other groups."""
    seen: dict[str, int] = {}
    order = []
    for entry in pool:
        seen[entry.group.group_id] = seen.get(entry.group.group_id, 0) + 1
        order.append((seen[entry.group.group_id], entry))
    pool = [entry for _, entry in sorted(order, key=lambda pair: pair[0])]
    failures, successes = ([c for c in pool if _passed(c) == passed] for passed in (False, True))
    return [c for pair in zip_longest(failures, successes) for c in pair if c is not None][:limit]


# -- the viewer's values


def viewer_data(run: RunData, store: RunStore, regradings: Sequence[RegradingData] = ()) -> dict[str, Any]:
    """Return ``{"episodes": [...], "images": {sha256: data URI}}``.

    Messages about unreadable files are added to ``run.problems``. Where there are ``regradings``
    (newest first), each episode has its later grades too.
    """
    tokens = TokenTexts.of(store)
    episodes = []
    for entry in choose_episodes(run.groups, [episode.episode_id for episode in _changed(regradings)]):
        try:
            trajectory = store.trajectory(entry.member.episode_id)
        except StorageError as error:
            run.problems.append(str(error))
            continue
        evidence = Evidence(store, run.problems)
        shown = _episode(trajectory, tokens) | {"reason": entry.reason} | _graded_on(trajectory, evidence)
        shown["abstained"] = shown["abstained"] or entry.member.abstained
        if regradings:
            shown |= _graded_later(trajectory, evidence, regradings)
        episodes.append(shown)
    episodes.sort(key=lambda e: (e["kind"], e["phase"] != "evaluation", e["version"], e["id"]))
    return {"episodes": episodes, "images": episode_images(episodes, store, run.problems)}


def episode_images(episodes: list[dict[str, Any]], store: RunStore, problems: list[str]) -> dict[str, str]:
    """Return each screenshot of episodes once, first steps first, until the bound is reached.

    What is missing is said in its step, and in ``problems`` where it cannot be read.
    """
    shown = [[*e["steps"], *([e["final"]] if e["final"] and e["final"]["shot"] else [])] for e in episodes]
    images: dict[str, str] = {}
    used = 0
    for row in zip_longest(*shown):
        for step in row:
            if step is None or step["shot"] in images:
                continue
            try:
                data = base64.b64encode(store.blob(step["shot"])).decode()
            except StorageError as error:
                problems.append(str(error))
                step["missing"] = "its blob is missing or torn"
                continue
            if used + len(data) > MAX_IMAGE_BYTES:
                step["missing"] = "left out to keep this page small"
                continue
            images[step["shot"]] = "data:image/jpeg;base64," + data
            used += len(data)
    return images


def episode_values(store: RunStore, episode_id: str, tokens: TokenTexts) -> tuple[dict[str, Any], list[str]]:
    """Return the values of one episode, and messages about what of it could not be read.

    Raises:
        StorageError: its trajectory is missing or damaged.
    """
    problems: list[str] = []
    trajectory = store.trajectory(episode_id)
    evidence = Evidence(store, problems)
    return _episode(trajectory, tokens) | {"reason": ""} | _graded_on(trajectory, evidence), problems


def _episode(trajectory: Trajectory, tokens: TokenTexts) -> dict[str, Any]:
    reward, phase = trajectory.reward, phase_of(trajectory.group_id)
    evaluation = phase.startswith("e")
    values = _reward(reward) | {
        "id": trajectory.episode_id,
        "group": trajectory.group_id,
        "kind": trajectory.kind,
        "task": trajectory.task_id,
        "seed": trajectory.seed,
        "sample": trajectory.sample,
        "attempt": trajectory.attempt,
        "version": trajectory.policy_version,
        "phase": "evaluation" if evaluation else "training",
        "where": describe_phase(phase, trajectory.policy_version),
        "stop": trajectory.stop_reason.value,
        "error": trajectory.error,
        "abstained": reward.abstained,
        "seconds": round(trajectory.seconds, 2),
        "instruction": trajectory.steps[0].observation.instruction if trajectory.steps else "",
        "facts": [[name, str(value)] for name, value in trajectory.page_facts.items()],
        "wall": trajectory.wall,
        "steps": [_step(trajectory, index, tokens) for index in range(len(trajectory.steps))],
    }
    return {key: _bounded(value) for key, value in values.items()}


def _reward(reward: RewardBundle) -> dict[str, Any]:
    """Return a reward's result, and its parts."""
    return {
        "outcome": Grade.of(reward).outcome,
        "score": reward.score,
        "abstained": reward.abstained,
        "passed": reward.passed,
        "binary": reward.binary,
        "failed": list(reward.failed),
        "rubric": reward.rubric_hash,
        "cost": reward.cost.model_dump(),
        "parts": [
            part.model_dump(mode="json") | {"holds": part.holds, "evidence": cut_text(part.evidence)}
            for part in reward.parts
        ],
    }


def _changed(regradings: Sequence[RegradingData]) -> list[GradedEpisode]:
    """Return the episodes that the viewer shows because the newest regrading changed them."""
    return regradings[0].changed[:MAX_REGRADED] if regradings else []


def _graded_on(trajectory: Trajectory, evidence: Evidence) -> dict[str, Any]:
    """Return the evidence for the reward.

    The judge's words come first: they are short, and the space of an episode is limited.
    """
    return {
        "answer": _bounded(trajectory.answer),
        "judgement": evidence.judgement(trajectory.judgement),
        "rubricFacts": evidence.facts(trajectory),
        "recorded": evidence.recorded(trajectory),
        "final": _final(trajectory),
        "changes": [evidence.change(step.dom_diff) for step in trajectory.steps],
    }


def _graded_later(trajectory: Trajectory, evidence: Evidence, regradings: Sequence[RegradingData]) -> dict[str, Any]:
    """Return the episode's later grades, newest first, each compared with the first one.

    ``again`` is the change by the newest.
    """
    later = []
    evidence.left = MAX_LATER
    first = {part.name: part.value for part in trajectory.reward.parts}
    for regrading in regradings:
        regraded = regrading.read(trajectory.episode_id)
        if regraded is None:
            continue
        values = _reward(regraded.reward)
        values["missing"] = None
        if not evidence.reserve(sum(len(part["evidence"]) for part in values["parts"])):
            values |= {"parts": [], "missing": LEFT_OUT}
        for part in values["parts"]:
            part["first"] = [first[part["name"]]] if part["name"] in first else []
        graded = trajectory.model_copy(update={"reward": regraded.reward})
        later.append(
            values
            | {
                "name": regrading.name,
                "when": regrading.when,
                "change": classify_change(trajectory.reward, regraded.reward),
                "wall": regraded.wall,
                "judgement": evidence.judgement(regraded.judgement),
                "rubricFacts": evidence.facts(graded),
            }
        )
    return {"later": later, "again": later[0]["change"] if later else NOT_AGAIN}


def _final(trajectory: Trajectory) -> dict[str, Any] | None:
    """Return the page after the last action, without an image if it shows nothing."""
    final = trajectory.final
    if final is None or not trajectory.steps:
        return None
    return {
        "shot": trajectory.final_screenshot,
        "missing": None,
        "viewport": final.viewport,
        "url": cut_text(final.url),
        "title": cut_text(final.title),
        "error": cut_text(final.error) if final.error else None,
        "notices": [cut_text(words) for words in (*final.notices, final.dialog) if words],
        "elements": [item.model_dump() for item in final.elements],
        "text": _bounded(final.text),
    }


def _step(trajectory: Trajectory, index: int, tokens: TokenTexts) -> dict[str, Any]:
    step = trajectory.steps[index]
    element = getattr(step.action, "element", None)
    target = next((item for item in step.observation.elements if item.index == element), None)
    return {
        "shot": step.screenshot,
        "missing": None,
        "viewport": step.observation.viewport,
        "url": step.observation.url,
        "error": step.observation.error,
        "elements": [item.model_dump() for item in step.observation.elements],
        "target": element if target else None,
        "prompt": step.prompt,
        "promptTokens": len(step.prompt_ids),
        "response": step.response,
        "tokens": [
            [token, round(logprob, 4), text]
            for token, logprob, text in zip(
                step.response_ids, step.logprobs, tokens.of_ids(step.response_ids), strict=False
            )
        ],
        "version": step.policy_version,
        "action": step.action.type,
        "say": _describe_action(step.action, target.text if target else None),
        "typed": step.action.text if isinstance(step.action, Type | Select) else None,
        "point": step.point,
        "seconds": step.seconds.model_dump(),
    }


def _describe_action(action: Action, label: str | None) -> str:
    """Describe the action in words, e.g. ``click 3 “Submit”``."""
    if isinstance(action, Invalid):
        return f"no action: {action.reason}"
    values = action.model_dump(mode="json", exclude={"type"})
    element = values.get("element")
    name = f"{element} “{label}”" if label else str(element)
    match action:
        case Click() if element is not None:
            return f"click {name}"
        case Type() if element is not None:
            return f"type “{action.text}” into {name}"
        case Select() if element is not None:
            return f"select “{action.text}” in {name}"
    return " ".join([action.type, *(f"{key} {value}" for key, value in values.items())])


def _bounded(value: Any) -> Any:
    """Return a value with each text in it cut at `MAX_TEXT` characters."""
    match value:
        case str():
            left_out = len(value) - MAX_TEXT
            return value if left_out <= 0 else f"{value[:MAX_TEXT]}\n… {left_out:,} more characters"
        case dict():
            return {key: _bounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_bounded(inner) for inner in value]
    return value

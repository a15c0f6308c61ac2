"""Writes the folder of a small made-up run through the real types and ``RunStore``.

Metrics, evaluations, groups, trajectories and blobs, always the same for the same arguments. For
tests of what reads a run; it needs no browser, model or flow.
"""

from __future__ import annotations

import copy
import functools
import io
import math
import random
import shutil
from pathlib import Path
from typing import Any

import orjson
from PIL import Image, ImageDraw

from envs.rewards import score
from envs.types import (
    Click,
    Cost,
    Element,
    Invalid,
    Observation,
    PartRole,
    RewardBundle,
    RewardPart,
    SeedRange,
    Split,
    Step,
    StepSeconds,
    StopReason,
    Trajectory,
    Type,
    WebTask,
)
from training.ledger.store import RunStore, write_json
from training.records.groups import EpisodeSummary, GroupRecord

HOSTILE = "Click </script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> & \"Ok\""
"""An instruction that takes over any page that shows it as markup."""

KINDS = {
    "click-test": (0.95, 1.0),
    "click-button": (0.55, 0.98),
    "click-dialog-2": (0.4, 0.9),
    "click-checkboxes": (0.1, 0.75),
    "enter-text": (0.3, 0.95),
    "login-user": (0.05, 0.7),
    "choose-list": (0.35, 0.3),
}
JUDGED = "login-user"
"""The kind with a rubric, part of it before a judge."""
READS = {"click-button", "click-dialog-2", "click-checkboxes", "enter-text", "login-user", "choose-list"}
VIEWPORT = (160, 210)


class SyntheticRun:
    """Builds a run of ``iterations`` with an evaluation every ``every``; ``finished`` adds
    ``result.json``."""

    def __init__(
        self, root: Path, *, iterations: int = 6, every: int = 3, finished: bool = True, seed: int = 7
    ) -> None:
        self.store = RunStore(root)
        self.random = random.Random(seed)
        self.iterations, self.every = iterations, every
        self.evaluated: list[dict[str, Any]] = []
        self.wall = 0.0
        self._write_set_up()
        self._evaluate(0)
        for iteration in range(iterations):
            self._iterate(iteration)
            if (iteration + 1) % every == 0:
                self._evaluate(iteration + 1)
        if finished:
            self._finish()

    @property
    def root(self) -> Path:
        """The run's folder."""
        return self.store.root

    def copied(self, root: Path) -> SyntheticRun:
        """The same run in another folder: a fifth of the time that writing it takes."""
        other = copy.deepcopy(self, {id(self.store): RunStore(root)})
        shutil.copytree(self.root, root)
        return other

    def _write_set_up(self) -> None:
        config = {
            "preset": "tiny-miniwob",
            "seed": 7,
            "rollout": {"group_size": 8, "groups": 4, "temperature": 1.0, "batch_deadline": 0.5},
            "train": {"learning_rate": 3e-4, "clip": [0.2, 0.28], "deepspeed": None, "lora": False},
            "evaluate": {"every": self.every, "episodes": 140},
        }
        document = {
            "config": config,
            "versions": {"prefect": "3.8.1", "torch": "2.13.0"},
            "git_commit": "a1b2c3d4e5f6a7b8",
        }
        write_json(self.store.config_path, document)
        self.store.tasks_path.write_bytes(
            b"".join(orjson.dumps(_task(kind).model_dump(mode="json")) + b"\n" for kind in KINDS)
        )

    def _skill(self, kind: str, version: int) -> float:
        low, high = KINDS[kind]
        return low + (high - low) * (1 - math.exp(-4 * version / self.iterations))

    def _line(self, value: dict[str, Any]) -> None:
        with open(self.store.metrics_path, "ab") as file:
            file.write(orjson.dumps(value) + b"\n")

    def _evaluate(self, version: int) -> None:
        self.wall += 7.0
        means = {kind: {"mean": round(self._skill(kind, version) * 20) / 20, "n": 20} for kind in KINDS}
        mean = sum(value["mean"] for value in means.values()) / len(means)
        half = 1.96 * math.sqrt(mean * (1 - mean) / (20 * len(means)))
        value: dict[str, Any] = {
            "version": version,
            "mean": mean,
            "low": mean - half,
            "high": min(1.0, mean + half),
            "n": 20 * len(means),
        }
        value |= {"by_kind": means, "seconds": 7.1}
        episodes = []
        for index, kind in enumerate(KINDS):
            chance = means[kind]["mean"]
            episodes += self._group(
                f"e{version:06d}", index, kind, version, [chance > 0.5 or n % 3 == 0 for n in range(3)]
            )
        write_json(self.store.evaluation_path(version), value | {"episodes": episodes})
        self._line({"kind": "evaluation", "wall": self.wall, **value})
        self.evaluated.append(value)

    def _iterate(self, iteration: int) -> None:
        self.wall += 21.5
        phase = f"i{iteration:06d}"
        for index, kind in enumerate(KINDS):
            chance = self._skill(kind, iteration)
            self._group(phase, index, kind, iteration, [self.random.random() < chance for _ in range(4)])
        if iteration == 1:
            self._group(phase, 90, "click-test", iteration, [None])
        done = iteration / max(1, self.iterations)
        seconds = {
            "sample": 0.1,
            "rollout": 12.0,
            "reward": 0.4,
            "batch": 0.2,
            "train": 6.9,
            "publish": 0.6,
            "orchestrate": 1.3,
        }
        abstained = 1 if iteration == 1 else 0
        self._line(
            {
                "kind": "iteration",
                "iteration": iteration,
                "version": iteration + 1,
                "wall": self.wall,
                "seconds": seconds | {"total": 21.5},
                "train_split": {"train": seconds["train"]},
                "rollout_split": {"browser": 4.4, "generate": 6.2, "store": 0.5, "idle": 0.9},
                "success": sum(self._skill(k, iteration) for k in KINDS) / len(KINDS)
                + self.random.uniform(-0.08, 0.04),
                "success_by_kind": {"click-test": {"mean": 1.0, "n": 16}},
                "groups": {"total": 32, "zero_variance": int(8 + 12 * done)},
                "episodes": {
                    "started": 256,
                    "consumed": 192 - int(96 * done) - abstained,
                    "failed_filter": 64 + int(96 * done),
                    "abstained": abstained,
                },
                "pipelines": [
                    {
                        "encode": {"done": 40},
                        "reward": {"seconds": {"program": 0.25, "ask": 2.0}, "waiting_seconds": 0.5, "timed_out": 1},
                    }
                ],
                "steps_mean": 1.4 - 0.2 * done,
                "response_tokens_mean": 6.8,
                "train": {
                    "loss": -0.02 + 0.01 * self.random.random(),
                    "entropy": 0.8 * math.exp(-2 * done) + 0.03 * self.random.random(),
                    "clip_fraction": 0.02 + 0.03 * self.random.random(),
                    "kl_behaviour": 0.004 * self.random.random(),
                    "grad_norm": 0.9 + 0.5 * self.random.random(),
                    "ratio": 1 + 0.01 * self.random.uniform(-1, 1),
                    "behaviour_masked": 0.0,
                    "learning_rate": 3e-4,
                    "kl_reference": None,
                },
            }
        )

    def _group(self, phase: str, index: int, kind: str, version: int, outcomes: list[bool | None]) -> list[str]:
        group_id = f"{phase}-g{index:04d}"
        members: list[EpisodeSummary] = []
        for sample, passed in enumerate(outcomes):
            trajectory = self._episode(f"{group_id}-s{sample}", group_id, kind, version, 500 + index, sample, passed)
            self.store.put_trajectory(trajectory)
            members.append(EpisodeSummary.of(trajectory))
        record = GroupRecord(
            token="",
            group_id=group_id,
            task_id=f"miniwob/{kind}",
            kind=kind,
            policy_version=version,
            episodes=tuple(members),
        )
        write_json(self.store.group_path(group_id), record)
        return [member.episode_id for member in members]

    def _episode(
        self, episode_id: str, group_id: str, kind: str, version: int, seed: int, sample: int, passed: bool | None
    ) -> Trajectory:
        broken = passed is None
        fields = kind in ("enter-text", "login-user")
        actions: list[Click | Type | Invalid] = (
            [Type(element=1, text="lottie<b>"), Click(element=3)] if fields else [Click(element=2)]
        )
        if passed is False:
            actions = [Invalid(reason="no JSON object in the response"), Click(element=1)]
        steps = tuple(
            self._step(i, action, kind, seed, version, i and passed is False) for i, action in enumerate(actions)
        )
        part = RewardPart(
            name="page",
            value=1.0 if passed else 0.0,
            weight=1.0,
            evidence="the page reported raw reward " + ("1" if passed else "-1"),
        )
        absent = RewardPart(name="judge", value=None, weight=0.5, evidence="no judge is configured")
        reward = RewardBundle(parts=(part, absent), score=1.0 if passed else 0.0, passed=bool(passed))
        if kind == JUDGED and passed is not None:
            reward = _judged(passed)
        stop = StopReason.DONE if passed else StopReason.HORIZON
        if broken:
            cause = "Chromium closed the connection"
            reward, stop = RewardBundle(score=None, passed=False, abstained=cause), StopReason.BROWSER_ERROR
        return Trajectory(
            episode_id=episode_id,
            group_id=group_id,
            task_id=f"miniwob/{kind}",
            kind=kind,
            seed=seed,
            sample=sample,
            policy_version=version,
            steps=() if broken else steps,
            stop_reason=stop,
            reward=reward,
            seconds=1.73,
            page_facts={"raw_reward": 1.0 if passed else -1.0, "done": bool(passed)},
            error="Target closed" if broken else None,
        )

    def _step(
        self, index: int, action: Click | Type | Invalid, kind: str, seed: int, version: int, failed: Any
    ) -> Step:
        instruction = HOSTILE if kind == "click-button" else f"Do what {kind} asks, then press Submit."
        elements = (
            Element(
                index=1,
                tag="input",
                text="Username",
                value="lot" if index else "",
                box=(10, 62, 90, 18),
                focused=bool(index),
            ),
            Element(index=2, tag="button", text="Ok", box=(104, 61, 44, 20)),
            Element(index=3, tag="button", text="Submit", box=(10, 176, 60, 22)),
            Element(index=4, tag="checkbox", text="Remember me", box=(10, 92, 13, 13), checked=True),
        )
        target = next((e for e in elements if e.index == getattr(action, "element", None)), None)
        response = "Sure, I will do it!" if isinstance(action, Invalid) else action.model_dump_json()
        observation = Observation(
            instruction=instruction,
            elements=elements,
            url=f"http://miniwob.rollwright/{kind}.html?seed={seed}",
            viewport=VIEWPORT,
            error="that was no action; answer with one JSON object" if failed else None,
        )
        logprobs = tuple(-abs(self.random.gauss(0, 0.5)) for _ in range(9))
        return Step(
            index=index,
            observation=observation,
            screenshot=self.store.put_blob(_screenshot(kind, seed, elements)),
            prompt=f"{instruction}\n" + "\n".join(f"[{e.index}] {e.tag} {e.text}" for e in elements),
            prompt_ids=tuple(range(90)),
            response=response,
            response_ids=tuple(range(700, 709)),
            logprobs=logprobs,
            policy_version=version,
            action=action,
            point=(target.box[0] + target.box[2] / 2, target.box[1] + target.box[3] / 2) if target else None,
            seconds=StepSeconds(observe=0.03, generate=0.41, act=0.08),
        )

    def _finish(self) -> None:
        def interval(value: dict[str, Any]) -> dict[str, Any]:
            return {key: value[key] for key in ("mean", "low", "high", "n")}

        first, last = self.evaluated[0], self.evaluated[-1]
        changes = {
            k: {"before": first["by_kind"][k]["mean"], "after": last["by_kind"][k]["mean"], "n": 20} for k in KINDS
        }
        n = self.iterations
        write_json(
            self.store.result_path,
            {
                "success_before": interval(first),
                "success_after": interval(last),
                "success_by_kind": changes,
                "seconds": {
                    "total": self.wall + 15,
                    "set_up": 14.2,
                    "evaluate": 7.1 * len(self.evaluated),
                    "rollout": 12.0 * n,
                },
                "peak_rss_mb": 2310.4,
                "seed": 7,
                "versions": {"torch": "2.13.0"},
                "episodes": {
                    "started": 256 * n,
                    "consumed": 150 * n,
                    "failed_filter": 106 * n - 3,
                    "abstained": 1,
                    "in_flight": 2,
                },
            },
        )


def _judged(passed: bool) -> RewardBundle:
    """A page's fact, a judge's with a hostile remark, a gate and a penalty."""
    value, hostile = float(passed), "<img src=x onerror='window.hacked = 3'>"
    return score(
        [
            RewardPart(name="page/at", value=1.0, weight=1.0, evidence="at /home", required=True),
            RewardPart(
                name="seen/name",
                value=value,
                weight=3.0,
                evidence=f"the judge saw {hostile}",
                holds_at=0.5,
                cost=Cost(seconds=1.5, tokens=1200, dollars=0.002),
            ),
            RewardPart(name="gate/grounded", value=value, weight=1.0, evidence="as shown", role=PartRole.GATE),
            RewardPart(name="performance", value=0.9, weight=0.5, evidence="layout 3 ms", role=PartRole.SHAPING),
            RewardPart(name="length", value=-0.5, weight=0.1, evidence="2 steps of 4", role=PartRole.PENALTY),
        ],
        rubric_hash="ab" * 32,
    )


def _task(kind: str) -> WebTask:
    seeds = {Split.TRAIN: SeedRange(start=0, stop=500), Split.HELD_OUT: SeedRange(start=500, stop=600)}
    return WebTask(
        task_id=f"miniwob/{kind}",
        site="miniwob",
        kind=kind,
        path=f"/{kind}.html",
        difficulty=1,
        horizon=4,
        seeds=seeds,
        needs_reading=kind in READS,
    )


@functools.cache
def _screenshot(kind: str, seed: int, elements: tuple[Element, ...]) -> bytes:
    image = Image.new("RGB", VIEWPORT, "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 160, 50), fill="#ffff80")
    draw.text((6, 8), f"{kind}\n(seed {seed})", fill="black")
    for element in elements:
        x, y, width, height = element.box
        draw.rectangle((x, y, x + width, y + height), outline="#888", fill="#eee")
        draw.text((x + 4, y + 4), element.text, fill="black")
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return buffer.getvalue()

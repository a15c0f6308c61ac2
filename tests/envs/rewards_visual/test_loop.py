"""Design2Code, DOM similarity and step diffs in the loop: real browser, real sites, real store; the
policy says what it is told to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from envs.actions.parsing import format_action
from envs.browser import BrowserPool
from envs.episodes import part_sources
from envs.episodes.page_renderer import PageRenderer
from envs.episodes.reference_page import NOT_RECORDED
from envs.episodes.visual_evidence import PageEvidence, VisualRewardSources
from envs.rewards import GradingEvidence, read_rubric
from envs.rewards.chromiumrl import DomSnapshot, StepDiff
from envs.rewards.design2code import Image
from envs.rewards.design2code.source import NOTHING, DesignSource, submitted
from envs.rewards.judge import JudgeCase, JudgeStep, Purpose
from envs.rewards.judge.prompts import about_pictures
from envs.rewards.judge_facts import RubricJudge
from envs.sites import Design2CodeSite, Site, StaticSite
from envs.sites.design2code import FOLDER, import_tasks
from envs.types import ErrorCode, Rubric, SiteError, Step, StopReason, Submit, Trajectory, WebTask
from tasks_lib.config import RewardConfig
from tasks_lib.worker.actors import Turn
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.requests import pool_options
from tasks_lib.worker.reward_stage import RewardStage
from tests.builders import make_task
from tests.turns import make_turn
from training.config import PolicyConfig
from training.ledger.store import RunStore
from training.records.groups import GroupSpec

FORM = """<!DOCTYPE html><title>t</title><body><h1>Order</h1><input id=name aria-label=Name>
<button onclick="document.body.insertAdjacentHTML('beforeend', '<p>Ordered by ' + document.getElementById('name').value + '</p>')">Order</button>"""
DONE = (
    FORM.replace("<input id=name aria-label=Name>", '<input id=name aria-label=Name value="Ada">')
    + "<p>Ordered by Ada</p>"
)


@contextmanager
def clock(doing: str) -> Iterator[None]:
    yield


async def play(
    site: Site,
    episodes: Sequence[tuple[WebTask, Sequence[str]]],
    store: RunStore,
    *,
    dom_diffs: bool = False,
    clip: Any = None,
) -> list[Trajectory]:
    """Episodes on a site with these responses, at once, graded."""
    from tasks_lib.config import RolloutConfig

    rollout = RolloutConfig(dom_diffs=dom_diffs)

    await site.start()
    try:
        async with BrowserPool(pool_options(rollout, PolicyConfig())) as pool:
            looks = VisualRewardSources(pool, {site.name: site}, store.blob, clip)
            stage = RewardStage(
                RewardConfig(),
                clock,  # type: ignore[arg-type]
                sources=[*part_sources(), *looks.sources],
                measure=looks.measured,
                screenshot=store.blob,
            )

            async def one(number: int, task: WebTask, responses: Sequence[str]) -> Trajectory:
                said = iter(responses)

                async def turn(situation: Any) -> Turn:
                    return make_turn(situation, next(said), screenshot=store.put_blob(situation.frame.screenshot))

                runner: Any = EpisodeRunner(
                    pool=pool,
                    sites={site.name: site},
                    actor=SimpleNamespace(policy_version=0),  # type: ignore[arg-type]
                    turns=SimpleNamespace(run=turn),  # type: ignore[arg-type]
                    clock=clock,  # type: ignore[arg-type]
                    rollout=rollout,
                    evidence=PageEvidence(store.put_blob) if dom_diffs else None,
                )
                group = GroupSpec(group_id=f"i000000-g{number:04d}", task=task, seeds=(0,))
                *_, ended = await runner.run(group, 0, SlotStatus())
                assert ended.error is None, ended.error
                return await stage.grade(task, ended)

            ended = list(await asyncio.gather(*(one(at, *each) for at, each in enumerate(episodes))))
    finally:
        await site.close()
    assert [Trajectory.model_validate_json(each.model_dump_json()) for each in ended] == ended
    return ended


def submit(html: str) -> str:
    return format_action(Submit(html=html))


async def test_submitted_pages_are_graded_and_nothing_submitted_is_a_failure(tmp_path: Path) -> None:
    task = import_tasks()[2]
    html = (FOLDER / "3.html").read_text(encoding="utf-8")
    faulty = html.replace("#5b2a86", "#1a2a86").replace("Full name", "Surname")
    same, worse, gave_up, retried, bad = await play(
        Design2CodeSite(),
        [
            (task, [submit(html)]),
            (task, [submit(faulty)]),
            (task, ['{"action": "terminate"}']),
            (task, [submit(" "), submit(html)]),
            (
                task,
                ["```json\n" + json.dumps({"action": "submit_page", "code": "<h1>Create your card</h1>"}) + "\n```"],
            ),
        ],
        RunStore(tmp_path),
    )
    assert same.stop_reason is StopReason.SUBMITTED and same.reward.score == 1.0 and same.reward.passed
    (part,) = same.reward.parts
    assert (
        part.name == "design2code"
        and "block_match 1.000, text 1.000" in part.evidence
        and "ssim 1.000" in part.evidence
    )
    assert worse.reward.score is not None and 0.8 < worse.reward.score < 1
    assert gave_up.reward.score == 0 and gave_up.reward.parts[0].evidence == NOTHING and not gave_up.reward.passed
    assert retried.steps[0].error is ErrorCode.EMPTY_SUBMISSION and retried.reward.score == 1.0
    assert bad.stop_reason is StopReason.SUBMITTED and bad.reward.score is not None and 0 < bad.reward.score < 0.8
    assert not bad.reward.passed


async def test_clip_takes_the_place_of_ssim_and_sees_no_letters(tmp_path: Path) -> None:
    seen: list[tuple[Image, Image]] = []

    def clip(first: Image, second: Image) -> float:
        seen.append((first, second))
        return 0.25

    html = (FOLDER / "3.html").read_text(encoding="utf-8")
    (ended,) = await play(Design2CodeSite(), [(import_tasks()[2], [submit(html)])], RunStore(tmp_path), clip=clip)
    assert ended.reward.score == pytest.approx((4 + 0.25) / 5) and "clip 0.250" in ended.reward.parts[0].evidence
    ((first, second),) = seen
    assert np.array_equal(first, second) and first.shape == (728, 1288, 3)
    # Left of the form there is nothing but text on one colour.
    assert (first[:, :450] == first[0, 0]).all()


def test_what_was_handed_in_is_the_last_action_that_was_taken() -> None:
    def ended(*steps: tuple[Any, ErrorCode | None]) -> GradingEvidence:
        made = [SimpleNamespace(action=action, error=error) for action, error in steps]
        return GradingEvidence.model_construct(steps=tuple(made))

    page = Submit(html="<p>")
    assert submitted(ended((page, None))) == "<p>"
    assert submitted(ended((page, ErrorCode.NOT_OFFERED))) is None
    assert submitted(ended((page, None), (SimpleNamespace(), None))) is None and submitted(ended()) is None


async def test_visual_parts_need_the_site_and_a_reference() -> None:
    def reference(task: WebTask) -> str:
        raise SiteError("no such page")

    source = DesignSource(PageRenderer(None), reference)  # type: ignore[arg-type]
    task = import_tasks()[0]
    assert (await source.parts(task.model_copy(update={"site": "shop"}), GradingEvidence())) == ()
    step = SimpleNamespace(action=Submit(html="<p>"), error=None)
    with pytest.raises(SiteError, match="no such page"):
        await source.parts(task, GradingEvidence.model_construct(steps=(step,)))
    with pytest.raises(SiteError, match=r"99\.html is not there"):
        Design2CodeSite().reference(task.model_copy(update={"path": "/99.png"}))


async def test_a_reference_that_is_no_text_is_told_and_read_in_a_thread(tmp_path: Path) -> None:
    (tmp_path / "1.html").write_bytes(b"<p>\xff</p>")
    task = import_tasks()[0].model_copy(update={"path": "/1.png"})
    site, threads = Design2CodeSite(tmp_path), list[int]()
    with pytest.raises(SiteError, match=r"1\.html cannot be read as UTF-8"):
        site.reference(task)

    def reference(task: WebTask) -> str:
        threads.append(threading.get_ident())
        return site.reference(task)

    step = SimpleNamespace(action=Submit(html="<p>"), error=None)
    source = DesignSource(PageRenderer(None), reference)  # type: ignore[arg-type]
    with pytest.raises(SiteError, match="cannot be read"):
        await source.parts(task, GradingEvidence.model_construct(steps=(step,)))
    assert threads and threads != [threading.get_ident()]


def shop(folder: Path) -> StaticSite:
    folder.mkdir()
    (folder / "form.html").write_text(FORM, encoding="utf-8")
    (folder / "done.html").write_text(DONE, encoding="utf-8")
    return StaticSite("shop", folder)


def order(reference: str = "/done.html", rubric: Rubric | None = None) -> WebTask:
    return make_task("shop/order", path="/form.html", instruction="Order as Ada.", reference=reference, rubric=rubric)


RIGHT = ('type [1] "Ada"', "click [2]", '{"action": "terminate"}')
WRONG = ('type [1] "Bob"', '{"action": "terminate"}')
LIKE = read_rubric(
    {"fact_groups": [{"name": "page", "facts": [{"id": "text", "type": "domdiff_subscore", "key": "textSimilarity"}]}]}
)


@pytest.fixture(scope="module")
async def ordered(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, list[Trajectory]]:
    """Right and wrong by similarity, right and wrong by a rubric, and two with a reference that is
    not there."""
    folder = tmp_path_factory.mktemp("ordered")
    store = RunStore(folder / "run")
    tasks = [order(), order(rubric=LIKE), order("/gone.html"), order("/gone.html", LIKE)]
    episodes = [(tasks[0], RIGHT), (tasks[0], WRONG), (tasks[1], RIGHT), (tasks[1], WRONG)]
    return store, await play(
        shop(folder / "shop"), [*episodes, (tasks[2], WRONG), (tasks[3], WRONG)], store, dom_diffs=True
    )


def test_the_last_page_is_compared_with_the_reference(ordered: tuple[RunStore, list[Trajectory]]) -> None:
    right, wrong, rubric_right, rubric_wrong, *_ = ordered[1]
    (part,) = right.reward.parts
    assert part.name == "dom_similarity" and part.evidence.startswith("native: ")
    assert wrong.reward.score is not None and right.reward.score is not None
    assert wrong.reward.score < right.reward.score and right.reward.score > 0.9
    assert rubric_right.reward.parts[0].value is not None and rubric_wrong.reward.parts[0].value is not None
    assert rubric_wrong.reward.parts[0].value < rubric_right.reward.parts[0].value


def test_a_reference_that_is_not_there_is_no_reward(ordered: tuple[RunStore, list[Trajectory]]) -> None:
    for ended in ordered[1][-2:]:
        assert ended.reward.score is None
        assert any("gone.html is not there" in part.evidence for part in ended.reward.parts)


def test_steps_are_told_by_their_differences(ordered: tuple[RunStore, list[Trajectory]]) -> None:
    store, (right, *_) = ordered
    typed, clicked, told = (step.dom_diff for step in right.steps)
    diff = StepDiff.model_validate_json(store.blob(typed))
    assert [(change.kind, change.after) for change in diff.changed] == [("attr:value", "Ada")]
    assert diff.schema_version == "1.0"
    (added,) = StepDiff.model_validate_json(store.blob(clicked)).added
    assert added.tag == "p" and added.text == "Ordered by Ada" and told == ""
    last = DomSnapshot.model_validate_json(store.blob(right.final_dom))
    assert "Ordered by Ada" in [node.text for node in last.nodes] and last.document


def test_the_judge_is_shown_what_steps_changed(ordered: tuple[RunStore, list[Trajectory]]) -> None:
    store, (ended, *_) = ordered
    grading = RubricJudge(None, LIKE, instruction="Order.", screenshot=store.blob)  # type: ignore[arg-type]
    episode = grading._episode(GradingEvidence.of(ended))
    assert 'attr:value of input[1]: "" -> "Ada"' in episode.steps[0].changes
    assert 'added p: "Ordered by Ada"' in episode.steps[1].changes and episode.steps[2].changes == ""
    asked = about_pictures(Purpose.VERDICT, episode, [0, 1, 2], page_text_chars=1000)
    assert asked.text.count("document changes by the action") == 2 and '| added p: "Ordered by Ada"' in asked.text
    assert "document changes by the action" not in about_pictures(Purpose.VERDICT, episode, [0], page_text_chars=0).text


async def test_the_last_page_is_compared_with_a_dialog_open(tmp_path: Path) -> None:
    asking = FORM.replace('onclick="', 'onclick="confirm(`Sure?`);')
    site = shop(tmp_path / "shop")
    (tmp_path / "shop" / "form.html").write_text(asking, encoding="utf-8")
    task = order().model_copy(update={"horizon": 1})
    (ended,) = await play(site, [(task, ["click [2]"])], RunStore(tmp_path / "run"), dom_diffs=True)
    assert ended.final is not None and ended.final.dialog and ended.stop_reason is StopReason.HORIZON
    assert ended.final_dom and ended.reward.score is not None


async def test_without_captures_nothing_is_kept_and_the_part_says_why(tmp_path: Path) -> None:
    (ended,) = await play(shop(tmp_path / "shop"), [(order(), RIGHT)], RunStore(tmp_path / "run"))
    assert ended.final_dom == "" and {step.dom_diff for step in ended.steps} == {""}
    assert ended.reward.abstained and ended.reward.parts[0].evidence == NOT_RECORDED


def test_steps_without_changes_leave_a_judges_questions_as_they_were() -> None:
    plain = JudgeStep(screenshot=(FOLDER / "1.png").read_bytes(), action="click", url="u", page_text="t")
    episode = JudgeCase(instruction="Do.", steps=(plain,))
    assert "changed" not in about_pictures(Purpose.VERDICT, episode, [0], page_text_chars=9).text
    other = episode.model_copy(update={"steps": (plain.model_copy(update={"changes": "x"}),)})
    assert episode.digest != other.digest
    assert Step.model_fields["dom_diff"].default == ""

"""What an episode was graded on, in the report: a golden episode through the report's function, and
what happens to what cannot be shown."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from PIL import Image
from playwright.sync_api import Browser

from envs.chat import CallError
from envs.rewards import GradingEvidence, grade_by_program, read_rubric
from envs.rewards.chromiumrl import DiffChange, DiffNode, StepDiff
from envs.rewards.chromiumrl.step_diff import MAX_DIFF_TEXT, DiffStats, TextDelta
from envs.rewards.judge import CallRecord, JudgeCheck, Judgement, Purpose
from envs.types import (
    Answer,
    Click,
    Element,
    Fact,
    Observation,
    SeedRange,
    Split,
    Step,
    StopReason,
    Trajectory,
    WebTask,
)
from envs.types.evidence import DomElement, Download, PageReply, PageText, Recorded, ServerAnswer
from tasks_lib.report import build_report
from tasks_lib.report.changes import change_rows, change_words
from tasks_lib.report.evidence import LEFT_OUT, MAX_ROWS, MAX_WORDS, Evidence, cut_text
from tasks_lib.report.facts import DECIDED
from tests.builders import stored_blob
from training.ledger.store import RunStore, write_json
from training.records.groups import EpisodeSummary, GroupRecord

HACK = "<script>window.hacked = 1</script>"
SPARE = "x" * 150
LONG = f"{HACK}{SPARE * 5}"

RUBRIC = read_rubric(
    {
        "fact_groups": [
            {"name": "page", "facts": [
                {"id": "over", "type": "page_fact", "name": "done", "value": True},
                {"id": "seen", "type": "text", "text": "bought", "when": "ever", "weight": 3, "negate": True}]},
            {"name": "look", "weight": 2, "description": f"Looks {HACK}", "facts": [
                {"id": "nice", "type": "judge", "description": "It looks nice"}]},
        ],
        "gates": [{"id": "grounded", "type": "judge", "criterion": "grounded", "description": "Nothing made up"}],
        "pass_threshold": 0.5,
        "pass_requirements": {"required_fact_ids": ["over"], "required_group_ids": ["page"]},
    }
)  # fmt: skip

TASK = WebTask(
    task_id="shop/buy", site="shop", kind="buy", path="/", difficulty=3, horizon=4, rubric=RUBRIC,
    seeds={Split.HELD_OUT: SeedRange(start=0, stop=9)},
)  # fmt: skip

JUDGEMENT = Judgement(
    state="failed",
    score=0.0,
    reason="It claims what was not seen",
    checks=(
        JudgeCheck(purpose=Purpose.CRITERION_B, holds=False, reason=LONG, ayes=1, noes=2),
        JudgeCheck(purpose=Purpose.CRITERION_A, subject="nice", holds=None, reason="timeout: nothing came", lost=3),
    ),
    calls=(
        CallRecord(purpose=Purpose.CRITERION_B, model="m", key="k", seconds=1.5, requests=2, images=2,
                   prompt_tokens=1000, completion_tokens=20, dollars=0.25, trouble="answered 500"),
        CallRecord(purpose=Purpose.CRITERION_A, subject="nice", model="m", vote=1, key="l", seconds=0, requests=0, images=0,
                   cached=True, estimated=True, error=CallError.TIMEOUT, trouble="nothing came"),
    ),
)  # fmt: skip

DIFF = StepDiff(
    cross_document=False,
    added=(DiffNode(path="/html[1]/p[1]", tag="p", text=HACK, nodes=3),),
    changed=(
        DiffChange(path="/html[1]/input[1]", tag="input", kind="attr:value", before="", after="two", source="prop"),
    ),
    flagged_changes=(
        DiffChange(path="/a", tag="a", kind="moved", before="", after="", flag="reflow"),
        DiffChange(path="/b", tag="b", kind="moved", before="", after="", flag="reflow"),
    ),
    stats=DiffStats(totals={"added": 1, "removed": 0, "changed": 1, "flagged_changes": 2}, truncated={"added": 0}),
)

RECORDED = Recorded(
    dom=(DomElement(tag="html"), DomElement(tag="body", parent=0)),
    dom_cut=True,
    downloads=(Download(name=f"{HACK}.csv", size=1234, sha256="ab" * 32),),
    scripts={"1 + 1": PageReply(value=2), "missing.x": PageReply(trouble="ReferenceError: missing", threw=True)},
    server=(
        ServerAnswer(database="shop", asked="SELECT 1", rows=((1, "a"),)),
        ServerAnswer(database=None, asked="/orders", at=("last", 0), value=None, error="answered 500"),
    ),
    looked=(PageText(address="http://shop.test/", text="bought"),),
    absent={"downloads of the window": "it was closed"},
)


def picture(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(buffer, format="JPEG")
    return buffer.getvalue()


def observed(url: str, text: str = "") -> Observation:
    button = Element(index=1, tag="button", text="Buy", box=(1, 2, 10, 10))
    return Observation(instruction="Buy it", elements=(button,), url=url, viewport=(40, 30), text=text, title="Shop")


def golden(store: RunStore, **changed: Any) -> Trajectory:
    """One episode of two steps with all that can be known of its grading."""
    found = GradingEvidence(page_facts={"done": True}, final=observed("http://shop.test/end", "bought"))
    steps = tuple(
        Step(
            index=index, observation=observed("http://shop.test/"), screenshot=store.put_blob(picture("red")), prompt="p",
            prompt_ids=(1,), response="r", response_ids=(2,), logprobs=(-0.1,), policy_version=0, action=action,
            dom_diff=store.put_blob(DIFF.model_dump_json().encode()) if index == 0 else "",
        )
        for index, action in enumerate((Click(element=1), Answer(text=HACK)))
    )  # fmt: skip
    values: dict[str, Any] = {
        "episode_id": "e000000-g0000-s00-a0", "group_id": "e000000-g0000", "task_id": TASK.task_id, "kind": "buy", "seed": 1,
        "sample": 0, "policy_version": 0, "steps": steps, "stop_reason": StopReason.ANSWER, "answer": HACK,
        "final": observed(f"http://shop.test/?{HACK}", f"bought {HACK}"), "final_screenshot": store.put_blob(picture("blue")),
        "final_dom": store.put_blob(b'{"nodes": []}'),
        "judgement": store.put_blob(JUDGEMENT.model_dump_json().encode()),
        "reward": grade_by_program(RUBRIC, found), "recorded": RECORDED,
    }  # fmt: skip
    return Trajectory.model_validate(values | changed)


def write(store: RunStore, trajectory: Trajectory) -> None:
    """The folder of an evaluation with this one episode."""
    store.put_trajectory(trajectory)
    store.put_rubric(RUBRIC)
    summary = EpisodeSummary.of(trajectory)
    record = GroupRecord(
        token="", group_id=trajectory.group_id, task_id=TASK.task_id, kind="buy", policy_version=0, episodes=(summary,)
    )
    write_json(store.group_path(trajectory.group_id), record)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "run")


def shown(store: RunStore) -> tuple[str, dict[str, Any], dict[str, str]]:
    """The page, what its viewer has of the one episode, and the pictures."""
    page = build_report(store.root).read_text()
    found = re.search(r'id="episode-data">(.*?)</script>', page, re.DOTALL)
    assert found
    viewer = json.loads(found[1])
    (episode,) = viewer["episodes"]
    return page, episode, viewer["images"]


# ------------------------------------------------------------------------------------------------ a
# whole episode


def test_what_an_episode_was_graded_on_is_in_the_page(store: RunStore) -> None:
    trajectory = golden(store)
    write(store, trajectory)
    page, episode, images = shown(store)
    assert "could not be read" not in page
    assert HACK not in page and "window.hacked" in page, "it is there, and no markup"

    first, second = episode["changes"]
    assert second is None and first["blob"] == trajectory.steps[0].dom_diff
    assert (first["says"], first["more"]) == ("1 added, 1 changed, 2 as a consequence", 0)
    assert first["rows"] == [
        ["added", "/html[1]/p[1] (3 nodes)", "", HACK],
        ["attr:value (live)", "/html[1]/input[1]", "", "two"],
        ["as a consequence", "", "", "2 by reflow"],
    ]

    judged = episode["judgement"]
    assert (judged["state"], judged["score"], judged["blocked"]) == ("failed", 0.0, False)
    assert (judged["requests"], judged["cached"]) == (2, 1)
    assert judged["cost"] == {"seconds": 1.5, "tokens": 1020, "dollars": 0.25}
    grounded, nice = judged["checks"]["rows"]
    over = len(LONG) - MAX_WORDS
    assert grounded == ["criterion_b", "", False, [1, 2, 0], f"{LONG[:MAX_WORDS]}… ({over} more characters)"]
    assert nice == ["criterion_a", "nice", None, [0, 0, 3], "timeout: nothing came"]
    assert judged["calls"]["rows"] == [
        ["criterion_b", "", 0, "m", 1.5, 2, False, 2, [1000, 20, False], 0.25, "answered 500"],
        ["criterion_a", "nice", 1, "m", 0.0, 0, True, 0, [0, 0, True], 0.0, "timeout: nothing came"],
    ]

    assert episode["final"]["shot"] == trajectory.final_screenshot and episode["final"]["missing"] is None
    assert episode["final"]["text"] == f"bought {HACK}" and episode["final"]["title"] == "Shop"
    assert images.keys() == {trajectory.steps[0].screenshot, trajectory.final_screenshot}
    assert episode["answer"] == HACK


def test_every_fact_is_there_with_what_it_was_decided_by(store: RunStore) -> None:
    write(store, golden(store))
    facts = shown(store)[1]["rubricFacts"]
    assert facts["groups"]["rows"] == [["page", 1.0, True, ""], ["look", 2.0, False, f"Looks {HACK}"]]
    assert (facts["threshold"], facts["floors"], facts["more"]) == (0.5, [], 0)
    assert facts["rows"] == [
        ["page", "over (required)", 'page_fact: {"name":"done","value":true}', 1.0, 1.0, True,
         "program", "what the page declared"],
        ["page", "seen", 'text: {"negate":true,"text":"bought","when":"ever"}', 3.0, 0.0, False,
         "program", "text of any page"],
        ["look", "nice", "judge: It looks nice", 1.0, None, None, "judge", "the screenshots and the answer"],
        ["(gate)", "grounded", 'judge: Nothing made up {"criterion":"grounded"}', None, None, None, "judge", "the screenshots and the answer"],
    ]  # fmt: skip


def test_what_was_read_at_the_end_is_told(store: RunStore) -> None:
    trajectory = golden(store)
    write(store, trajectory)
    assert shown(store)[1]["recorded"] == {
        "more": 0,
        "rows": [
            ["nodes", "of the last page", "2 elements, the first of more"],
            ["download", f"{HACK}.csv", "1,234 bytes, sha256 abababababab…"],
            ["JavaScript", "1 + 1", "2"],
            ["JavaScript", "missing.x", "threw: ReferenceError: missing"],
            ["SQL shop", "SELECT 1", '1 rows: [[1,"a"]]'],
            ["GET", "/orders at last.0", "no answer: answered 500"],
            ["page", "http://shop.test/", "bought"],
            ["not read", "downloads of the window", "it was closed"],
            ["document", "nodes of the last page, for its reference", f"blob {trajectory.final_dom}"],
        ],
    }


def test_the_viewer_shows_it_as_text(store: RunStore, chromium: Browser) -> None:
    write(store, golden(store))
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(build_report(store.root).as_uri())
    detail = page.locator("#detail")
    for summary in detail.locator("summary").all():
        if not summary.evaluate("s => s.parentElement.open"):
            summary.click()
    assert detail.locator(".last-page img").evaluate("i => i.complete && i.naturalWidth") == 40
    changes = [row.split("\t") for row in detail.locator(".changes tbody tr").all_inner_texts()]
    assert changes[0] == ["added", "/html[1]/p[1] (3 nodes)", HACK]
    named = detail.locator(".changes").first.locator("thead th").all_inner_texts()
    assert named == ["what", "where", "after"], "nothing was there before"
    checks = [row.split("\t") for row in detail.locator(".checks tbody tr").all_inner_texts()]
    assert checks[0][:4] == ["criterion_b", "", "no", "1 for, 2 against (contradicted)"]
    assert checks[0][4].startswith(HACK) and checks[0][4].endswith("more characters)")
    assert checks[1] == ["criterion_a", "nice", "abstained", "0 for, 0 against, 3 lost", "timeout: nothing came"]
    calls = [row.split("\t") for row in detail.locator(".calls tbody tr").all_inner_texts()]
    assert calls[0] == ["criterion_b", "", "1", "m", "1.50 s", "2", "2", "1,000 + 20", "$0.250", "answered 500"]
    assert calls[1][5:8] == ["from the cache", "0", "0 + 0 (estimated)"]
    facts = [row.split("\t") for row in detail.locator(".rubric tbody tr").all_inner_texts()]
    assert facts[0][3:] == ["1.00", "1.00", "program", "what the page declared"]
    assert facts[2][4] == "not available"
    assert detail.locator(".recorded tbody tr").count() == 9
    words = detail.inner_text()
    for expected in (
        "After the last action",
        "failed",
        "It claims what was not seen",
        "2 requests",
        f"bought {HACK}",
        "1.50 s, 1,020 tokens",
    ):
        assert expected in words, expected
    assert detail.locator(".given").inner_text() == HACK
    assert page.evaluate("window.hacked") is None and not complaints
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
    context.close()


# ------------------------------------------------------------------------------------------------
# what is not there


def test_an_episode_without_any_of_it_shows_nothing_of_it(store: RunStore) -> None:
    bare = golden(store)
    steps = tuple(step.model_copy(update={"dom_diff": ""}) for step in bare.steps)
    empty = {
        "steps": steps,
        "judgement": "",
        "recorded": None,
        "final": None,
        "final_dom": "",
        "final_screenshot": "",
        "answer": "",
    }
    reward = bare.reward.model_copy(update={"rubric_hash": ""})
    write(store, bare.model_copy(update={**empty, "reward": reward}))
    page, episode, images = shown(store)
    assert episode["changes"] == [None, None] and len(images) == 1
    assert all(episode[key] is None for key in ("judgement", "rubricFacts", "final"))
    assert episode["recorded"] == {"rows": [], "more": 0} and "could not be read" not in page


def test_blobs_that_are_missing_torn_or_something_else_are_named(store: RunStore) -> None:
    trajectory = golden(store)
    other = store.put_blob(b'{"cross_document": 7}')
    steps = tuple(step.model_copy(update={"dom_diff": other}) for step in trajectory.steps)
    trajectory = trajectory.model_copy(update={"steps": steps})
    write(store, trajectory)
    stored_blob(store, trajectory.judgement).write_bytes(b"{")
    stored_blob(store, trajectory.final_screenshot).unlink()
    store.rubric_path(trajectory.reward.rubric_hash).write_text('{"fact_groups": []}')
    page, episode, _ = shown(store)
    assert episode["judgement"] == {"blob": trajectory.judgement, "missing": "its blob is missing or torn"}
    assert episode["final"]["missing"] == "its blob is missing or torn"
    assert [change["missing"] for change in episode["changes"]] == ["its blob is no StepDiff"] * 2
    assert episode["rubricFacts"]["missing"].startswith("its rubric is missing or damaged")
    assert "4 things in the folder could not be read" in page, "the diff of both steps is one"
    assert f"blob {other} is no StepDiff: cross_document" in page and "rubrics/" in page


# ------------------------------------------------------------------------------------------------
# parts


def test_texts_and_tables_are_cut_with_how_much() -> None:
    assert cut_text("abcd", 4) == "abcd" and cut_text("a" * 1500, 500) == "a" * 500 + "… (1,000 more characters)"
    evidence = Evidence(RunStore(Path("nowhere")), [], left=25)
    assert evidence.table([["0123456789", 1], ["x"], ["0123456789"]]) == {"rows": [["0123456789", 1], ["x"]], "more": 1}
    assert evidence.left == 25 - 18 - 1
    many = Evidence(RunStore(Path("nowhere")), [])
    assert many.table([["x"]] * (MAX_ROWS + 2), more=3) == {"rows": [["x"]] * MAX_ROWS, "more": 5}


def test_an_episode_has_room_for_so_much_only(store: RunStore) -> None:
    trajectory = golden(store)
    evidence = Evidence(store, [], left=1)
    assert evidence.change(trajectory.steps[0].dom_diff) == {
        "blob": trajectory.steps[0].dom_diff, "missing": None, "says": change_words(DIFF), "rows": [], "more": 3,
    }  # fmt: skip
    evidence.left = 0
    assert evidence.judgement(trajectory.judgement) == {"blob": trajectory.judgement, "missing": LEFT_OUT}
    assert evidence.change("") is None and not evidence.problems


def test_another_document_is_told_by_its_texts_and_controls() -> None:
    diff = StepDiff(
        cross_document=True,
        text_delta=TextDelta(added=("a" * MAX_DIFF_TEXT,), removed=("old",)),
        top_actions=("button: Buy",),
        stats=DiffStats(totals={"added": 300, "removed": 1, "top_actions": 1}, truncated={"added": 100}),
    )
    assert change_words(diff) == "another document, 300 new texts, 1 gone texts, 1 controls"
    assert [*change_rows(diff)] == [
        ("new text", "", "", f"{'a' * MAX_DIFF_TEXT}… (no more was recorded)"),
        ("gone text", "", "old", ""),
        ("control", "", "", "button: Buy"),
    ]
    nothing = StepDiff(cross_document=False, stats=DiffStats(totals={"added": 0}, truncated={"added": 0}))
    assert change_words(nothing) == "nothing" and not [*change_rows(nothing)]


def test_every_type_of_fact_says_what_it_is_decided_by() -> None:
    union = get_args(Fact)[0]
    assert {each.model_fields["type"].default for each in get_args(union)} == DECIDED.keys()

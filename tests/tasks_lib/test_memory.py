"""Episodes with a memory, on real pages with scripted turns: what is shown, what is kept, what the
page does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from envs.browser import BrowserPool
from envs.sites import MiniWobSite
from envs.types import ErrorCode, Forget, Memory, MemoryChange, MemoryEntry, Remember, StopReason, Trajectory
from tasks_lib.config import RolloutConfig, resolve_path
from tasks_lib.folder.task_sets import select_kinds
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.actors import EncodedSituation, Turn
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.turns import encode_stage, turn_pipeline
from tests.turns import Letters
from training.config import PolicyConfig
from training.ledger.store import RunStore
from training.records.groups import EpisodeSummary, GroupSpec

HEAD = 'remember [key] "value", forget [key]):'


class Script:
    """An actor that says its lines, each sample its own."""

    policy_version = 0

    def __init__(self, *lines: Sequence[str]) -> None:
        self._lines = lines

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        now = asked.situation
        said = self._lines[now.sample][len(now.steps)]
        return Turn(asked, said, (1,), (0.0,), 0)


async def play(
    folder: Path, kind: str, *lines: Sequence[str], notes: Memory = (), **rollout: object
) -> list[Trajectory]:
    """Episodes of one group, all at once: sample k says the k-th lines."""
    (task,) = select_kinds(resolve_path("datasets/tasks/miniwob.jsonl"), [kind])
    task = task.model_copy(update={"horizon": len(lines[0])})
    group = GroupSpec(group_id="i000000-g0000", task=task, seeds=(200_000,) * len(lines), memory=notes)
    config = RolloutConfig.model_validate({"stop_on_invalid": False, "concurrency": 4} | rollout)

    site = MiniWobSite()
    await site.start()
    try:
        with ThreadPoolExecutor(1) as threads:
            async with BrowserPool(max_sessions=len(lines)) as pool:
                actor = Script(*lines)
                encode = encode_stage(Letters(), RunStore(folder), PolicyConfig(), threads, config.memory_budget)
                turns = turn_pipeline(encode, actor, len(lines))
                clock = ActivityClock(("generate", "browser", "reward", "store"))
                runner = EpisodeRunner(pool, {"miniwob": site}, actor, turns, clock, config)
                played = await asyncio.gather(
                    *(runner.run(group, sample, SlotStatus()) for sample in range(len(lines)))
                )
                return [attempts[-1] for attempts in played]
    finally:
        await site.close()


async def test_notes_are_shown_and_the_page_does_not_notice(tmp_path: Path) -> None:
    long = "v" * 501
    lines = [
        'remember [way] "left"',
        f'remember [x] "{long}"',
        "forget [nothing]",
        "forget [way]",
        'remember [b] "c"',
        "click [1]",
    ]
    other = ["hover [1]"] * 6
    first = (MemoryEntry(key="a", value="1"),)
    noted, quiet = await play(tmp_path, "click-test", lines, other, notes=first, memory="episode", repeats=0)
    prompts = [step.prompt.splitlines() for step in noted.steps]
    assert [line for line in prompts[0] if "Memory" in line or " = " in line] == [f"Memory (1 kept; {HEAD}", 'a = "1"']
    assert 'way = "left"' in prompts[1] and f"Memory (2 kept; {HEAD}" in prompts[2]
    assert prompts[2][-2].startswith("Error: too_long: the value has 501 characters")
    assert prompts[3][-2].startswith("Error: no_such_entry: the memory has no entry 'nothing'")
    assert 'way = "left"' not in prompts[4] and "Error" not in prompts[4][-2] and 'b = "c"' in prompts[5]
    assert [step.error for step in noted.steps] == [None, ErrorCode.TOO_LONG, ErrorCode.NO_SUCH_ENTRY, None, None, None]
    assert {step.screenshot for step in noted.steps} == {noted.steps[0].screenshot}
    assert {step.observation.elements for step in noted.steps} == {noted.steps[0].observation.elements}
    assert isinstance(noted.steps[0].action, Remember) and isinstance(noted.steps[3].action, Forget)
    assert noted.stop_reason is StopReason.DONE
    assert float(noted.page_facts["raw_reward"]) > 0, "the click went to the page as if nothing had been"
    assert noted.memory == (MemoryChange(key="b", value="c"),)
    assert EpisodeSummary.of(noted).memory == noted.memory
    # The other episode of the group began with the same and saw nothing of it.
    assert all(f"Memory (1 kept; {HEAD}" in step.prompt.splitlines() for step in quiet.steps)
    assert quiet.memory == () and quiet.stop_reason is StopReason.HORIZON
    store = RunStore(tmp_path)
    store.put_trajectory(noted)
    assert store.trajectory(noted.episode_id) == noted


async def test_without_a_memory_a_note_is_no_action_and_no_prompt_speaks_of_it(tmp_path: Path) -> None:
    (episode,) = await play(tmp_path, "click-test", ['{"action": "remember", "key": "a", "value": "b"}', "hover [1]"])
    assert episode.steps[0].error is ErrorCode.UNKNOWN_ACTION
    assert "no such action: 'remember'; there are click, double_click" in episode.steps[1].prompt
    assert not any("Memory" in step.prompt or "forget" in step.prompt for step in episode.steps)
    assert episode.memory == ()


async def test_passwords_are_not_kept_and_repeated_notes_end_an_episode(tmp_path: Path) -> None:
    secret = [
        'remember [login] "juan hunter22"',
        'type [2] "hunter22"',
        'remember [p] "hunter22"',
        'remember [user] "juan"',
    ]
    again = ['remember [a] "b"'] * 4
    kept, looped = await play(tmp_path, "login-user", secret, again, memory="family")
    assert kept.steps[0].observation.elements[1].tag == "password"
    assert [step.error for step in kept.steps] == [None, None, ErrorCode.SECRET, None]
    assert kept.memory == (MemoryChange(key="user", value="juan"),)
    assert looped.stop_reason is StopReason.REPETITION and len(looped.steps) == 3

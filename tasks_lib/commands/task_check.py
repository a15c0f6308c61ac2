"""Checks that tasks are solvable: plays a known solution and grades it.

The task's own rubric grades it.

Tasks of bundled applications are played over HTTP (26 ms each), or in the browser if a fact needs
one. Tasks of MiniWoB++ are played by the kind's scripted oracle in a browser. Tasks without a known
solution (live and own sites, facts for a judge) are counted by reason, never guessed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envs.bundled.generate import Checker, NoStartPage, TaskDraft, checker, draft_of
from envs.bundled.oracles import ORACLES, follow, is_generated
from envs.tasks import TaskIndex
from envs.tasks.assembly import check_difficulty
from envs.types import (
    AnswerFact,
    HttpFact,
    JudgeFact,
    RewardBundle,
    RollwrightError,
    Rubric,
    SeedRange,
    SqlFact,
    StopReason,
    TaskError,
    TextFact,
    Trajectory,
    UrlFact,
    WebTask,
)
from tasks_lib.commands.solution_play import MINIWOB, SolutionPlay, play_solutions
from tasks_lib.folder.task_sets import check_uploads, read_index, task_paths, task_root, with_hashes
from tasks_lib.preflight.tasks import ALL, SAMPLE
from tasks_lib.processes.startup_interrupt import STATUS, raise_on_interrupt

SEEDS_OF_SPLIT = 2
"""Page seeds of each split that are played.

A faulty task fails on most seeds, and each seed costs an episode in a browser.
"""
SHOWN = 300
"""Most characters of a reason that are printed."""

DESIGNS = "design2code"

LIVE = "live or own site"
JUDGED = "facts for a judge"
NO_SOLUTION = "no known solution"
NO_ORACLE = "no scripted oracle for the kind"
SOME_SEEDS = "oracle fails on some seeds"
UNAVAILABLE = "facts that cannot be observed here"
NOT_PLAYED = "the browser failed"
NO_GRADING = "it has no rubric and no evaluators, and pages of its site declare no reward; give it a rubric"


@dataclass(frozen=True, slots=True)
class Fault:
    """Reason why a task cannot be solved or contradicts itself."""

    task_id: str
    what: str
    split: str = ""
    """Split of the fault; empty if all splits have it."""
    seed: int | None = None

    def __str__(self) -> str:
        where = f" (split {self.split}, seed {self.seed})" if self.split else ""
        what = " ".join(self.what.split())
        return f"{self.task_id}{where}: {what if len(what) <= SHOWN else what[:SHOWN] + '…'}"


@dataclass
class SetCheck:
    """Result of the check of a task set. Each task is counted once."""

    tasks: int = 0
    solved: int = 0
    faults: list[Fault] = field(default_factory=list)
    """Faults, one for each faulty task."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Number of tasks that cannot be checked, by reason."""
    unplayed: int = 0
    """Number of tasks of a large set outside of the sample that was played."""

    def lines(self, file: str) -> Iterator[str]:
        """Yield a line for each faulty task, then the summary."""
        for fault in self.faults:
            yield f"faulty: {fault}"
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.unknown.items()))
        unknown = f"{self.unknown.total():,} cannot be known" + (f" ({reasons})" if reasons else "")
        sampled = f", {self.unplayed:,} were not played (a sample of {SAMPLE:,} was)" if self.unplayed else ""
        yield (
            f"{self.tasks:,} tasks of {file}: {self.solved:,} can be solved, {len(self.faults):,} cannot or are faulty, "
            f"{unknown}{sampled}"
        )


Verdict = Fault | str | None
"""Fault, reason why the task cannot be checked, or ``None`` if it is solved."""


def check_command(file: str) -> int:
    """Check the tasks of ``file`` (a value of ``tasks.file``) and print the result.

    Returns:
        Exit status: 0, 1 if a task cannot be solved, 2 if the files cannot be read, 130 after
        Ctrl-C, with the browser closed.
    """
    try:
        raise_on_interrupt()
        index = read_index(task_paths(file))
        result = asyncio.run(check_set(index, task_root(file)))
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return STATUS
    print("\n".join(result.lines(file)))
    return 1 if result.faults else 0


def file_to_check(arguments: Sequence[str]) -> str | None:
    """Return the file that ``--check`` names on a command line; ``None`` without the option.

    Other arguments beside it end the process, as in argparse.
    """
    parser = argparse.ArgumentParser(prog="python -m flows.build_tasks", add_help=False, allow_abbrev=False)
    parser.add_argument("--check", metavar="FILE")
    options, others = parser.parse_known_args(arguments)
    if options.check is not None and others:
        parser.error(f"--check FILE takes no further arguments; leave out {' '.join(others)}")
    file: str | None = options.check
    return file


async def check_set(tasks: TaskIndex, root: Path) -> SetCheck:
    """Check every task for contradictions, and play those that have a known solution.

    Of more than `ALL` tasks, a fixed sample is played.

    Args:
        tasks: Tasks to check.
        root: Folder that the ``files`` of tasks are relative to.

    Raises:
        BrowserError: there is no browser.
        SiteError: a site cannot be served.
    """
    result = SetCheck(tasks=len(tasks))
    played = {tasks[int(row)].task_id for row in tasks.stratified(SAMPLE, 0)} if len(tasks) > ALL else None
    verdicts: dict[str, Verdict] = {}
    in_browser: list[SolutionPlay] = []
    async with checker() as check:
        for row in tasks:
            verdict: Verdict
            task, verdict = _find_contradiction(row, root)
            if verdict is None and played is not None and task.task_id not in played:
                result.unplayed += 1
                continue
            if verdict is None:
                outcome = await _over_http(check, task) if check.serves(task.site) else _by_oracle(task)
                if isinstance(outcome, list):
                    in_browser += outcome
                    verdict = None
                else:
                    verdict = outcome
            verdicts[task.task_id] = verdict
    by_task: dict[str, list[tuple[str, Verdict]]] = {}
    for play, verdict in zip(in_browser, await _play_all(in_browser), strict=True):
        by_task.setdefault(play.task.task_id, []).append((play.split, verdict))
    verdicts |= {task_id: _combine_verdicts(played_seeds) for task_id, played_seeds in by_task.items()}
    for verdict in verdicts.values():
        if verdict is None:
            result.solved += 1
        elif isinstance(verdict, Fault):
            result.faults.append(verdict)
        else:
            result.unknown[verdict] += 1
    return result


def _find_contradiction(task: WebTask, root: Path) -> tuple[WebTask, Fault | None]:
    """Return the task with its hashes, and its fault if it has one without playing it."""
    problems = [f"{name} {reason}" for name, reason in check_difficulty(task)]
    if not task.seeds:
        problems.append("seeds: it has none, so no split can draw it")
    try:
        check_uploads([task], root)
        task = with_hashes(task)
    except TaskError as error:
        problems.append(str(error))
    declares = task.site in (MINIWOB, DESIGNS) or bool(task.reference)
    if task.rubric is None and task.evaluators is None and not declares:
        problems.append(NO_GRADING)
    return task, Fault(task.task_id, "; ".join(problems)) if problems else None


def _seeds(task: WebTask) -> Iterator[tuple[str, int]]:
    """Yield (split, seed) of the episodes to play, spread over the seeds of each split."""
    for split, seeds in task.seeds.items():
        for seed in _spread_seeds(seeds):
            yield str(split), seed


def _spread_seeds(seeds: SeedRange) -> Iterable[int]:
    count = min(SEEDS_OF_SPLIT, len(seeds))
    return (seeds.start + number * len(seeds) // count for number in range(count))


async def _over_http(check: Checker, task: WebTask) -> Verdict | list[SolutionPlay]:
    """Play the solution of a task of a bundled application over HTTP.

    Returns:
        The verdict, or the episodes to play in the browser if the verdict depends on them.
    """
    if task.rubric is None:
        return NO_SOLUTION
    draft, part = _draft(task)
    plan = draft.plan if draft is not None else ()
    for split, seed in _seeds(task):
        try:
            reward = await check.play(task, plan, seed)
        except TaskError as error:
            if isinstance(error, NoStartPage) or _is_ours(task, draft, part):
                return Fault(task.task_id, str(error), split, seed)
            return NO_SOLUTION
        if draft is None:
            continue
        if _needs_browser(task.rubric):
            return [SolutionPlay(task, split, seed, follow(plan)) for split, seed in _seeds(task)]
        verdict = _graded(task, reward, split, seed)
        if isinstance(verdict, Fault) and not _is_ours(task, draft, part):
            return NO_SOLUTION
        if verdict is not None:
            return verdict
        if len(plan) > task.horizon:
            if part:  # a part may need less than the whole task's solution
                return NO_SOLUTION
            return Fault(
                task.task_id,
                f"horizon {task.horizon} is less than the {len(plan)} steps of its solution; set horizon to {len(plan)} or more",
                split,
                seed,
            )
    return None if draft is not None else NO_SOLUTION


def _draft(task: WebTask) -> tuple[TaskDraft | None, bool]:
    """Return the draft of a generated task, and True if the task is a part of another.

    The draft of a part is that of its whole task. It is ``None`` for tasks that are not generated.
    """
    whole, tilde, _ = task.task_id.partition("~")
    kind, _, rest = whole.partition("/")
    seed, _, number = rest.partition("/")
    if not (is_generated(task) and kind == task.kind and seed.isdigit() and number.isdigit()):
        return None, bool(tilde)
    return draft_of(kind, int(seed), int(number)), bool(tilde)


def _is_ours(task: WebTask, draft: TaskDraft | None, part: bool) -> bool:
    """True if the draft's plan does what the instruction asks for.

    Otherwise its failure says nothing about the task.
    """
    return draft is not None and (part or task.instruction in draft.wordings)


def _needs_browser(rubric: Rubric) -> bool:
    """True if a fact is about more than the last page's text, the answer and the server."""
    plain = (UrlFact, TextFact, AnswerFact, SqlFact, HttpFact, JudgeFact)
    return any(not isinstance(fact, plain) or getattr(fact, "when", "end") == "ever" for fact in rubric.facts())


def _by_oracle(task: WebTask) -> Verdict | list[SolutionPlay]:
    """Return the browser episodes of a task of another site, or the reason why there are none."""
    if task.site == MINIWOB:
        if task.kind not in ORACLES:
            return NO_ORACLE
        return [SolutionPlay(task, split, seed, ORACLES[task.kind]) for split, seed in _seeds(task)]
    return NO_SOLUTION if task.site == DESIGNS else LIVE


def _graded(task: WebTask, reward: RewardBundle, split: str, seed: int) -> Verdict:
    """Return the verdict on a task from the reward of its solution."""
    missed = [part for part in reward.parts if part.value is not None and part.value < 1]
    evidence = "; ".join(f"{part.name}: {part.evidence}" for part in missed) or "; ".join(reward.failed)
    judged = task.rubric is not None and any(isinstance(fact, JudgeFact) for fact in task.rubric.facts())
    if reward.abstained is not None:
        return JUDGED if judged else UNAVAILABLE
    if not reward.passed:
        return Fault(task.task_id, f"its solution does not pass: {evidence}", split, seed)
    if any(part.value is None for part in reward.parts):
        return JUDGED if judged else UNAVAILABLE
    return None


async def _play_all(plays: Sequence[SolutionPlay]) -> list[Verdict]:
    """Play episodes in a browser and return their verdicts."""
    outcomes = await play_solutions(plays)
    return [_episode_verdict(play, outcome) for play, outcome in zip(plays, outcomes, strict=True)]


def _combine_verdicts(plays: Sequence[tuple[str, Verdict]]) -> Verdict:
    """Combine the verdicts of a task's episodes, given as (split, verdict).

    The task is faulty if no played seed of a split was solved. An oracle that solves some seeds
    proves nothing by failing on others: the fault may be its own.
    """
    for split, verdict in plays:
        same_split = [other for name, other in plays if name == split and other != NOT_PLAYED]
        if isinstance(verdict, Fault) and all(isinstance(other, Fault) for other in same_split):
            return verdict
    if any(isinstance(verdict, Fault) for _, verdict in plays):
        return SOME_SEEDS
    return next((verdict for _, verdict in plays if verdict is not None), None)


def _episode_verdict(play: SolutionPlay, trajectory: Trajectory | str) -> Verdict:
    if isinstance(trajectory, str):
        return Fault(play.task.task_id, trajectory, play.split, play.seed)
    if trajectory.error is not None:
        return NOT_PLAYED
    verdict = _graded(play.task, trajectory.reward, play.split, play.seed)
    if not isinstance(verdict, Fault):
        return verdict
    if trajectory.stop_reason is StopReason.HORIZON:
        more = f"not over after the {play.task.horizon} steps of its horizon; set a longer horizon if the page is right"
    elif trajectory.stop_reason is StopReason.INVALID_ACTION:
        more = f"its oracle is at a loss: {trajectory.steps[-1].response}"
    else:
        return verdict
    return Fault(play.task.task_id, f"{more} ({verdict.what})", play.split, play.seed)

"""Checks that a run's sites can be used and its tasks graded.

The checks run before anything is rolled out.

A task can *never be graded* if its reward would abstain whatever an episode does, because a part
that its grading needs (a judge, the nodes of the last page, signals) is not configured. Such a run
would roll out for hours and learn nothing, so it is refused. A task whose grading lacks a part but
still gives a reward is only reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.chat import CallError, Ledger
from envs.rewards import DESIGNS, Component, FactResult, GradingEvidence, combine
from envs.rewards.judge import try_models
from envs.rewards.webarena import (
    ADMIN,
    NOT_ACHIEVABLE,
    PLACEHOLDER,
    EvalType,
    PageCheck,
    WebArenaEval,
    lacking,
    lacking_state,
    placed,
    read_account,
)
from envs.rewards.webarena import SITES as WEBARENA
from envs.sites import SITES, LiveOptions, LiveSite, check_login, is_served, make_site
from envs.tasks import TaskIndex
from envs.types import ConfigError, Fact, JudgeFact, Rubric, SignalFact, SiteError, Split, SubscoreFact, WebTask, near
from tasks_lib.config import RewardConfig, RolloutConfig, TasksConfig
from tasks_lib.worker.requests import WorkerRequest

ALL = 10_000
"""Largest number of tasks of which all are checked, in a second or two."""
SAMPLE = 1000
"""Number of tasks of a larger set that are checked, in the set's shares of sites and difficulties.

A part that is missing is missing for a whole source of tasks.
"""
SHOWN = 20
"""Most problems that an error names; it counts the others."""

MISTYPED = 0.85
"""Similarity of a name with one wrong letter, or two in a long name.

Two hosts of one domain have a similarity of 0.7.
"""

NEEDS_JUDGE = "a judge: set rollout.judge (docs/rewards.md)"
NEEDS_DIFFS = "the nodes of the last page: set rollout.dom_diffs=true"
NEEDS_REFERENCE = "a page to compare with: give the task a reference"
NEEDS_SIGNALS = "the browser's signals: set rollout.signals=true"
NEEDS_GRADING = "a rubric or evaluators: pages of this site declare no end, so give the task one (docs/tasks.md)"
EVERYTHING = dict.fromkeys(("structural", "text", "layout", "style"), 1.0)
"""Best similarities, if they can be measured."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A part that a task's grading needs and that is not configured."""

    what: str
    """Name of the part, with the key to set."""
    never: bool
    """True if the task can then never be graded."""


class Gradable:
    """Finds the parts that the grading of tasks lacks, under one configuration.

    Starts and contacts nothing.
    """

    def __init__(self, rollout: RolloutConfig, rewards: RewardConfig, live: LiveOptions) -> None:
        self._rollout, self._weights, self._live = rollout, rewards.weights(), live
        self._function = bool(rewards.function)
        self._declares: dict[str, bool] = {}

    def find_missing(self, task: WebTask) -> Missing | None:
        """Return the part that the task's grading lacks; ``None`` if it lacks nothing.

        Raises:
            TaskError: there is no site of the task's name.
        """
        if self._function:
            return None
        if task.rubric is not None:
            return self._missing_of_rubric(task.rubric, task)
        if task.evaluators is not None:
            return self._missing_of_evaluators(placed(task.evaluators, self._live.addresses))
        if task.site == DESIGNS and self._weights[Component.VISUAL]:
            return None
        if task.reference and self._weights[Component.SEMANTIC]:
            return None if self._rollout.dom_diffs else Missing(NEEDS_DIFFS, never=True)
        return None if self._page_declares(task) else Missing(NEEDS_GRADING, never=True)

    def _missing_of_rubric(self, rubric: Rubric, task: WebTask) -> Missing | None:
        lacks = {fact.id: what for fact in rubric.facts() if (what := self._lack(fact, task))}
        similar = bool(task.reference) and self._rollout.dom_diffs
        floors = bool(rubric.pass_requirements.floors) and not similar
        if not lacks and not floors:
            return None
        # The best case: every fact that can be checked holds.
        known = {
            fact.id: FactResult(value=None if fact.id in lacks else 1.0, evidence="not available")
            for fact in rubric.facts()
        }
        best = combine(rubric, known, GradingEvidence(domdiff=EVERYTHING if similar else None))
        needs = [*lacks.values(), *([self._no_similarity(task)] if floors else [])]
        return Missing("; and ".join(dict.fromkeys(needs)), never=best.score is None)

    def _lack(self, fact: Fact, task: WebTask) -> str:
        """Return the part that a fact needs and that is not configured; empty if there is none."""
        if isinstance(fact, JudgeFact) and self._rollout.judge is None:
            return NEEDS_JUDGE
        if isinstance(fact, SubscoreFact) and not (task.reference and self._rollout.dom_diffs):
            return self._no_similarity(task)
        if isinstance(fact, SignalFact) and not self._rollout.signals:
            return NEEDS_SIGNALS
        return ""

    def _no_similarity(self, task: WebTask) -> str:
        return NEEDS_DIFFS if task.reference else NEEDS_REFERENCE

    def _missing_of_evaluators(self, evaluators: WebArenaEval) -> Missing | None:
        """Return the part that evaluators lack.

        Their reward is a product, known as soon as one comparison fails. So they do not always
        abstain if one comparison can be made.
        """
        lacks: list[str] = []
        others = False
        wanted = evaluators.reference_answers
        if EvalType.STRING_MATCH in evaluators.eval_types and wanted is not None:
            # The answer N/A itself is right without asking a judge.
            others |= wanted.exact_match is not None or wanted.fuzzy_match == NOT_ACHIEVABLE
            others |= bool(wanted.must_include or wanted.must_exclude or wanted.one_of or wanted.required_values)
            if wanted.fuzzy_match and self._rollout.judge is None:
                lacks.append(NEEDS_JUDGE)
            elif wanted.fuzzy_match:
                others = True
        if EvalType.URL_MATCH in evaluators.eval_types:
            unknown = PLACEHOLDER.search(evaluators.reference_url or "")
            if unknown is not None:
                name = unknown.group().strip("_").lower()
                lacks.append(f"the address of {unknown.group()}: set tasks.addresses.{name}=http://…")
            else:
                others = True
        if EvalType.PROGRAM_HTML in evaluators.eval_types:
            missing = [self._lacking(check) for check in evaluators.program_html]
            lacks += filter(None, missing)
            others |= not all(missing)
        if EvalType.PAGE_IMAGE_QUERY in evaluators.eval_types:
            asks = any(check.eval_vqa for check in evaluators.page_image_query) and self._rollout.judge is None
            lacks += [NEEDS_JUDGE] if asks else []
            others |= not asks or any(check.eval_fuzzy_image_match for check in evaluators.page_image_query)
        if EvalType.STATE_MATCH in evaluators.eval_types:
            package = lacking_state(evaluators)
            lacks += [package] if package else []
            others |= not package
        return Missing(lacks[0], never=not others) if lacks else None

    def _lacking(self, check: PageCheck) -> str:
        if check.required_contents.fuzzy_match and self._rollout.judge is None:
            return NEEDS_JUDGE
        return lacking(check, self._live.addresses, self._live.logins)

    def _page_declares(self, task: WebTask) -> bool:
        if task.site not in self._declares:
            self._declares[task.site] = bool(make_site(task.site, self._live).facts_script(task))
        return self._declares[task.site]


def check_gradable(tasks: TaskIndex, check: Gradable, splits: Iterable[Split], say: Callable[[str], None]) -> None:
    """Check that a run's tasks can be graded: all of them, or a fixed sample of a large set.

    Args:
        tasks: Tasks of the run.
        check: Finds the parts that a task's grading lacks.
        splits: Splits that are rolled out; tasks without page seeds of any of them are not checked.
        say: Called with a line on tasks whose grading lacks a part.

    Raises:
        ConfigError: some tasks can never be graded; names the first one and the key to set.
        TaskError: there is no site of a task's name.
    """
    refuse_ungradable(some_of(tasks, splits), check, say)


def refuse_ungradable(tasks: Iterable[WebTask], check: Gradable, say: Callable[[str], None]) -> None:
    """Check these tasks as `check_gradable` does."""
    never: list[tuple[str, str]] = []
    partly: list[tuple[str, str]] = []
    checked = 0
    for task in tasks:
        checked += 1
        missing = check.find_missing(task)
        if missing is not None:
            (never if missing.never else partly).append((task.task_id, missing.what))
    if never:
        task_id, what = never[0]
        more = f"; so do {len(never) - 1} more of the {checked} tasks that were looked at" if len(never) > 1 else ""
        raise ConfigError(
            f"task {task_id} could never be graded: its grading needs {what}{more}. Set it, or leave such tasks out "
            f"(tasks.file, tasks.kinds)"
        )
    if partly:
        task_id, what = partly[0]
        say(
            f"{len(partly)} of {checked} tasks have a part of their grading that is not available: {task_id} needs {what}"
        )


def refuse_pictures(tasks: Iterable[WebTask]) -> None:
    """Raise ``ConfigError`` if an instruction has pictures: the policy's own prompts hold the
    screenshot alone."""
    shown = [task.task_id for task in tasks if task.images]
    if shown:
        raise ConfigError(
            f"the instructions of {len(shown)} of the tasks that were looked at have pictures (the first is {shown[0]}), which the "
            "prompts of this flow do not show: leave such tasks out (tasks.file, tasks.kinds), or play them with flows.batch"
        )


def ask_judge(request: WorkerRequest, tasks: Iterable[WebTask], *, here: bool, key: str = "rollout.judge") -> list[str]:
    """Ask each model of the judge one question, if a task needs the judge.

    Args:
        request: Request as the workers will get it.
        tasks: Tasks of the run.
        here: True if only this machine asks the judge. Workers elsewhere may reach it and have its
            key although this machine does not.
        key: Key of the judge in the configuration.

    Returns:
        A warning for each failure that may pass.

    Raises:
        ConfigError: the judge refuses the question, or, ``here``, it cannot be reached or its key
            is not set.
    """
    judge = request.rollout.judge
    without = Gradable(request.rollout.model_copy(update={"judge": None}), request.rewards, request.live)
    if judge is None or not any(
        missing and NEEDS_JUDGE in missing.what for missing in map(without.find_missing, tasks)
    ):
        return []
    try:
        calls = asyncio.run(try_models(judge, Ledger(request.spent_path)))
    except ConfigError as error:
        if here:
            raise ConfigError(f"{key}.{error}") from error
        return [f"warning: the judge was not asked from this machine: {key}.{error}"]
    lines = []
    for call in calls:
        answer = f"{judge.base_url}, model {call.model!r}: {call.trouble}"
        if call.error is CallError.REFUSED:
            raise ConfigError(
                f"{key}: the judge refuses its first question ({answer}); {_correction(key, call.trouble)}"
            )
        if call.error is CallError.UNREACHABLE and here:
            raise ConfigError(f"{key}: no judge answers ({answer}); start it, or correct {key}.base_url")
        if call.error is not None:
            lines.append(
                f"warning: {key}: no answer to a first question ({answer}); until it answers, episodes abstain"
            )
    return lines


def _correction(key: str, trouble: str) -> str:
    if trouble.startswith(("HTTP 401", "HTTP 403")):
        return f"give its key by {key}.api_key_env"
    if trouble.startswith(("HTTP 400", "HTTP 422")):
        return f"change {key} as it says"
    return f"correct {key}.models or {key}.base_url"


def check_sites(tasks: TaskIndex, config: TasksConfig, *, read_logins: bool) -> None:
    """Check every site's name, and every address and log-in.

    Args:
        tasks: Tasks of the run.
        config: Configuration of the tasks, with addresses and log-ins.
        read_logins: True to read the files of log-ins too, and to import sites of extensions. Both
            are on the machines of the browsers, so not here if the cluster is elsewhere.

    Raises:
        ConfigError: names, addresses or log-ins cannot be used; lists `SHOWN` of them and the
            number of the others.
    """
    sites, live = tasks.sites, config.live
    problems = [
        *_address_problems(sites, live),
        *_site_problems(sites, live, read_logins),
        *_login_problems(sites, live, read_logins),
    ]
    if problems:
        more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        lines = "".join(f"\n  {problem}" for problem in problems[:SHOWN])
        raise ConfigError(f"{len(problems)} of the tasks' sites, addresses and log-ins cannot be used:{lines}{more}")


def _address_problems(sites: Iterable[str], live: LiveOptions) -> Iterator[str]:
    """Yield problems of addresses under a mistyped name.

    Other addresses without tasks may belong to other task sets.
    """
    used = set(sites)
    without = {*used, *WEBARENA} - set(live.addresses)
    for name in sorted(set(live.addresses) - {*used, *WEBARENA}):
        if like := near(name, without, cutoff=MISTYPED):
            yield f"tasks.addresses.{name}: no task is on a site of that name; {like}correct it, or leave it out"


def _site_problems(sites: Iterable[str], live: LiveOptions, here: bool) -> Iterator[str]:
    for name in sorted(sites):
        if _is_live(name, live):
            try:
                LiveSite(name, live)
                if live.recipes and here and (problem := make_site(name, live).problem()):
                    yield problem
            except ConfigError as error:
                yield str(error)
        elif name not in SITES.own and here:
            try:
                if problem := make_site(name, live).problem():
                    yield problem
            except ConfigError as error:
                yield str(error)


def _login_problems(sites: Iterable[str], live: LiveOptions, read: bool) -> Iterator[str]:
    used = set(sites)
    for name, file in sorted(live.logins.items()):
        if name == ADMIN:  # the account of WebArena's checks of the shop, needed on any site
            if read:
                try:
                    read_account(Path(file))
                except SiteError as error:
                    yield str(error)
        elif name not in used:
            yield f"tasks.logins.{name}: no task is on a site of that name; {near(name, used)}correct it, or leave it out"
        elif not _is_live(name, live):
            yield f"tasks.logins.{name}: that site is a bundled one, which has no log-in; leave it out"
        elif read:
            try:
                check_login(file)
            except (ConfigError, SiteError) as error:
                yield f"tasks.logins.{name}: {error}"


def _is_live(name: str, live: LiveOptions) -> bool:
    return not is_served(name, live.addresses)


def some_of(tasks: TaskIndex, splits: Iterable[Split]) -> TaskIndex:
    """Return the tasks of a set that are checked, in the set's order."""
    rows = np.flatnonzero(np.any([tasks.seeds_of(split) > 0 for split in splits], axis=0))
    if len(rows) > ALL:
        rows = np.sort(rows[tasks.only(rows).stratified(SAMPLE, 0)])
    return tasks.only(rows)

"""Joins a session's calls with the reward of its episode, as a trajectory for the trainer.

    python -m training.proxy.join runs/foreign NAME episode.json

One session is one episode. How calls and steps are matched:

1. If calls name their step (``x-rollwright-step``), the last call of a step is its action.
2. Else, if there are as many calls as steps, they are matched in order.
3. Else a call that the next one repeats, prompt for prompt, is a *retry*; if there are as many
   others as steps, those are matched in order.
4. Else each step takes the next call whose text holds the step's response (of environments that
   were given the model's text). Without such texts the join is refused.

A call without an action is an *extra*: refused by default, left out (``drop``), or kept as a turn
with the episode's reward (``keep``). After an episode that a failure ended, calls whose action was
cut off are left out.

An agent that acted on the page itself, over a DevTools address, has left no steps. With ``all``,
each of its calls but retries is a turn with the episode's reward.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from envs.types import (
    AnyPath,
    ContextMessage,
    Invalid,
    Observation,
    RollwrightError,
    Step,
    TrainingError,
    Trajectory,
)
from training.ledger.paths import group_of
from training.ledger.store import read_record
from training.proxy.prefixes import PrefixReport, prefix_report
from training.proxy.records import CallStore, RecordedCall

ExtraRule = Literal["refuse", "drop", "keep", "all"]
"""Treatment of calls without an action."""
EXTRA_FORM = "extra"
"""``Step.form`` of a kept call without an action."""


class CallUse(StrEnum):
    """Use of a call."""

    ACTION = "action"
    """It decided a step."""
    EXTRA = "extra"
    """It decided no step."""
    RETRY = "retry"
    """The next call asked the same again."""
    CUT_OFF = "cut_off"
    """A failure of the environment ended the episode before its action was done."""


@dataclass(frozen=True, slots=True)
class JoinedEpisode:
    """A session's calls with the episode's reward."""

    trajectory: Trajectory
    """Record of the episode; its steps hold what the trainer takes."""
    uses: dict[int, CallUse]
    """Use of each call, by its number."""
    temperature: float
    """Temperature of all calls: the trainer needs it (``TrainerSpec.temperature``)."""
    prefixes: PrefixReport
    """Sequences of calls that continue each other."""


def join(
    calls: Sequence[RecordedCall],
    trajectory: Trajectory,
    *,
    extra: ExtraRule = "refuse",
    episode_id: str = "",
    sample: int = 0,
) -> JoinedEpisode:
    """Return an episode's trajectory with the tokens of the calls that decided its steps.

    The environment's own blobs (final screenshot, nodes) are not named in it: they are not stored
    beside the calls.

    Args:
        calls: All calls of one session, in order.
        trajectory: Record of the episode, as `envs.WebEnv.trajectory`.
        extra: Treatment of calls without an action, see the module.
        episode_id: Id of the episode; by default the session's name. Its group is what stands
            before ``-s``, as in ``i000001-g0003-s02-a0``.
        sample: Place of the episode in its group.

    Raises:
        TrainingError: Calls and steps do not match, or the calls cannot be trained on; the message
            says which and what to do.
    """
    if not calls:
        raise TrainingError("the session has no call: is its name right?")
    session = calls[0].session
    temperature = _temperature(session, calls)
    uses, actions = _all_extra(calls) if extra == "all" else _match(session, calls, trajectory)
    extras = [index for index, use in uses.items() if use is CallUse.EXTRA]
    if extras and extra == "refuse":
        raise TrainingError(
            f"session {session}: {len(calls)} calls and {len(trajectory.steps)} steps; the calls {_listed(extras)} decided no "
            "step. Leave them out with extra=drop, or train on them with the episode's reward with extra=keep; if the agent "
            "acted over a DevTools address, use extra=all"
        )
    pages = [step.observation for step in trajectory.steps] + [page for page in (trajectory.final,) if page]
    steps: list[Step] = []
    shown = 0 if extra == "keep" else len(pages) - 1
    for call in calls:
        if uses[call.index] is CallUse.ACTION:
            shown = actions[call.index]
            steps.append(_step(len(steps), call, trajectory.steps[shown]))
            shown = min(shown + 1, len(trajectory.steps) - 1)
        elif uses[call.index] is CallUse.EXTRA and extra in ("keep", "all") and pages:
            steps.append(_extra_step(len(steps), call, pages[shown]))
    episode_id = episode_id or session
    joined = trajectory.model_copy(
        update={
            "episode_id": episode_id,
            "group_id": group_of(episode_id),
            "sample": sample,
            "policy_version": min((step.policy_version for step in steps), default=0),
            "steps": tuple(steps),
            **{"final_screenshot": "", "final_dom": "", "judgement": ""},
        }
    )
    return JoinedEpisode(joined, uses, temperature, prefix_report(calls))


def _temperature(session: str, calls: Sequence[RecordedCall]) -> float:
    temperatures = sorted({call.temperature for call in calls})
    if greedy := [call.index for call in calls if call.greedy]:
        raise TrainingError(
            f"session {session}: the calls {_listed(greedy)} were greedy (temperature 0), so they were not sampled by their "
            "log-probs; start the proxy with --temperature 1"
        )
    if len(temperatures) > 1:
        raise TrainingError(
            f"session {session}: its calls have the temperatures {temperatures}, and the trainer takes one; start the proxy "
            "with --temperature"
        )
    return temperatures[0]


def _match(
    session: str, calls: Sequence[RecordedCall], trajectory: Trajectory
) -> tuple[dict[int, CallUse], dict[int, int]]:
    """Return the use of each call, and the step that each deciding call decided."""
    chosen = _choose(session, calls, trajectory)
    deciding = {call.index: number for number, call in enumerate(chosen)}
    last = chosen[-1].index if chosen else -1
    repeated = _repeated(calls)
    uses = {}
    for call in calls:
        if call.index in deciding:
            uses[call.index] = CallUse.ACTION
        elif trajectory.error is not None and call.index > last:
            uses[call.index] = CallUse.CUT_OFF
        else:
            uses[call.index] = CallUse.RETRY if call.index in repeated else CallUse.EXTRA
    return uses, deciding


def _all_extra(calls: Sequence[RecordedCall]) -> tuple[dict[int, CallUse], dict[int, int]]:
    repeated = _repeated(calls)
    return {call.index: CallUse.RETRY if call.index in repeated else CallUse.EXTRA for call in calls}, {}


def _choose(session: str, calls: Sequence[RecordedCall], trajectory: Trajectory) -> list[RecordedCall]:
    """Return the calls that decided the steps, one for each."""
    steps, failed = trajectory.steps, trajectory.error is not None
    if any(call.step is not None for call in calls):
        return _by_number(session, calls, len(steps), failed=failed)
    repeated = _repeated(calls)
    once = [call for call in calls if call.index not in repeated]
    # A page that an action left as it was may give the same prompt for two steps: such calls are
    # taken for retries only if there are more calls than steps.
    for left in (list(calls), once):
        if len(left) == len(steps) + failed:
            chosen = left[: len(steps)]
            _check_texts(session, chosen, steps)
            return chosen
    return _by_text(session, calls, steps, len(once))


def _repeated(calls: Sequence[RecordedCall]) -> set[int]:
    """Return the numbers of the calls that the next call repeats."""
    return {
        call.index
        for call, following in pairwise(calls)
        if (call.prompt_ids, call.images, call.step) == (following.prompt_ids, following.images, following.step)
    }


def _check_texts(session: str, chosen: Sequence[RecordedCall], steps: Sequence[Step]) -> None:
    for number, (call, step) in enumerate(zip(chosen, steps, strict=True)):
        if not _holds(call, step):
            raise TrainingError(
                f"session {session}: step {number} was {step.response[:100]!r}, and call {call.index} said "
                f"{call.text[:100]!r}. Is it this session's episode? Give env.step the model's text, or an action"
            )


def _by_number(session: str, calls: Sequence[RecordedCall], steps: int, *, failed: bool) -> list[RecordedCall]:
    last = {call.step: call for call in calls if call.step is not None}
    named = sorted(number for number in last if number is not None and not (failed and number == steps))
    if named != list(range(steps)):
        raise TrainingError(
            f"session {session}: the episode has {steps} steps, and the calls name the steps {_listed(named)}: each step needs "
            "a call, and steps are counted from 0"
        )
    chosen = [last[number] for number in named]
    if [call.index for call in chosen] != sorted(call.index for call in chosen):
        raise TrainingError(f"session {session}: the steps that the calls name are not in the calls' order")
    return chosen


def _by_text(session: str, calls: Sequence[RecordedCall], steps: Sequence[Step], once: int) -> list[RecordedCall]:
    counts = f"session {session}: {len(calls)} calls ({once} without retries) and {len(steps)} steps"
    advice = "send the header x-rollwright-step with each call, or give env.step the model's text"
    if not all(step.response.strip() for step in steps):
        raise TrainingError(f"{counts}, and the steps have no text to match by: {advice}")
    chosen, rest = [], iter(calls)
    for number, step in enumerate(steps):
        call = next((call for call in rest if _holds(call, step)), None)
        if call is None:
            raise TrainingError(
                f"{counts}, and no call after that of the step before said {step.response[:100]!r} of step {number}: {advice}"
            )
        chosen.append(call)
    return chosen


def _holds(call: RecordedCall, step: Step) -> bool:
    """Return True if a call's text or an argument of its tools holds the step's response, or that
    is not known."""
    arguments = [json.loads(tool["function"]["arguments"]).values() for tool in call.tool_calls]
    return any(step.response.strip() in str(text) for text in (call.text, *chain.from_iterable(arguments)))


def _step(index: int, call: RecordedCall, step: Step) -> Step:
    context, prompt, screenshot = _shown(call)
    return step.model_copy(
        update={
            "index": index,
            "screenshot": screenshot,
            "prompt": prompt,
            "context": context,
            "cut_rounds": 0,
            "prompt_ids": call.prompt_ids,
            "response": call.text,
            "response_ids": call.response_ids,
            "logprobs": call.logprobs,
            "policy_version": call.policy_version,
            "version_spans": call.version_spans if len(call.version_spans) > 1 else (),
            "finish_reason": call.finish_reason,
            "dom_diff": "",
            "seconds": step.seconds.model_copy(update={"generate": call.seconds}),
        }
    )


def _extra_step(index: int, call: RecordedCall, page: Observation) -> Step:
    """Return a call without an action as a step on a page."""
    action = Invalid(reason="a call of the model that decided no action")
    tokens: dict[str, Any] = {name: () for name in ("prompt_ids", "response_ids", "logprobs")}
    texts = {"screenshot": "", "prompt": "", "response": "", "form": EXTRA_FORM}
    step = Step(index=index, observation=page, policy_version=0, action=action, **tokens, **texts)
    return _step(index, call, step)


def _shown(call: RecordedCall) -> tuple[tuple[ContextMessage, ...], str, str]:
    """Return a call's messages as a step records them: context, present text, last image.

    All images but the last are in the context, so that their order stays.
    """
    *earlier, present = call.messages
    *images, screenshot = call.images or ("",)
    unused = iter(images)
    context = []
    for message in earlier:
        names = [name for name in _images(message) if name]
        pictures = tuple(name for _, name in zip(names, unused, strict=False))
        role: Literal["user", "assistant"] = "assistant" if message["role"] == "assistant" else "user"
        context.append(ContextMessage(role=role, text=_text(message), pictures=pictures))
    if rest := tuple(unused):
        context.append(ContextMessage(role="user", text="", pictures=rest))
    return tuple(context), _text(present), screenshot


def _images(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    return [part["sha256"] for part in content if part["type"] == "image"] if isinstance(content, list) else []


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part["text"] for part in content if part["type"] == "text")
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()]
    return "\n".join([*([content] if content else []), *calls])


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown}, … ({len(numbers)})" if len(numbers) > 10 else shown or "none"


def read_trajectory(path: AnyPath) -> Trajectory:
    """Read a trajectory's JSON (``env.trajectory.model_dump_json()``).

    Raises:
        StorageError: It is missing, or no trajectory.
    """
    return read_record(path, Trajectory, "trajectory", "write it with env.trajectory.model_dump_json()")


def main(arguments: Sequence[str]) -> int:
    """Join a session with a trajectory's file and store the result; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m training.proxy.join", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder of the proxy's records")
    parser.add_argument("session", help="name of the session")
    parser.add_argument("trajectory", type=Path, help="JSON of the episode's trajectory")
    parser.add_argument("--extra", choices=get_args(ExtraRule), default="refuse", help="calls without an action")
    parser.add_argument("--episode", default="", metavar="ID", help="id of the episode; by default the session's name")
    parser.add_argument("--sample", type=int, default=0, help="place of the episode in its group")
    given = parser.parse_args(arguments)
    store = CallStore(given.root)
    try:
        joined = join(
            store.calls(given.session),
            read_trajectory(given.trajectory),
            extra=given.extra,
            episode_id=given.episode,
            sample=given.sample,
        )
        store.run.put_trajectory(joined.trajectory)
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(store.run.trajectory_path(joined.trajectory.episode_id, ""))
    uses = ", ".join(f"{list(joined.uses.values()).count(use)} {use.value}" for use in CallUse)
    print(
        f"{len(joined.trajectory.steps)} steps of {len(joined.uses)} calls ({uses}); temperature {joined.temperature:g}"
    )
    growing = "; ".join(_listed(sequence) for sequence in joined.prefixes.growing) or "none"
    print(f"growing sequences: {growing}. Alone: {_listed(joined.prefixes.alone)}")
    for departure in joined.prefixes.breaks:
        print(f"call {departure.call} departs from the call before it in its {departure.kind}, at {departure.position}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Counts over the results of a batch: ``summary.json``. Pure.

An episode without a reward is *invalid*. ``valid_only`` success leaves such episodes out;
``all_attempts`` counts them as failures. Both have their number of episodes and a 95 % interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from envs.ends import bucket_of
from tasks_lib.batch.config import AgentEndpointConfig
from tasks_lib.batch.results import EpisodeResult
from tasks_lib.folder.metrics import MAX_CAUSES, describe_success, wilson_interval
from tasks_lib.folder.metrics_lines import RATE


def summarize(results: Sequence[EpisodeResult], planned: int, endpoint: AgentEndpointConfig | None) -> dict[str, Any]:
    """Return the counts over the results of a batch.

    Args:
        results: Results of the episodes that have one.
        planned: Number of episodes of the batch.
        endpoint: Endpoint whose prices give the dollars; ``None`` for a function.
    """
    tokens = {name: sum(getattr(result.tokens, name) for result in results) for name in ("prompt", "cached", "answer")}
    unmetered = sum(result.unmetered for result in results)
    turns = sum(result.steps for result in results)
    return {
        "planned": planned,
        "finished": len(results),
        "missing": planned - len(results),
        **_rates(results),
        "invalid_actions": _rate(sum(result.invalid_actions for result in results), turns),
        "refused_actions": _rate(sum(result.refused_actions for result in results), turns),
        "by_difficulty": _groups(results, lambda result: str(bucket_of(result.difficulty))),
        "by_site": _groups(results, lambda result: result.site),
        "stops": dict(Counter(result.stop.value for result in results).most_common()),
        "causes": dict(Counter(result.error for result in results if result.error is not None).most_common(MAX_CAUSES)),
        "attempts": sum(result.attempts for result in results),
        "steps": turns,
        "requests": sum(result.requests for result in results),
        "tokens": tokens,
        "unmetered": unmetered,
        "dollars": endpoint.dollars(**tokens) if endpoint is not None and not unmetered else None,
        "judge_tokens": sum(result.judge_tokens for result in results),
        "judge_dollars": sum(result.judge_dollars for result in results),
        "seconds": sum(result.seconds for result in results),
    }


def describe(summary: dict[str, Any]) -> list[str]:
    """Return the lines that a person reads at the end of a batch."""
    valid, everything, invalid = summary["valid_only"], summary["all_attempts"], summary["invalid"]
    lines = [
        f"success of episodes with a reward: {describe_success(valid)}, n = {valid['n']}",
        f"success of all episodes: {describe_success(everything)}, n = {everything['n']}",
        f"invalid: {invalid['count']} of {invalid['of']}, {summary['blocked']['count']} of them blocked; "
        f"invalid actions: {summary['invalid_actions']['count']} of {summary['invalid_actions']['of']} turns",
    ]
    if summary["requests"]:
        tokens, dollars = summary["tokens"], summary["dollars"]
        price = "unknown: the endpoint counts no tokens" if dollars is None else f"{dollars:.4g} dollars"
        lines.append(
            f"{summary['requests']:,} requests, {tokens['prompt']:,} prompt and {tokens['answer']:,} answer tokens, {price}"
        )
    lines += [f"{count} without a reward: {cause}" for cause, count in summary["causes"].items()]
    if summary["missing"]:
        lines.append(f"{summary['missing']} of {summary['planned']} episodes were not played")
    return lines


def _rates(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    valid = [result for result in results if result.error is None]
    return {
        "valid_only": _success(valid),
        "all_attempts": _success(results),
        "invalid": _rate(len(results) - len(valid), len(results)),
        "blocked": _rate(sum(result.blocked for result in results), len(results)),
    }


def _groups(results: Iterable[EpisodeResult], key: Callable[[EpisodeResult], str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[EpisodeResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return {name: _rates(groups[name]) for name in sorted(groups)}


def _success(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Return ``{mean, low, high, n, passed}``; unknown numbers without an episode are ``None``."""
    if not results:
        return {**dict.fromkeys(RATE), "n": 0, "passed": 0}
    passed = sum(result.success for result in results)
    low, high = wilson_interval(passed, len(results))
    return {"mean": passed / len(results), "low": low, "high": high, "n": len(results), "passed": passed}


def _rate(count: int, of: int) -> dict[str, Any]:
    return {"count": count, "of": of, "rate": count / of if of else None}

"""Metrics of the environment server in Prometheus's text format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

import orjson

from envs.server.sessions import SessionTable

PREFIX = "rollwright_"

NOT_ADDED = tuple(f"{PREFIX}{name}" for name in ("http_answers_total", "free_memory_mb", "draining"))
"""Metrics of nodes that a master does not add up: its own count of answers is what clients got,
and nodes of one machine share its memory."""


def metrics_text(table: SessionTable, answers: Mapping[int, int]) -> str:
    """Return the metrics of the sessions, the requests and the browsers.

    Args:
        answers: Number of answers by HTTP status.
    """
    return "\n".join(_lines(table, answers)) + "\n"


def _lines(table: SessionTable, answers: Mapping[int, int]) -> Iterator[str]:
    pool = table.host.pool.metrics()
    yield from metric("sessions", "gauge", "Open sessions.", {"": len(table)})
    yield from metric("capacity", "gauge", "Maximum number of sessions.", {"": table.capacity})
    yield from metric("draining", "gauge", "1 once no session is opened.", {"": int(table.draining)})
    yield from metric("free_memory_mb", "gauge", "Available memory of the machine.", {"": table.free_memory_mb})
    for name, value in asdict(table.counters).items():
        yield from metric(f"sessions_{name}_total", "counter", f"Count of {name} since the start.", {"": value})
    statuses = {f'status="{status}"': count for status, count in sorted(answers.items())}
    yield from metric("http_answers_total", "counter", "Answers by HTTP status.", statuses)
    for name in ("launches", "browsers_lost", "contexts_opened", "contexts_broken", "navigations"):
        yield from metric(f"browser_{name}_total", "counter", f"Count of {name} of the browsers.", {"": pool[name]})
    yield from metric("browser_sessions_lent", "gauge", "Browser contexts in use.", {"": pool["lent"]})
    refused = {f'reason="{reason}"': count for reason, count in pool["requests_refused"].items()}
    yield from metric("egress_refused_total", "counter", "Requests of pages that egress rules refused.", refused)
    operations: dict[str, dict[str, float]] = pool["operations"]
    for name in ("queued", "running"):
        values = {f'kind="{kind}"': counts[name] for kind, counts in operations.items()}
        yield from metric(f"operations_{name}", "gauge", f"Browser operations {name} now.", values)
    for name in ("done", "failed", "timed_out", "cancelled", "wait_seconds", "busy_seconds"):
        values = {f'kind="{kind}"': counts[name] for kind, counts in operations.items()}
        yield from metric(f"operations_{name}_total", "counter", f"Browser operations: {name}.", values)


def metric(name: str, kind: str, description: str, values: Mapping[str, float]) -> Iterator[str]:
    """Write a metric; ``values`` are by labels."""
    yield f"# HELP {PREFIX}{name} {description}"
    yield f"# TYPE {PREFIX}{name} {kind}"
    for labels, value in values.items():
        yield f"{PREFIX}{name}{f'{{{labels}}}' if labels else ''} {value}"


def add_up(texts: Iterable[str]) -> list[str]:
    """Return the lines of several nodes' metrics, with the values of equal labels added up."""
    descriptions: dict[str, list[str]] = {}
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(int))
    for text in texts:
        described: dict[str, list[str]] = defaultdict(list)
        for line in text.splitlines():
            if line.startswith("#"):
                described[line.split()[2]].append(line)
            else:
                series, _, value = line.rpartition(" ")
                sums[series.partition("{")[0]][series] += orjson.loads(value)
        descriptions |= described
    return [
        line
        for name, lines in descriptions.items()
        if name not in NOT_ADDED
        for line in (*lines, *(f"{series} {value}" for series, value in sums[name].items()))
    ]

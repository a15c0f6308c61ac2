"""Pages to look at a batch: one of each episode, one of all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tasks_lib.batch.results import EpisodeResult

STYLE = """:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border-left:3px solid #8886;padding-left:.8rem;margin:.5rem 0}
img{max-width:100%;border:1px solid #8886}table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left}
.good{color:#00855b}.bad{color:#c2362b}.quiet{opacity:.7}"""


def episode_page(result: EpisodeResult, turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of an episode: its result and every turn.

    Args:
        turns: Turns as in ``trace.json``.
    """
    parts = [f"<p><a href='../../index.html'>all episodes</a></p><p>{_verdict(result)}</p>"]
    if result.answer:
        parts.append(f"<p>Answer: {escape(result.answer)}</p>")
    for number, turn in enumerate(turns, 1):
        parts.append(f"<h2>Turn {number}</h2><p class=quiet>{escape(turn['url'])} · {turn['seconds']:.1f} s</p>")
        if turn["screenshot"]:
            parts.append(f"<img loading=lazy alt='page of turn {number}' src='{escape(turn['screenshot'])}'>")
        parts.append(f"<details><summary>page as text</summary><pre>{escape(turn['page'])}</pre></details>")
        parts.append(f"<pre>{escape(turn['response'])}</pre>")
        if turn["error"]:
            parts.append(f"<p class=bad>{escape(turn['error'])}</p>")
    return _page(f"{result.task_id}, seed {result.seed}", parts)


def batch_page(title: str, lines: Sequence[str], episodes: Iterable[tuple[str, EpisodeResult | None]]) -> str:
    """Return the page of a batch: lines of its summary, and a row for each episode.

    Args:
        episodes: Folder of each episode, relative to the page, and its result.
    """
    rows = [
        f"<tr><td><a href='{escape(folder)}/index.html'>{escape(result.task_id)}</a></td><td>{result.seed}</td>"
        f"<td>{escape(result.site)}</td><td>{result.difficulty}</td><td>{_verdict(result)}</td></tr>"
        for folder, result in episodes
        if result is not None
    ]
    head = "<tr><th>task</th><th>seed</th><th>site</th><th>difficulty</th><th>result</th></tr>"
    return _page(title, [*(f"<p>{escape(line)}</p>" for line in lines), f"<table>{head}{''.join(rows)}</table>"])


def _verdict(result: EpisodeResult) -> str:
    if result.error is not None:
        return f"<span class=bad>no reward ({result.stop.value}): {escape(result.error)}</span>"
    word, kind = ("success", "good") if result.success else ("failure", "bad")
    return f"<span class={kind}>{word}</span>, score {result.score:g}, {result.steps} steps, {result.stop.value}"


def _page(title: str, parts: Iterable[str]) -> str:
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
    return f"{head}<h1>{escape(title)}</h1>{''.join(parts)}</html>\n"

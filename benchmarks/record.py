"""The recorded results: ``results/NAME.json`` of each benchmark, and the table of README.md that
is made from them."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from benchmarks import NAMES, Figure

RESULTS = Path(__file__).with_name("results")
README = Path(__file__).with_name("README.md")
START, END = "<!-- table -->\n", "<!-- /table -->\n"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One figure, and when it was measured."""

    name: str
    value: float
    unit: str
    target: str
    date: str
    """Day on which this value was recorded first."""
    commit: str
    """Commit of the measured code; until 2026-11-26 the commit that recorded the figure."""

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; ``None`` without one."""
        return Figure(self.name, self.value, self.unit, self.target).ok


@dataclass(frozen=True, slots=True)
class Result:
    """What is recorded of one benchmark."""

    benchmark: str
    command: str
    machine: str
    """The machine in words."""
    notes: Sequence[str]
    """Sentences about how it was measured and what the numbers mean."""
    headline: Sequence[str]
    """Names of the figures in README's table, beside those that miss their target."""
    figures: Sequence[Recorded] = field(default_factory=list)


def read(name: str) -> Result:
    """The recorded result of a benchmark."""
    values = orjson.loads((RESULTS / f"{name}.json").read_bytes())
    return Result(**{**values, "figures": [Recorded(**figure) for figure in values["figures"]]})


def merge(old: Result, figures: Sequence[Figure], *, whole: bool) -> Result:
    """The result with new figures.

    Old figures stay where a part of the benchmark ran (not ``whole``).
    """
    date, commit = datetime.datetime.now(datetime.UTC).date().isoformat(), _commit()
    new = {
        figure.name: Recorded(figure.name, float(f"{figure.value:.4g}"), figure.unit, figure.target, date, commit)
        for figure in figures
    }
    kept = {} if whole else {figure.name: figure for figure in old.figures}
    machine = f"{os.cpu_count()} cores, {platform.machine()}" if whole else old.machine
    return replace(old, machine=machine, figures=list((kept | new).values()))


def write(result: Result) -> None:
    """Write the result of a benchmark, and README's table."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    (RESULTS / f"{result.benchmark}.json").write_bytes(orjson.dumps(result, option=options))
    README.write_text(with_table(README.read_text()))


def with_table(page: str) -> str:
    """README.md with the table of what is recorded now."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    rows = [_row(name, figure) for name in NAMES for figure in _shown(read(name))]
    head = ["|benchmark|figure|value|target|date|", "|---|---|---|---|---|"]
    return f"{before}{START}" + "\n".join([*head, *rows]) + f"\n{END}{after}"


def _shown(result: Result) -> list[Recorded]:
    return [figure for figure in result.figures if figure.name in result.headline or figure.ok is False]


def _row(benchmark: str, figure: Recorded) -> str:
    value = f"{figure.value:.4g} {figure.unit}"
    verdict = {True: figure.target, False: f"**missed**: {figure.target}", None: ""}[figure.ok]
    return f"|[{benchmark}](results/{benchmark}.json)|{figure.name}|{value}|{verdict}|{figure.date}|"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=RESULTS, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"

"""What the doctor finds, of a run's folder or of a machine, and its form for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import orjson

from envs.types import RollwrightError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the doctor found."""

    path: str
    """The file, from the run's folder on; of a machine, what was looked at."""
    what: str
    todo: str
    """Empty where nothing need be done."""
    severity: Literal["fault", "note", "ok", "skipped"] = "fault"
    """A note does no harm by itself: what a killed process left, what is put right by itself, or what this machine does without."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.path}: {self.what}" + (f"; {self.todo}" if self.todo else "")


def fault_of(path: str, error: Exception, todo: str) -> Finding:
    """An error as a fault. Errors of ours say themselves what to do, after a semicolon; ``todo`` is for those that do not."""
    if not isinstance(error, RollwrightError):
        return Finding(path, f"{type(error).__name__}: {' '.join(str(error).split())}", todo)
    what, _, advice = str(error).partition("; ")
    return Finding(path, what, advice or todo)


def guarded(path: str, check: Callable[[], Iterable[Finding]], todo: str) -> Iterator[Finding]:
    """What a check finds; its exception as a fault."""
    try:
        yield from check()
    except Exception as error:
        yield fault_of(path, error, todo)


def count_faults(findings: Iterable[Finding]) -> int:
    """How many of the findings are faults."""
    return sum(each.severity == "fault" for each in findings)


def findings_json(subject: Mapping[str, str], findings: list[Finding]) -> str:
    """The findings for scripts: ``{"run": …, "faults": n, "findings": [{path, what, todo, severity}, …]}``.

    Args:
        subject: What was looked at: ``{"run": FOLDER}`` or ``{"machine": NAME}``.
    """
    document = {**subject, "faults": count_faults(findings), "findings": [asdict(each) for each in findings]}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()

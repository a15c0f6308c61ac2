"""Findings of the doctor on a run's folder or a machine, and their form for scripts."""

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
    """File relative to the run's folder; for a machine, the thing that was checked."""
    what: str
    todo: str
    """Advice; empty if nothing need be done."""
    severity: Literal["fault", "note", "ok", "skipped"] = "fault"
    """Severity; a note does no harm by itself.

    Notes are leftovers of a killed process, faults that a restart repairs, and parts that this
    machine does not need.
    """

    def __str__(self) -> str:
        return f"{self.severity}: {self.path}: {self.what}" + (f"; {self.todo}" if self.todo else "")


def fault_of(path: str, error: Exception, todo: str) -> Finding:
    """Return an error as a fault.

    Our own errors end with advice after a semicolon; ``todo`` is the advice for other errors.
    """
    if not isinstance(error, RollwrightError):
        return Finding(path, f"{type(error).__name__}: {' '.join(str(error).split())}", todo)
    what, _, advice = str(error).partition("; ")
    return Finding(path, what, advice or todo)


def guarded(path: str, check: Callable[[], Iterable[Finding]], todo: str) -> Iterator[Finding]:
    """Yield the findings of a check, and its exception as a fault."""
    try:
        yield from check()
    except Exception as error:
        yield fault_of(path, error, todo)


def count_faults(findings: Iterable[Finding]) -> int:
    """Return the number of faults."""
    return sum(finding.severity == "fault" for finding in findings)


def findings_json(subject: Mapping[str, str], findings: list[Finding]) -> str:
    """Return the findings as JSON for scripts.

    The form is ``{"run": …, "faults": n, "findings": [{path, what, todo, severity}, …]}``.

    Args:
        subject: Checked subject: ``{"run": FOLDER}`` or ``{"machine": NAME}``.
        findings: Findings on it.
    """
    document = {**subject, "faults": count_faults(findings), "findings": [asdict(finding) for finding in findings]}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()

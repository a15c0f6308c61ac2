"""Benchmarks: each measures figures against their targets, as ratios in one run where it can.

Results: ``benchmarks/results`` (``record.py``) and ``benchmarks/README.md``.

A benchmark is a module with ``run() -> list[Figure]``; its docstring's first line says what it
measures.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = (
    "quickstart",
    "env",
    "trainer",
    "losses",
    "tasks",
    "rewards",
    "design2code",
    "serving",
    "async",
    "overlap",
    "simulator",
    "scale",
    "nodes",
    "adapters",
    "ledger",
    "monitor",
    "cluster",
    "sites",
)
"""Modules of this package that are benchmarks."""

MODULES = {"async": "asynchronous"}
"""Modules of other names than their benchmarks."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    target: str
    """What was asked for, e.g. ``<= 0.1``; empty when it is informative only."""

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; ``None`` without one."""
        if not self.target:
            return None
        comparison, bound = self.target.split()
        return self.value <= float(bound) if comparison == "<=" else self.value >= float(bound)

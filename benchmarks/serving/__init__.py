"""Engines: free batches against fixed ones, vLLM against the engine in the worker, and what a
publication costs."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import Figure
from benchmarks.serving import tail, vllm

PARTS = {"tail": tail, "vllm": vllm}


def run(parts: Iterable[str] = tuple(PARTS)) -> list[Figure]:
    """Figures of these parts."""
    return [figure for part in parts for figure in PARTS[part].figures()]

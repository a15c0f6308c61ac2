"""What steps change in the document of a page, kept as blobs beside the trajectory (``rollout.dom_diffs``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envs.browser import StepResult
from envs.rewards.chromiumrl import DomSnapshot, step_diff


@dataclass(frozen=True, slots=True)
class PageEvidence:
    """Keeps them. The frames come from a pool that captures documents at each look."""

    put: Callable[[bytes], str]
    """Stores a blob and gives its name."""

    def change(self, before: StepResult, after: StepResult) -> str:
        """Name of the blob of what a step changed; empty if one of the pages could not be read, or the page was not touched."""
        old, new = before.inspected, after.inspected
        if not isinstance(old, DomSnapshot) or not isinstance(new, DomSnapshot) or old is new:
            return ""
        return self.put(step_diff(old, new).model_dump_json().encode())

    def page(self, last: StepResult) -> str:
        """Name of the blob of the nodes of a page; empty if it could not be read."""
        if not isinstance(last.inspected, DomSnapshot):
            return ""
        return self.put(last.inspected.model_dump_json(exclude_defaults=True).encode())

"""The evidence of an episode against which facts are checked."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from envs.types import Observation, Record, ServerAnswer, Step, StopReason, Trajectory, WholePage
from envs.types.evidence import DomElement, Download, PageReply, PageText, Recorded
from envs.types.signals import EpisodeSignals

__all__ = ["DomElement", "Download", "GradingEvidence"]


class GradingEvidence(Record):
    """Evidence of an episode.

    ``None`` means that something was not recorded, which never depends on the policy's actions;
    facts about it are then not available. Recorded evidence without the thing makes a fact false.
    """

    seed: int = 0
    """Seed of the episode, with which a reference page is loaded."""
    steps: tuple[Step, ...] = ()
    """Steps in order, each with the observation before its action."""
    final: Observation | None = None
    """The page after the last action."""
    pages: tuple[WholePage, ...] = ()
    """The whole last page, or those of all steps if a fact needs them (`Recorded.pages`)."""
    answer: str = ""
    """Answer of the policy; empty when it gave none.

    The status with which a policy ends an episode is no answer.
    """
    page_facts: dict[str, float | bool | str] = Field(default_factory=dict)
    signals: EpisodeSignals | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    """Externally measured signals by their rubric names; they take precedence over ``signals``."""
    downloads: tuple[Download, ...] | None = None
    downloads_cut: bool = False
    """True if further downloads were under way when the browser was given back."""
    dom: tuple[DomElement, ...] | None = None
    """Elements of the last page in document order, with frames and shadow trees."""
    dom_cut: bool = False
    """True if ``dom`` has only the first elements of a larger page.

    A fact that depends on the missing elements cannot be decided.
    """
    final_dom: str = ""
    """Blob name of the last page's nodes, as in a trajectory; empty without them."""
    final_screenshot: str = ""
    """Blob name of the last page's picture, as in a trajectory; empty without one."""
    scripts: dict[str, PageReply] = Field(default_factory=dict)
    """Replies of the last page to the rubric's ``js`` facts, by expression."""
    looked: tuple[PageText, ...] | None = None
    """Texts for the checks of WebArena's ``program_html`` and ``state_match``."""
    validated: float | None = None
    """Reward that the task's script gave; ``None`` without one."""
    validation: str = ""
    """Its value or its failed assertion, in words."""
    requests: tuple[dict[str, Any], ...] | None = None
    """Requests as entries of an HTTP archive; ``None`` where they were not recorded."""
    absent: dict[str, str] = Field(default_factory=dict)
    """Reason why ``dom``, ``downloads`` or ``domdiff`` is ``None`` although it was asked for."""
    server: tuple[ServerAnswer, ...] | None = None
    """Answers of the site's server at the end (`envs.rewards.server_answers`)."""
    domdiff: dict[str, float] | None = None
    """Similarity to a reference page in [0, 1].

    The keys are ``structural``, ``text``, ``layout``, ``style`` or W8's names of them.
    """
    domdiff_cut: bool = False
    """True if ``domdiff`` is ``None`` because the last page has too many nodes to compare."""

    @property
    def views(self) -> tuple[Observation, ...]:
        """Observations of the episode, in order."""
        seen = tuple(step.observation for step in self.steps)
        return seen if self.final is None else (*seen, self.final)

    @classmethod
    def of(cls, trajectory: Trajectory) -> GradingEvidence:
        """Read the evidence of a stored episode."""
        recorded = trajectory.recorded or Recorded()
        return cls(
            seed=trajectory.seed,
            steps=trajectory.steps,
            final=trajectory.final,
            answer=trajectory.answer if trajectory.stop_reason is StopReason.ANSWER else "",
            page_facts=trajectory.page_facts,
            signals=trajectory.signals,
            final_dom=trajectory.final_dom,
            final_screenshot=trajectory.final_screenshot,
            **{name: getattr(recorded, name) for name in Recorded.model_fields},
        )

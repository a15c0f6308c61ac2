"""The evidence of an episode against which facts are checked."""

from __future__ import annotations

from pydantic import Field

from envs.types import Observation, Record, ServerAnswer, Step, StopReason, Trajectory, WholePage
from envs.types.evidence import DomElement, Download, PageReply, PageText, Recorded
from envs.types.signals import EpisodeSignals

__all__ = ["DomElement", "Download", "EpisodeEvidence"]


class EpisodeEvidence(Record):
    """Evidence of an episode.

    ``None`` means that something was not recorded, which never depends on the policy's actions; facts
    about it are then not available. Recorded evidence without the thing makes a fact false.
    """

    seed: int = 0
    """Seed of the episode, with which a reference page is loaded."""
    steps: tuple[Step, ...] = ()
    """Each with what the policy saw before its action."""
    final: Observation | None = None
    """The page after the last action."""
    pages: tuple[WholePage, ...] = ()
    """The whole last page, and those of all steps if a fact asks for them (`Recorded.pages`)."""
    answer: str = ""
    """Empty when none was given; the status of a policy that ends an episode is no answer."""
    page_facts: dict[str, float | bool | str] = Field(default_factory=dict)
    signals: EpisodeSignals | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    """Signals that somebody else measured, by the name that rubrics use; they go before ``signals``."""
    downloads: tuple[Download, ...] | None = None
    downloads_cut: bool = False
    """Further files were still on their way when the episode's browser was given back."""
    dom: tuple[DomElement, ...] | None = None
    """The last page in document order, frames and shadow trees in their places."""
    dom_cut: bool = False
    """The page has more elements than ``dom``, which has the first of them; a fact that hangs on the others cannot be decided."""
    final_dom: str = ""
    """Name of the blob of the last page's nodes, as in a trajectory; empty when they were not recorded."""
    final_screenshot: str = ""
    """Name of the blob of the last page's picture, as in a trajectory; empty when there is none."""
    scripts: dict[str, PageReply] = Field(default_factory=dict)
    """Replies of the last page to the rubric's ``js`` facts, by expression."""
    looked: tuple[PageText, ...] | None = None
    """Texts for the checks of WebArena's ``program_html``."""
    absent: dict[str, str] = Field(default_factory=dict)
    """Reason why ``dom``, ``downloads`` or ``domdiff`` is ``None`` although it was asked for."""
    server: tuple[ServerAnswer, ...] | None = None
    """Answers of the site's server at the end (`envs.rewards.server_answers`)."""
    domdiff: dict[str, float] | None = None
    """Similarity to a reference page in [0, 1], by ``structural``, ``text``, ``layout``, ``style`` or W8's names of them."""
    domdiff_cut: bool = False
    """``domdiff`` is ``None`` because the last page has more nodes than are compared."""

    @property
    def views(self) -> tuple[Observation, ...]:
        """The observations, in order."""
        seen = tuple(step.observation for step in self.steps)
        return seen if self.final is None else (*seen, self.final)

    @classmethod
    def of(cls, trajectory: Trajectory) -> EpisodeEvidence:
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

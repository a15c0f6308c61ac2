"""When an episode ends besides by the page's own word: what is asked of the page after each look, and of the steps in a row."""

from __future__ import annotations

from envs.browser import StepResult
from envs.ends import RepetitionDetector, Sighting, blocked, http_error
from envs.observation.hashes import action_signature, screen_hash
from envs.types import Action, StopReason


class EpisodeWatch:
    """Watches one episode."""

    def __init__(self, repeats: int) -> None:
        """``repeats`` equal steps in a row end the episode; 0 for never."""
        self._repetition = RepetitionDetector(repeats) if repeats else None
        self._last: tuple[str, str] = ("", "")

    def unusable(self, result: StepResult) -> tuple[StopReason, str] | None:
        """Why what is seen is not the site (an abstention), with the message; ``None`` if it is."""
        if http_error(result.status):
            return StopReason.HTTP_ERROR, f"{result.observation.url} answered {result.status}"
        seen = result.observation
        sign = blocked(url=seen.url, title=seen.title, text=seen.text, status=result.status)
        return None if sign is None else (StopReason.BLOCKED, f"{seen.url} shows {sign.hint} ({sign.name})")

    def repeats(self, before: StepResult, action: Action) -> bool:
        """Whether this step was the last of so many equal ones: the same picture, document and action."""
        if self._repetition is None:
            return False
        signature = action_signature(action, before.observation.elements)
        told, self._last = self._last, (before.dom_hash, signature)
        # The picture's hash costs ten times what the others do, so it is only made when these are equal.
        picture = screen_hash(before.screenshot) if self._last == told and before.screenshot else ""
        return self._repetition.saw(Sighting(picture, before.dom_hash, signature))

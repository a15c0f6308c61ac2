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
        self._repeats = repeats
        self._detector: RepetitionDetector | None = None
        self._key = ("", "")
        self._begun = b""

    def unusable(self, result: StepResult) -> tuple[StopReason, str] | None:
        """Why what is seen is not the site (an abstention), with the message; ``None`` if it is."""
        if http_error(result.status):
            return StopReason.HTTP_ERROR, f"{result.observation.url} answered {result.status}"
        seen = result.observation
        sign = blocked(url=seen.url, title=seen.title, text=seen.text, status=result.status)
        return None if sign is None else (StopReason.BLOCKED, f"{seen.url} shows {sign.hint} ({sign.name})")

    def repeats(self, before: StepResult, action: Action) -> bool:
        """Whether this step was the last of so many equal ones: the same picture, document and action."""
        if not self._repeats:
            return False
        key = (before.dom_hash, action_signature(action, before.observation.elements))
        if key != self._key:
            # The picture's hash costs ten times what the others do, so it is made when these are equal, of the first one too.
            self._key, self._begun, self._detector = key, before.screenshot, None
            return False
        if self._detector is None:
            self._detector = RepetitionDetector(self._repeats)
            self._detector.saw(self._sighting(self._begun))
        return self._detector.saw(self._sighting(before.screenshot))

    def _sighting(self, screenshot: bytes) -> Sighting:
        return Sighting(screen_hash(screenshot) if screenshot else "", *self._key)

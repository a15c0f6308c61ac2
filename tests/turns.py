"""Model turns made by hand, for tests that play episodes without a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks_lib.episode.actors import EncodedSituation, Turn
from training.policy.rendered import RenderedPrompt


def make_turn(
    situation: Any, response: str, *, prompt: str = "", prompt_ids: Sequence[int] = (), screenshot: str = "0" * 64
) -> Turn:
    """A turn that says ``response``, of one token."""
    ids = tuple(prompt_ids)
    asked = EncodedSituation(situation, prompt, RenderedPrompt(ids, ids, ()), (), screenshot)
    return Turn(asked, response, (1,), (-0.1,), 0)

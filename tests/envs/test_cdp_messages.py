"""What Chromium says is looked for in its own answers alone, never in the text of another error."""

from __future__ import annotations

from typing import Any

import pytest

from envs.cdp import CdpError
from envs.cdp import messages as cdp_messages
from envs.cdp.client import ConnectionLost
from envs.cdp.messages import refused_with
from envs.observation.focus import FocusReader
from envs.observation.frame_geometry import content_quads
from envs.settle.animations import Animations
from envs.settle.page_probe import REPLACED, PageProbe
from envs.types import BrowserError

TABLE = {name: value for name, value in vars(cdp_messages).items() if isinstance(value, tuple)}


class Fails:
    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.handlers: dict[str, Any] = {}

    def on(self, event: Any, f: Any) -> None:
        self.handlers[event] = f

    async def send(self, method: str, params: Any = None) -> Any:
        raise self._error


async def animate(cdp: Any) -> Any:
    animations = Animations(cdp)
    cdp.handlers["Animation.animationStarted"]({"animation": {"id": "1", "type": "CSSTransition"}})
    return await animations.end()


READERS = {
    "watch": lambda cdp: PageProbe(cdp).look(),
    "focus": lambda cdp: FocusReader(cdp).read(1),
    "frames": lambda cdp: content_quads(cdp, [1]),
    "animations": animate,
}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_only_the_browsers_own_answer_says_it(name: str) -> None:
    for words in TABLE[name]:
        assert refused_with(CdpError("Any.method", f"{words}.", -32000), TABLE[name])
        for other in (BrowserError(words), ConnectionLost(words), RuntimeError(words), CdpError(words, "no")):
            assert not refused_with(other, TABLE[name])


@pytest.mark.parametrize("reader", sorted(READERS))
@pytest.mark.parametrize(
    "error",
    [BrowserError("the context was closed; No node; No frame; animation"), ConnectionLost("Animation.seekAnimations: context, navigated")],
    ids=["closed", "lost"],
)  # fmt: skip
async def test_another_error_is_not_taken_for_a_replaced_document(reader: str, error: BrowserError) -> None:
    with pytest.raises(type(error)) as caught:
        await READERS[reader](Fails(error))
    assert caught.value is error


async def test_a_replaced_document_is_one() -> None:
    error = CdpError("Runtime.evaluate", "Cannot find context with specified id", -32000)
    assert (await PageProbe(Fails(error)).look()) is REPLACED


def test_only_an_animation_that_is_not_there_counts_as_gone() -> None:
    """The first is what Chromium 156 says to an id that it does not know."""
    assert refused_with(CdpError("A.b", "Could not find animation with given id", -32000), cdp_messages.ANIMATION_GONE)
    for words in ("Only one of current_time or current_times may be set.", "a bad animation", "animation"):
        assert not refused_with(CdpError("A.b", words, -32602), cdp_messages.ANIMATION_GONE)

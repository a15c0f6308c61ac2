"""The one renderer of what a step shows: as one text, as chat messages, or as content parts.

The adapters to other frameworks, the environment server and ``flows.batch`` share it, so that an
agent reads the same words behind each of them. The policy's own prompts are a choice::

    renderer = StepRenderer(mode="set_of_marks", prompt="complete")
    messages = [*renderer.system_messages(), renderer.user_message(step)]
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from envs.prompts.system_turn import PromptName, system_text, tool_schemas
from envs.prompts.user_turn import ObservationMode, user_text
from envs.types import ConfigError, Observation, Record, StopReason

if TYPE_CHECKING:
    from PIL.Image import Image

Part = dict[str, Any]
"""A content part of the chat format: ``{"type": "text", …}`` or ``{"type": "image_url", …}``."""


NO_PICTURES = (
    "text alone cannot show them: set screenshot=true or the mode set_of_marks or coordinates, and take an agent whose "
    "messages hold pictures (docs/webarena.md)"
)


class ShownStep(Protocol):
    """The fields of a step's result that are shown (`envs.StepResult`)."""

    @property
    def observation(self) -> Observation: ...
    @property
    def screenshot(self) -> bytes: ...
    @property
    def done(self) -> bool: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def stop(self) -> StopReason | None: ...
    @property
    def abstained(self) -> str | None: ...
    @property
    def pictures(self) -> tuple[bytes, ...]: ...


class StepRenderer(Record):
    """Writes the pages and results of steps for an agent."""

    mode: ObservationMode = Field("text", description="Elements as text, marks on the screenshot, or points alone.")
    screenshot: bool = Field(False, description="Show the screenshot beside the text.")
    """The modes ``set_of_marks`` and ``coordinates`` always show it."""
    prompt: PromptName = Field("vanilla", description="System turn: plain (none), vanilla, complete or tools.")

    @property
    def shows_screenshot(self) -> bool:
        """True if messages hold the screenshot."""
        return self.screenshot or self.mode != "text"

    @property
    def pool_options(self) -> dict[str, Any]:
        """Fields of `envs.PoolOptions` that the renderer needs."""
        return {"marks": self.mode == "set_of_marks", "screenshots": self.shows_screenshot}

    def system(self) -> str:
        """Return the text of the system turn; empty with ``plain``."""
        return system_text(self.prompt, self.mode)

    def tools(self) -> Sequence[dict[str, Any]]:
        """Return the schema of the function that does all actions, as OpenAI's API takes it."""
        return tool_schemas(self.mode)

    def text(self, step: ShownStep, history: Sequence[str] = ()) -> str:
        """Return the page and the task as one text; after the end, also how the episode ended.

        Args:
            history: Responses of the episode so far, oldest first, of which the last are repeated.

        Raises:
            ConfigError: The instruction has pictures, which only `parts` and `user_message` show.
        """
        if step.pictures:
            raise ConfigError(f"the task's instruction has {len(step.pictures)} pictures, and {NO_PICTURES}")
        return self.page_text(step, history)

    def page_text(self, step: ShownStep, history: Sequence[str] = ()) -> str:
        """Return the same text; the instruction's pictures are left out, not an error."""
        page = user_text(step.observation, history, self.mode)
        return f"{page}\n{ending_line(step)}" if step.done else page

    def parts(self, step: ShownStep, history: Sequence[str] = ()) -> list[Part]:
        """Return the step as content parts: the screenshot, where there is one, the text, and the
        instruction's pictures.

        Raises:
            ConfigError: There are such pictures, and the renderer shows text alone.
        """
        image = self.image_url(step)
        picture = [_image_part(image)] if image else []
        text = self.page_text(step, history) if self.shows_screenshot else self.text(step, history)
        return [*picture, {"type": "text", "text": text}, *picture_parts(step.pictures)]

    def user_message(self, step: ShownStep, history: Sequence[str] = ()) -> dict[str, Any]:
        """Return the step as a chat message; its content is a text where no picture is shown."""
        parts = self.parts(step, history)
        return {"role": "user", "content": parts if len(parts) > 1 else parts[0]["text"]}

    def system_messages(self) -> list[dict[str, Any]]:
        """Return the system message in a list, which is empty with ``plain``."""
        text = self.system()
        return [{"role": "system", "content": text}] if text else []

    def image_url(self, step: ShownStep) -> str:
        """Return the screenshot as a ``data:`` address; empty where none is shown."""
        if not (self.shows_screenshot and step.screenshot):
            return ""
        return _data_url(step.screenshot)

    def image(self, step: ShownStep) -> Image | None:
        """Return the screenshot as a Pillow image (RGB); ``None`` where none is shown."""
        if not (self.shows_screenshot and step.screenshot):
            return None
        from PIL import Image

        return Image.open(BytesIO(step.screenshot)).convert("RGB")


def picture_parts(pictures: Sequence[bytes]) -> list[Part]:
    """Return the pictures of an instruction as content parts, each after its number."""
    return [
        part
        for number, picture in enumerate(pictures, 1)
        for part in ({"type": "text", "text": f"Picture {number} of the task:"}, _image_part(_data_url(picture)))
    ]


def _image_part(address: str) -> Part:
    return {"type": "image_url", "image_url": {"url": address}}


def _data_url(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "webp" if picture.startswith(b"RIFF") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


def ending_line(step: ShownStep) -> str:
    """Return the line that says how an episode ended: its reason and its reward."""
    reason = step.stop.value if step.stop is not None else "done"
    if step.abstained is not None:
        return f"The episode is over ({reason}) without a reward: {step.abstained}"
    return f"The episode is over ({reason}): reward {step.reward}"

"""The episode of one MCP session: carries out tools, and answers with pages."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from envs.adapters.mcp.base import CalledView, PageTool
from envs.adapters.mcp.elements import BrowserClick
from envs.adapters.mcp.tools import BrowserClose, BrowserTakeScreenshot
from envs.atomic import open_atomic
from envs.cancel_scope import finish_shielded
from envs.prompts import StepRenderer, element_line, one_line
from envs.server.sessions import SessionTable
from envs.step_result import StepResult
from envs.types import WebTask

META = "rollwright/episode"
"""Key of an episode's state in an answer's ``_meta``."""

OVER = "the episode is over: open another MCP session for the next one"

Content = dict[str, Any]
"""A `CallToolResult` as data."""


@dataclass
class McpEpisode:
    """The episode of one MCP session, begun by its first call."""

    table: SessionTable
    task: str | WebTask
    renderer: StepRenderer
    options: dict[str, Any]
    record: Path | None
    step: StepResult | None = None
    steps: int = 0
    clicked: str = ""
    session_id: str = field(default_factory=lambda: uuid4().hex)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(self, tool: PageTool) -> Content:
        """Carry out a tool and answer.

        Raises:
            RollwrightError: No page could be opened, or the session's lease ended.
        """
        async with self.lock:
            if self.step is None:
                if isinstance(tool, BrowserClose):
                    return text_content("no page is open")
                await finish_shielded(self._begin())
            assert self.step is not None
            moves = tool.moves(self._view(self.step))
            if self.step.done:
                refused = moves and not isinstance(tool, BrowserClose)
                return self._answer(self.step, tool, OVER if refused else "")
            for move in moves:
                await finish_shielded(self._act(move))  # a call that is cancelled leaves no half of an action
                if self.step.done:
                    return self._answer(self.step, tool, self.step.abstained or "")
                if self.step.observation.error is not None:
                    return self._answer(self.step, tool, self.step.observation.error)
            return self._answer(self.step, tool, tool.problem(self._view(self.step)))

    async def close(self) -> None:
        """Give the browser back, also if the caller is cancelled."""
        if self.session_id in self.table.sessions:
            await finish_shielded(self._close())

    async def _close(self) -> None:
        await self.table.close(self.session_id)

    async def _begin(self) -> None:
        if self.session_id not in self.table.sessions:  # it is there if the first reset failed
            await self.table.open(self.task, session_id=self.session_id, **self.options)
        self.step = await self.table.reset(self.session_id)
        self._keep()

    async def _act(self, move: dict[str, Any]) -> None:
        self.step = await self.table.step(self.session_id, move)
        self.steps += 1
        self._keep()

    def _view(self, step: StepResult) -> CalledView:
        page = step.observation
        lines = page.text.splitlines() or [element_line(element) for element in page.elements]
        shown = tuple(one_line(line) for line in [*lines, *page.notices])
        return CalledView(shown, page.viewport, self.renderer.mode == "set_of_marks", self.clicked)

    def _answer(self, step: StepResult, tool: PageTool, problem: str) -> Content:
        if isinstance(tool, BrowserClick):
            self.clicked = tool.target
        excerpt = "" if problem or step.done else tool.excerpt(self._view(step))
        text = excerpt or self.renderer.text(step)
        answer = text_content(f"Error: {problem}\n{text}" if problem and problem != step.observation.error else text)
        wanted = isinstance(tool, BrowserTakeScreenshot)
        if step.screenshot and (wanted or self.renderer.shows_screenshot):
            kind = tool.type if isinstance(tool, BrowserTakeScreenshot) else "jpeg"
            answer["content"].insert(0, _image(step.screenshot, kind))
        state: dict[str, Any] = {"done": step.done, "reward": step.reward, "abstained": step.abstained}
        state |= {"stop": step.stop and step.stop.value, "steps": self.steps}
        if (trajectory := self._trajectory()) is not None:
            state["trajectory"] = trajectory
        return answer | {"isError": bool(problem), "_meta": {META: state}}

    def _trajectory(self) -> dict[str, Any] | None:
        session = self.table.sessions.get(self.session_id)
        if session is None or session.env.trajectory is None:
            return None
        return session.env.trajectory.model_dump(mode="json")

    def _keep(self) -> None:
        """Write the screenshot, and after the end the trajectory, into the folder of records."""
        if self.record is None or self.step is None:
            return
        if self.step.screenshot:
            name = f"{hashlib.sha256(self.step.screenshot).hexdigest()}.jpg"
            _write(self.record / "screenshots" / name, self.step.screenshot)
        if (trajectory := self._trajectory()) is not None:
            _write(self.record / f"{self.session_id}.json", orjson.dumps(trajectory))


def text_content(text: str, *, error: bool = False) -> Content:
    """Return an answer with a text alone."""
    return {"content": [{"type": "text", "text": text}], "isError": error}


def _image(screenshot: bytes, kind: str) -> dict[str, Any]:
    if kind == "png":
        from PIL import Image

        png = BytesIO()
        Image.open(BytesIO(screenshot)).save(png, "PNG")
        screenshot = png.getvalue()
    return {"type": "image", "data": base64.b64encode(screenshot).decode("ascii"), "mimeType": f"image/{kind}"}


def _write(path: Path, data: bytes) -> None:
    with open_atomic(path) as file:
        file.write(data)

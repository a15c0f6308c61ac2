"""Plain-HTTP browser that carries out plans on bundled sites without Chromium.

It is a hundred times cheaper than Chromium, and enough to show that a task can be solved.
"""

from __future__ import annotations

from urllib.parse import urljoin

import httpx

from envs.bundled.generate.html_page import HtmlControl, HtmlPage
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Push, Say, Tick
from envs.bundled.sites.site import VIEWPORT
from envs.types import Element, Observation, TaskError

NOWHERE = (0.0, 0.0, 0.0, 0.0)


class TextBrowser:
    """One browser with its own cookies. A move that cannot be made raises `TaskError`."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.url = ""
        self.status = 0
        """Status of the last answer."""
        self.page = HtmlPage("")
        self.answer = ""

    async def go(self, address: str) -> None:
        """Open an address."""
        self._read(await self._client.get(urljoin(self.url, address)))

    async def make(self, move: Move) -> None:
        """Make one move."""
        match move:
            case Follow(label):
                links = [address for name, address in self.page.links if name == label]
                if not links:
                    raise TaskError(f"{self.url} has no link {label!r}; it has {[name for name, _ in self.page.links]}")
                await self.go(links[0])
            case Push(label):
                await self._submit(self._control(label, "button"))
            case Fill(label, text):
                self._control(label, "text").value = text
            case Choose(label, option):
                control = self._control(label, "select")
                values = [value for name, value in control.options if name == option]
                if not values:
                    raise TaskError(f"{label!r} on {self.url} has no option {option!r}")
                control.value = values[0]
            case Tick(label, on):
                self._control(label, "checkbox").on = on
            case Say(text):
                self.answer = text

    def observe(self, instruction: str) -> Observation:
        """Return an observation of the page with everything that facts are checked against."""
        elements = [
            Element(
                index=number,
                tag="input" if control.kind == "text" else control.kind,
                text=control.label,
                value=control.chosen if control.kind == "select" else control.value if control.kind == "text" else "",
                checked=control.kind == "checkbox" and control.on,
                box=NOWHERE,
            )
            for number, control in enumerate(self.page.controls, 1)
        ]
        return Observation(
            instruction=instruction,
            elements=tuple(elements),
            url=self.url,
            viewport=VIEWPORT,
            title=self.page.title,
            text="\n".join(self.page.lines),
        )

    def _control(self, label: str, kind: str) -> HtmlControl:
        for control in self.page.controls:
            if control.kind == kind and control.label == label:
                return control
        known = [control.label for control in self.page.controls if control.kind == kind]
        raise TaskError(f"{self.url} has no {kind} {label!r}; it has {known}")

    async def _submit(self, button: HtmlControl) -> None:
        form = self.page.forms[button.form]
        sent: dict[str, list[str]] = {}
        for control in self.page.controls:
            if control.form == button.form and control.name and (control.kind != "checkbox" or control.on):
                sent.setdefault(control.name, []).append(control.value)
        address = urljoin(self.url, form.action)
        if form.method == "post":
            self._read(await self._client.post(address, data=sent))
        else:
            self._read(await self._client.get(address, params=sent))

    def _read(self, answer: httpx.Response) -> None:
        if answer.status_code >= 500:
            raise TaskError(f"{answer.request.method} {answer.url} answered {answer.status_code}")
        self.url, self.status, self.page = str(answer.url), answer.status_code, HtmlPage(answer.text)

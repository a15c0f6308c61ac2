"""The tools of the TRL environment: TRL shows the model each public method, with its docstring."""

from __future__ import annotations

from typing import Any

ShownPage = str | list[dict[str, Any]]
"""A page as the model reads it: a text, or parts with the screenshot and the text."""


class TrlTools:
    """Actions by name, each of which shows the page afterwards; `_act` carries them out."""

    def _act(self, **arguments: Any) -> ShownPage:
        raise NotImplementedError

    def click(self, element: int) -> ShownPage:
        """Clicks an element of the page.

        Args:
            element: Number of the element.
        """
        return self._act(action="click", element=element)

    def type(self, element: int, text: str, enter: bool = False) -> ShownPage:
        """Replaces the text of a field.

        Args:
            element: Number of the field.
            text: The new text.
            enter: Press Enter after it.
        """
        return self._act(action="type", element=element, text=text, enter=enter)

    def select(self, element: int, text: str) -> ShownPage:
        """Chooses an option of a list.

        Args:
            element: Number of the list.
            text: Text of the option.
        """
        return self._act(action="select", element=element, text=text)

    def hover(self, element: int) -> ShownPage:
        """Moves the mouse to an element.

        Args:
            element: Number of the element.
        """
        return self._act(action="hover", element=element)

    def press(self, key: str) -> ShownPage:
        """Presses a key or keys.

        Args:
            key: The keys, as Enter or Control+a.
        """
        return self._act(action="press", key=key)

    def scroll(self, direction: str) -> ShownPage:
        """Scrolls the page.

        Args:
            direction: up, down, left or right.
        """
        return self._act(action="scroll", direction=direction)

    def goto(self, url: str) -> ShownPage:
        """Opens an address.

        Args:
            url: The address.
        """
        return self._act(action="goto", url=url)

    def back(self) -> ShownPage:
        """Goes back one page."""
        return self._act(action="back")

    def answer(self, text: str) -> ShownPage:
        """Gives the answer to the task and ends the episode.

        Args:
            text: The answer.
        """
        return self._act(action="answer", text=text)

    def submit(self, html: str) -> ShownPage:
        """Hands in a whole page, where the task asks for one, and ends the episode.

        Args:
            html: The page.
        """
        return self._act(action="submit", html=html)

    def terminate(self) -> ShownPage:
        """Ends the episode: the task is done, or cannot be done."""
        return self._act(action="terminate")

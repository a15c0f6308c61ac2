"""What sites have in common whose pages are ordinary pages: nothing in them says how an episode goes."""

from __future__ import annotations

from envs.observation import FULL, ObservationOptions
from envs.types import WebTask


class PlainSite:
    """Base of a `Site` whose episodes have a browser context of their own, which is their reset. The task gives the instruction; nothing declares
    an end. What differs is overridden."""

    stateless_pages = False
    final_screenshot = True
    style = ""
    exclude = ""
    hosts: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()
    background = False
    observation: ObservationOptions = FULL

    def reload_for(self, task: WebTask) -> bool:
        """Every episode begins with a load."""
        return True

    def reset_script(self, task: WebTask, seed: int) -> str:
        """Nothing: a fresh context is the reset."""
        return ""

    def ready_script(self, task: WebTask) -> str:
        """The load is enough."""
        return "true"

    def facts_script(self, task: WebTask) -> str:
        """Nothing, so pages are not asked: no facts, never done."""
        return ""

"""Replays a stored trajectory in a browser, and writes it as a script that others can run."""

from envs.replay.playing import Difference, Replay, replay
from envs.replay.playwright_script import playwright_script

__all__ = ["Difference", "Replay", "playwright_script", "replay"]

"""Replays a stored trajectory in a browser, and writes it as a script that others can run."""

from envs.observation.compare import canonical_observation, first_difference
from envs.replay.playing import Difference, Replay, replay
from envs.replay.playwright_script import playwright_script

__all__ = ["Difference", "Replay", "canonical_observation", "first_difference", "playwright_script", "replay"]

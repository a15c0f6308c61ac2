"""Configurations of WebArena's true shape, of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.rewards.webarena import WebArenaEval, read_eval

FILE = Path(__file__).with_name("configs.json")
ADDRESSES = {"gitlab": "http://git.test/", "reddit": "http://reddit.test", "shopping": "http://shop.test"}


def broken(change: Callable[[dict[str, Any]], object], row: int = 3) -> dict[str, Any]:
    """A row of the file that is not as it should be any more."""
    raw: dict[str, Any] = json.loads(FILE.read_text())[row]
    change(raw)
    return raw


@dataclass(frozen=True)
class Config:
    """The question of a row and its evaluators."""

    intent: str
    eval: WebArenaEval


def config(raw: dict[str, Any]) -> Config:
    """A row as it is, with the placeholders of sites."""
    return Config(raw["intent"], read_eval(raw["eval"], raw))

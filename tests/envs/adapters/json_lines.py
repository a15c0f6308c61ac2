"""Asks an agent of BrowserGym's that runs in a process of its own, by JSON lines."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import numpy as np


def ask(agent: subprocess.Popen[str], observation: dict[str, Any]) -> Any:
    """What an agent in a process of its own answers to an observation."""
    assert agent.stdin is not None and agent.stdout is not None
    line = {**observation, "elapsed_time": observation["elapsed_time"].tolist()}
    line["active_page_index"] = observation["active_page_index"].tolist()
    pixels: np.ndarray[Any, Any] = observation["screenshot"]
    line["screenshot"] = {"shape": pixels.shape, "data": base64.b64encode(pixels.tobytes()).decode()}
    agent.stdin.write(json.dumps(line) + "\n")
    agent.stdin.flush()
    return json.loads(agent.stdout.readline())

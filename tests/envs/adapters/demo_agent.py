"""BrowserGym's demo agent: observations in, actions out, as JSON lines: ``… FOLDER``.

Run by the Python of ``.venv-frameworks/browsergym``; FOLDER has the agent's file.
"""

from __future__ import annotations

import base64
import json
import sys

import numpy as np


def main(folder: str) -> None:
    """Answer each line of the standard input."""
    out, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, folder)
    from agent import DemoAgentArgs

    agent = DemoAgentArgs(use_html=True, use_screenshot=True).make_agent()
    for line in sys.stdin:
        given = json.loads(line)
        pixels = np.frombuffer(base64.b64decode(given["screenshot"]["data"]), np.uint8)
        given["screenshot"] = pixels.reshape(given["screenshot"]["shape"])
        action, _ = agent.get_action(agent.obs_preprocessor(given))
        print(json.dumps(action), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
